// Frames for d2Cache and step maps for TraDo.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "cli/export_formats.h"
#include "decode_record/interchange/import_frames.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

constexpr float kRevokedConfidence = 1.0F;  // WINO's value for a token that is masked again

ordered_json or_null(const std::vector<std::int64_t>& values) {
  return values.empty() ? ordered_json(nullptr) : ordered_json(values);
}

/// The denoising rows of a sequence, in the order of its deltas.
std::vector<std::int64_t> denoising_rows(const TraceReader& reader, std::int64_t index) {
  std::vector<std::int64_t> rows = reader.rows_of(index);
  std::erase_if(rows, [&](std::int64_t row) {
    return static_cast<PassKind>(reader.steps(row, 1).kind[0]) != PassKind::denoise;
  });
  return rows;
}

/// decoded_tokens and confidence of one step, [gen_length + insertions].
struct Decoded {
  std::vector<std::int64_t> tokens;
  std::vector<float> confidence;
};

/// The best tokens of the masks in the row's block.
Decoded predictions(const TraceReader& reader, std::int64_t row, const Frame& before) {
  Decoded decoded{std::vector<std::int64_t>(before.gen_length, kInvalidToken),
                  std::vector<float>(before.gen_length, kUntouchedConfidence)};
  if (before.mask_token_id < 0) return decoded;
  const std::vector<std::int32_t> tokens = reader.read_ints(Field::prediction_token, row, 1);
  const std::vector<float> sure = reader.read_floats(Field::prediction_confidence, row, 1);
  const std::int64_t first =
      reader.steps(row, 1).block_start[0] - static_cast<std::int64_t>(before.prompts[0].size());
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    const std::int64_t position = first + static_cast<std::int64_t>(b);
    if (position < 0 || position >= static_cast<std::int64_t>(before.gen_length)) continue;
    const auto at = static_cast<std::size_t>(position);
    if (tokens[b] < 0 || before.generated_tokens[at] != before.mask_token_id) continue;
    decoded.tokens[at] = tokens[b];
    decoded.confidence[at] = sure[b];
  }
  return decoded;
}

/// The steps of a delta that edits tokens or differs from d2Cache's rule: the largest step so far
/// plus 1, and none for a token that is masked again.
ordered_json explicit_steps(const SequenceDelta& delta, const Frame& before) {
  const std::int64_t next = before.current_step() + 1;
  bool follows = std::ranges::all_of(delta.insert_step, [&](auto step) { return step == next; });
  for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
    const auto at = static_cast<std::size_t>(delta.transfer_index[i]);
    const auto source = static_cast<std::size_t>(delta.transfer_src_index[i]);
    const bool held = before.generated_tokens[at] != before.mask_token_id;
    const bool revoked = held && delta.decoded_tokens[source] == before.mask_token_id;
    const bool edited = held && !revoked;  // `import` takes edits that state their steps
    follows = follows && !edited && delta.transfer_step[i] == (revoked ? kUndecodedStep : next);
  }
  if (follows) return ordered_json::object();
  return {{"transfer_step", delta.transfer_step}, {"insert_step", delta.insert_step}};
}

ordered_json delta_json(const TraceReader& reader, std::int64_t row, const Frame& before,
                        const SequenceDelta& delta) {
  Decoded decoded = predictions(reader, row, before);
  bool any = delta.transfer_index.empty() && delta.insert_index.empty();
  for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
    const auto at = static_cast<std::size_t>(delta.transfer_index[i]);
    const auto source = static_cast<std::size_t>(delta.transfer_src_index[i]);
    const bool revoked = delta.decoded_tokens[source] == before.mask_token_id &&
                         before.generated_tokens[at] != before.mask_token_id;
    decoded.tokens[at] = delta.decoded_tokens[source];
    decoded.confidence[at] = revoked ? kRevokedConfidence : delta.confidence[source];
    any = any || !std::isnan(decoded.confidence[at]);
  }
  std::vector<std::int64_t> insert_source;
  for (const std::int64_t source : delta.insert_src_index) {
    insert_source.push_back(static_cast<std::int64_t>(decoded.tokens.size()));
    decoded.tokens.push_back(delta.decoded_tokens[static_cast<std::size_t>(source)]);
    decoded.confidence.push_back(delta.confidence[static_cast<std::size_t>(source)]);
    any = any || !std::isnan(decoded.confidence.back());
  }
  return {{"transfer_index", delta.transfer_index},
          {"transfer_src_index", nullptr},
          {"insert_index", or_null(delta.insert_index)},
          {"insert_src_index", or_null(insert_source)},
          {"delete_index", or_null(delta.delete_index)},
          {"decoded_tokens", decoded.tokens},
          {"confidence", any ? json_numbers(decoded.confidence) : ordered_json(nullptr)},
          {"extra", explicit_steps(delta, before)}};
}

/// Number of response tokens: up to the first stop token, or to the last decided position.
std::size_t response_length(const TraceReader& reader, const SequenceInfo& info,
                            const Frame& last) {
  std::size_t length = last.gen_length;
  while (length > 0 && last.undecided(length - 1)) --length;
  if (info.finish_reason != FinishReason::stop) return length;
  const std::set<std::int64_t> stops = stop_ids(reader);
  for (std::size_t i = 0; i < length; ++i) {
    if (stops.count(last.generated_tokens[i]) != 0) return i + 1;
  }
  return length;
}

}  // namespace

ordered_json frames_json(const TraceReader& reader, std::int64_t index) {
  if (reader.info().meta.noise_canvas) {
    throw TraceError(fmt::format(
        "{}: its canvases hold noise in place of masks, which d2Cache's frames can't express. "
        "HINT: --format json",
        reader.info().path));
  }
  const DecodeRecord record = reader.decode_record(index);
  const std::vector<std::int64_t> rows = denoising_rows(reader, index);
  const Frame& first = record.initial_frame();
  ordered_json item = sequence_head(reader, index);
  item["block_length"] = record.block_length();
  item["mask_token_id"] = first.mask_token_id;
  item["initial_frame"] = {{"prompts", first.prompts.at(0)},
                           {"generated_tokens", first.generated_tokens},
                           {"confidence", json_numbers(first.confidence)},
                           {"steps", first.steps}};
  item["deltas"] = ordered_json::array();
  for (auto frame = record.begin(); frame.index() < record.num_deltas(); ++frame) {
    item["deltas"].push_back(
        delta_json(reader, rows.at(frame.index()), *frame, record.delta(frame.index()).rows.at(0)));
  }
  return item;
}

ordered_json step_map_json(const TraceReader& reader, std::int64_t index) {
  const Frame last = reader.decode_record(index).last_frame();
  const std::size_t length = response_length(reader, reader.sequence(index), last);
  ordered_json item = sequence_head(reader, index);
  item["prompt_ids"] = last.prompts.at(0);
  item["token_ids"] = ordered_json::array();
  item["step_map"] = ordered_json::array();
  for (std::size_t i = 0; i < length; ++i) {
    item["token_ids"].push_back(last.generated_tokens[i]);
    item["step_map"].push_back(last.undecided(i) ? 0 : last.steps[i] + 1);
  }
  return item;
}

}  // namespace blockscope
