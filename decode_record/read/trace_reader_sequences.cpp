// The part of TraceReader that reads facts of sequences, and searches the vocabulary.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "decode_record/read/trace_check_columns.h"
#include "decode_record/read/trace_reader_impl.h"

namespace blockscope {
namespace {

/// Elements of one CSR column that belong to consecutive sequences.
template <typename Value>
class Pieces {
 public:
  Pieces(const StoredTrace& trace, Field start, Field length, Field elements, std::int64_t first,
         std::int64_t count)
      : start_(trace.column<std::int64_t>(start, first, count)),
        length_(trace.column<std::int32_t>(length, first, count)),
        elements_(trace, elements) {}
  /// Reads nothing after the last element of these sequences. Call it once, before of().
  void use(const std::vector<bool>& which) {
    std::int64_t end = 0;
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (which[i]) end = std::max(end, start_[i] + length_[i]);
    }
    elements_.set_limit(end);
  }
  std::span<const Value> of(std::size_t i) {
    return elements_.range(start_[i], start_[i] + length_[i]);
  }

 private:
  std::vector<std::int64_t> start_;
  std::vector<std::int32_t> length_;
  ElementColumn<Value> elements_;
};

}  // namespace

std::vector<SequenceInfo> TraceReader::Impl::sequences(std::int64_t first,
                                                       std::int64_t count) const {
  const std::vector<bool> all(static_cast<std::size_t>(count), true);
  std::vector<bool> ended(all.size());  // the others may have no text yet
  std::vector<SequenceInfo> result(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t at = first + static_cast<std::int64_t>(i);
    const std::uint8_t reason = raw.committed().finish_reasons[static_cast<std::size_t>(at)];
    if (reason > static_cast<std::uint8_t>(FinishReason::interrupted)) {
      corrupt(fmt::format("/sequences/finish_reason: expected 0 to 4, got {}", reason));
    }
    result[i].finish_reason = static_cast<FinishReason>(reason);
    ended[i] = result[i].finish_reason != FinishReason::unfinished;
  }
  const auto texts = [&](Field start, Field length, const std::vector<bool>& which,
                         std::string SequenceInfo::*into) {
    Pieces<char> pieces(raw, start, length, Field::sequence_bytes, first, count);
    pieces.use(which);
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (!which[i]) continue;
      const std::span<const char> bytes = pieces.of(i);
      (result[i].*into).assign(bytes.begin(), bytes.end());
    }
  };
  texts(Field::sequence_name_start, Field::sequence_name_length, all, &SequenceInfo::name);
  texts(Field::sequence_answer_start, Field::sequence_answer_length, all, &SequenceInfo::answer);
  texts(Field::sequence_metric_start, Field::sequence_metric_length, all, &SequenceInfo::metric);
  Pieces<std::int32_t> prompts(raw, Field::sequence_prompt_start, Field::sequence_prompt_length,
                               Field::sequence_prompt_token, first, count);
  prompts.use(all);
  std::optional<Pieces<std::uint8_t>> regions;
  if (raw.has(Field::sequence_prompt_region)) {
    regions.emplace(raw, Field::sequence_prompt_start, Field::sequence_prompt_length,
                    Field::sequence_prompt_region, first, count);
    regions->use(all);
  }
  const auto hash = raw.column<std::uint8_t>(Field::sequence_prompt_hash, first, count);
  const auto gen_length = raw.column<std::int32_t>(Field::sequence_gen_length, first, count);
  const auto aborted = raw.column<std::uint8_t>(Field::sequence_aborted, first, count);
  for (std::size_t i = 0; i < result.size(); ++i) {
    SequenceInfo& to = result[i];
    const std::span<const std::int32_t> prompt = prompts.of(i);
    to.prompt.assign(prompt.begin(), prompt.end());
    if (regions) {
      const std::span<const std::uint8_t> region = regions->of(i);
      to.prompt_regions.assign(region.begin(), region.end());
    }
    std::copy_n(hash.begin() + static_cast<std::ptrdiff_t>(i * to.prompt_hash.size()),
                to.prompt_hash.size(), to.prompt_hash.begin());
    to.gen_length = gen_length[i];
    to.aborted = aborted[i] != 0;
    to.score = std::numeric_limits<float>::quiet_NaN();
  }
  if (std::ranges::none_of(ended, std::identity())) return result;
  texts(Field::sequence_text_start, Field::sequence_text_length, ended, &SequenceInfo::text);
  const auto score = raw.column<float>(Field::sequence_score, first, count);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (ended[i]) result[i].score = score[i];
  }
  return result;
}

SequenceInfo TraceReader::sequence(std::int64_t index) const {
  impl_->check_sequence(index);
  return std::move(impl_->sequences(index, 1).front());
}

std::vector<SequenceInfo> TraceReader::sequences(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || count > impl_->info.num_sequences - first) {
    throw UsageError(fmt::format("{}: expected sequences in [0, {}), got [{}, {} + {})",
                                 impl_->info.path, impl_->info.num_sequences, first, first, count));
  }
  return impl_->sequences(first, count);
}

std::vector<std::int64_t> TraceReader::tokens_of_pieces(
    std::span<const std::string_view> pieces) const {
  const std::int64_t count = num_pieces();
  ElementColumn<std::int64_t> offsets(impl_->raw, Field::token_offset);
  offsets.set_limit(count + 1);
  ElementColumn<char> bytes(impl_->raw, Field::token_bytes);
  bytes.set_limit(impl_->raw.extent(Field::token_bytes));
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; token < count; ++token) {
    const std::span<const std::int64_t> bounds = offsets.range(token, token + 2);
    const auto length = static_cast<std::size_t>(bounds[1] - bounds[0]);
    if (std::ranges::find(pieces, length, &std::string_view::size) == pieces.end()) continue;
    const std::span<const char> piece = bytes.range(bounds[0], bounds[1]);
    const std::string_view text(piece.data(), piece.size());
    if (std::ranges::find(pieces, text) != pieces.end()) tokens.push_back(token);
  }
  return tokens;
}

std::vector<std::uint8_t> TraceReader::aborted() const {
  return impl_->raw.column<std::uint8_t>(Field::sequence_aborted, 0, impl_->info.num_sequences);
}

}  // namespace blockscope
