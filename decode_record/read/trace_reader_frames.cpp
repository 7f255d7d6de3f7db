// The trajectory part of TraceReader: deltas, keyframes, frames.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "decode_record/read/trace_reader_impl.h"

namespace blockscope {
namespace {

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

std::pair<std::int64_t, std::int64_t> TraceReader::Impl::range(Field end_field, std::int64_t row,
                                                               Field elements) const {
  const std::int64_t begin = row == 0 ? 0 : value<std::int64_t>(end_field, row - 1);
  const auto end = value<std::int64_t>(end_field, row);
  if (begin < 0 || end < begin || end > raw.extent(elements)) {
    corrupt(fmt::format("{}: row {}: expected a range in [0, {}), got [{}, {})",
                        spec_of(end_field).path, row, raw.extent(elements), begin, end));
  }
  return {begin, end};
}

FrameDelta TraceReader::Impl::delta(std::int64_t row) const {
  FrameDelta result;
  SequenceDelta& to = result.rows.front();
  const auto ints = [this](Field field, std::pair<std::int64_t, std::int64_t> part) {
    const auto values = raw.column<std::int32_t>(field, part.first, part.second - part.first);
    return std::vector<std::int64_t>(values.begin(), values.end());
  };
  const auto add_decoded = [&](Field token, Field confidence,
                               std::pair<std::int64_t, std::int64_t> part,
                               std::vector<std::int64_t>& source) {
    const auto tokens = ints(token, part);
    const auto sure = raw.column<float>(confidence, part.first, part.second - part.first);
    source.resize(tokens.size());
    std::iota(source.begin(), source.end(), static_cast<std::int64_t>(to.decoded_tokens.size()));
    to.decoded_tokens.insert(to.decoded_tokens.end(), tokens.begin(), tokens.end());
    to.confidence.insert(to.confidence.end(), sure.begin(), sure.end());
  };
  const auto transfers = range(Field::delta_end, row, Field::delta_position);
  if (transfers.first != transfers.second) {
    to.transfer_index = ints(Field::delta_position, transfers);
    to.transfer_step = ints(Field::delta_step, transfers);
    add_decoded(Field::delta_token, Field::delta_confidence, transfers, to.transfer_src_index);
  }
  const auto insertions = range(Field::insert_end, row, Field::insert_position);
  if (insertions.first != insertions.second) {
    to.insert_index = ints(Field::insert_position, insertions);
    to.insert_step = ints(Field::insert_step, insertions);
    add_decoded(Field::insert_token, Field::insert_confidence, insertions, to.insert_src_index);
  }
  const auto deletions = range(Field::delete_end, row, Field::delete_position);
  if (deletions.first != deletions.second) {
    to.delete_index = ints(Field::delete_position, deletions);
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

Frame TraceReader::Impl::frame_before(std::int64_t row) const {
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
