// The trajectory part of TraceReader: deltas, keyframes, frames.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "decode_record/read/trace_reader_impl.h"

namespace blockscope {
namespace {

constexpr std::int64_t kWindowElements = 65536;

/// Deltas in a file must fit the frames that they apply to. If they don't, the file is damaged.
template <typename Work>
auto blame_file(const std::string& path, Work work) {
  try {
    return work();
  } catch (const FrameError& error) {
    throw CorruptTrace(
        fmt::format("{}:/frames: {}. HINT: the file is damaged.", path, error.what()));
  }
}

}  // namespace

void TraceReader::Impl::check_range(Field end_field, std::int64_t row, Field elements,
                                    std::int64_t begin, std::int64_t end) const {
  if (begin >= 0 && end >= begin && end <= raw.extent(elements)) return;
  corrupt(fmt::format("{}: row {}: expected a range in [0, {}), got [{}, {})",
                      spec_of(end_field).path, row, raw.extent(elements), begin, end));
}

std::pair<std::int64_t, std::int64_t> TraceReader::Impl::range(Field end_field, std::int64_t row,
                                                               Field elements) const {
  const std::int64_t begin = row == 0 ? 0 : value<std::int64_t>(end_field, row - 1);
  const auto end = value<std::int64_t>(end_field, row);
  check_range(end_field, row, elements, begin, end);
  return {begin, end};
}

TraceReader::Impl::ElementWindow TraceReader::Impl::read_window(const ElementFields& fields,
                                                                std::int64_t row) const {
  ElementWindow window;
  window.first = row / kWindowRows * kWindowRows;
  window.count = std::min(kWindowRows, info.num_rows - window.first);
  window.end = raw.column<std::int64_t>(fields.end, window.first, window.count);
  window.begin = window.first == 0 ? 0 : value<std::int64_t>(fields.end, window.first - 1);
  std::int64_t begin = window.begin;
  for (std::size_t i = 0; i < window.end.size(); ++i) {
    check_range(fields.end, window.first + static_cast<std::int64_t>(i), fields.position, begin,
                window.end[i]);
    begin = window.end[i];
  }
  if (window.end.back() - window.begin > kWindowElements) {  // long rows: this one alone
    const auto at = static_cast<std::size_t>(row - window.first);
    if (at > 0) window.begin = window.end[at - 1];
    window.end = {window.end[at]};
    window.first = row;
    window.count = 1;
  }
  const std::int64_t count = window.end.back() - window.begin;
  const auto read = [&]<typename Value>(std::optional<Field> field, std::vector<Value>& values) {
    if (field && count > 0) values = raw.column<Value>(*field, window.begin, count);
  };
  read(fields.position, window.position);
  read(fields.token, window.token);
  read(fields.step, window.step);
  read(fields.confidence, window.confidence);
  return window;
}

std::pair<std::size_t, std::size_t> TraceReader::Impl::look_up(ElementWindow& window,
                                                               const ElementFields& fields,
                                                               std::int64_t row) const {
  if (row < window.first || row >= window.first + window.count) window = read_window(fields, row);
  const auto at = static_cast<std::size_t>(row - window.first);
  const std::int64_t begin = at == 0 ? window.begin : window.end[at - 1];
  return {static_cast<std::size_t>(begin - window.begin),
          static_cast<std::size_t>(window.end[at] - window.begin)};
}

FrameDelta TraceReader::Impl::delta(std::int64_t row) {
  FrameDelta result;
  SequenceDelta& to = result.rows.front();
  const auto copy = [](const auto& values, std::pair<std::size_t, std::size_t> part, auto& into) {
    into.insert(into.end(), values.begin() + static_cast<std::ptrdiff_t>(part.first),
                values.begin() + static_cast<std::ptrdiff_t>(part.second));
  };
  const auto add_decoded = [&](const ElementWindow& window,
                               std::pair<std::size_t, std::size_t> part,
                               std::vector<std::int64_t>& source) {
    source.resize(part.second - part.first);
    std::iota(source.begin(), source.end(), static_cast<std::int64_t>(to.decoded_tokens.size()));
    copy(window.token, part, to.decoded_tokens);
    copy(window.confidence, part, to.confidence);
  };
  const auto transfers = look_up(transfers_, kTransfers, row);
  if (transfers.first != transfers.second) {
    copy(transfers_.position, transfers, to.transfer_index);
    copy(transfers_.step, transfers, to.transfer_step);
    add_decoded(transfers_, transfers, to.transfer_src_index);
  }
  const auto insertions = look_up(insertions_, kInsertions, row);
  if (insertions.first != insertions.second) {
    copy(insertions_.position, insertions, to.insert_index);
    copy(insertions_.step, insertions, to.insert_step);
    add_decoded(insertions_, insertions, to.insert_src_index);
  }
  copy(deletions_.position, look_up(deletions_, kDeletions, row), to.delete_index);
  return result;
}

std::vector<RevokedToken> TraceReader::Impl::revoked(std::int64_t row) {
  check_rows(row, 1);
  std::vector<RevokedToken> result;
  if (!raw.has(Field::revoke_end)) return result;
  const ElementWindow& window = revocations_;
  const auto [begin, end] = look_up(revocations_, kRevocations, row);
  for (std::size_t i = begin; i < end; ++i) {
    result.push_back({window.position[i], window.token[i], window.confidence[i]});
  }
  return result;
}

Frame TraceReader::Impl::keyframe(std::int64_t index, std::int64_t sequence) const {
  if (index < 0 || index >= raw.extent(Field::keyframe_end)) {
    corrupt(fmt::format("/frames/keyframe: expected [0, {}), got {}",
                        raw.extent(Field::keyframe_end), index));
  }
  const auto [begin, end] = range(Field::keyframe_end, index, Field::keyframe_token);
  const auto tokens = raw.column<std::int32_t>(Field::keyframe_token, begin, end - begin);
  const auto steps = raw.column<std::int32_t>(Field::keyframe_step, begin, end - begin);
  Frame frame = make_initial_frame(prompt(sequence), tokens.size(), info.meta.mask_token_id);
  std::ranges::copy(tokens, frame.generated_tokens.begin());
  std::ranges::copy(steps, frame.steps.begin());
  frame.confidence = raw.column<float>(Field::keyframe_confidence, begin, end - begin);
  return frame;
}

Frame TraceReader::Impl::frame_before(std::int64_t row) {
  check_rows(row, 1);
  const auto sequence = value<std::int32_t>(Field::step_sequence, row);
  if (sequence < 0 || sequence >= info.num_sequences) {
    corrupt(fmt::format("/steps/sequence: row {}: got {}", row, sequence));
  }
  const auto index = value<std::int64_t>(Field::row_keyframe, row);
  Frame frame = keyframe(index, sequence);
  const auto start = value<std::int64_t>(Field::keyframe_row, index);
  std::vector<std::int64_t> between;  // rows from the keyframe to this one, latest first
  for (std::int64_t at = row; at != start;) {
    const auto previous = value<std::int64_t>(Field::step_previous, at);
    if (previous < start || previous >= at || between.size() >= kKeyframeInterval) {
      corrupt(fmt::format("/steps/previous: row {} doesn't lead to the keyframe before row {}", at,
                          start));
    }
    between.push_back(previous);
    at = previous;
  }
  for (auto at = between.rbegin(); at != between.rend(); ++at) apply_delta(frame, delta(*at));
  return frame;
}

FrameDelta TraceReader::delta(std::int64_t row) const {
  impl_->check_rows(row, 1);
  return impl_->delta(row);
}

Frame TraceReader::frame_before(std::int64_t row) const {
  return blame_file(impl_->info.path, [&] { return impl_->frame_before(row); });
}

Frame TraceReader::frame(std::int64_t sequence, std::int64_t t) const {
  const Impl::Rows& rows = impl_->rows_of(sequence);
  const auto steps = static_cast<std::int64_t>(rows.denoise.size());
  if (t < 0 || t > steps) {
    throw FrameError(fmt::format("{}: sequence {}: expected a frame in [0, {}], got {}",
                                 impl_->info.path, sequence, steps, t));
  }
  return blame_file(impl_->info.path, [&] {
    if (t < steps) return impl_->frame_before(rows.denoise[static_cast<std::size_t>(t)]);
    if (rows.all.empty()) {
      const auto length = impl_->value<std::int32_t>(Field::sequence_gen_length, sequence);
      if (length < 0) impl_->corrupt("/sequences/gen_length is negative");
      return make_initial_frame(impl_->prompt(sequence), static_cast<std::size_t>(length),
                                impl_->info.meta.mask_token_id);
    }
    Frame frame = impl_->frame_before(rows.all.back());
    apply_delta(frame, impl_->delta(rows.all.back()));
    return frame;
  });
}

DecodeRecord TraceReader::decode_record(std::int64_t sequence) const {
  const Impl::Rows& rows = impl_->rows_of(sequence);
  const auto block_length = static_cast<std::size_t>(impl_->info.meta.block_length);
  if (rows.denoise.empty()) return {frame(sequence, 0), block_length};
  return blame_file(impl_->info.path, [&] {
    DecodeRecord record(impl_->frame_before(rows.denoise.front()), block_length);
    auto next = std::ranges::find(rows.all, rows.denoise.front());
    while (next != rows.all.end()) {
      FrameDelta step = impl_->delta(*next++);
      // A prefill or commit between two denoising rows may decide tokens too.
      const auto is_denoise = [&rows](std::int64_t row) {
        return std::ranges::binary_search(rows.denoise, row);
      };
      for (; next != rows.all.end() && !is_denoise(*next); ++next) {
        const FrameDelta more = impl_->delta(*next);
        if (!more.rows.front().empty()) step = compose(record.last_frame(), step, more);
      }
      record.append(step);
    }
    return record;
  });
}

}  // namespace blockscope
