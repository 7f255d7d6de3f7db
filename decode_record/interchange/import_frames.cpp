#include "decode_record/interchange/import_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_state.h"
#include "decode_record/json/json_document.h"

namespace blockscope {
namespace {

constexpr std::size_t kFramesDepth = 16;
constexpr std::int64_t kFramesVersion = 2;
constexpr float kRevokedConfidence = 1.0F;  // WINO's value for a token that is masked again

std::vector<std::int64_t> read_tokens(const JsonNode& node, const ImportedTrajectory& facts) {
  std::vector<std::int64_t> tokens;
  for (const JsonNode& element : node.elements()) tokens.push_back(read_token(element, facts));
  return tokens;
}

std::vector<std::int64_t> read_index(const JsonNode& list) {
  std::vector<std::int64_t> index;
  for (const JsonNode& element : list.elements()) {
    index.push_back(element.integer(0, kLargestLength));
  }
  return index;
}

/// Empty if it is null or absent.
std::vector<std::int64_t> read_index(const JsonNode& node, const char* key) {
  return given(node, key) ? read_index(node.member(key)) : std::vector<std::int64_t>();
}

std::vector<std::int64_t> read_steps(const JsonNode& extra, const char* key, std::size_t count) {
  std::vector<std::int64_t> steps;
  if (!given(extra, key)) return steps;
  for (const JsonNode& element : extra.member(key).elements(static_cast<std::int64_t>(count))) {
    steps.push_back(element.integer(kUndecodedStep, kLargestLength));
  }
  return steps;
}

/// The sources that a delta really takes tokens from.
std::set<std::int64_t> used_sources(const SequenceDelta& row) {
  const auto& transfers =
      row.transfer_src_index.empty() ? row.transfer_index : row.transfer_src_index;
  std::set<std::int64_t> used(transfers.begin(), transfers.end());
  used.insert(row.insert_src_index.begin(), row.insert_src_index.end());
  return used;
}

void read_decoded(const JsonNode& node, SequenceDelta& row, const ImportedTrajectory& facts) {
  const std::set<std::int64_t> used = used_sources(row);
  const auto tokens = node.member("decoded_tokens").elements();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool invalid = used.count(static_cast<std::int64_t>(i)) == 0 &&
                         tokens[i].integer(kInvalidToken, kLargestLength) == kInvalidToken;
    row.decoded_tokens.push_back(invalid ? kInvalidToken : read_token(tokens[i], facts));
  }
  if (!given(node, "confidence")) {
    row.confidence.assign(tokens.size(), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const auto count = static_cast<std::int64_t>(tokens.size());
  for (const JsonNode& element : node.member("confidence").elements(count)) {
    row.confidence.push_back(read_confidence(element, kUntouchedConfidence));
  }
}

class RecordReader {
 public:
  RecordReader(const JsonNode& record, const ImportedTrajectory& facts,
               std::vector<std::string>& notes)
      : record_(record), facts_(facts), notes_(notes), state_(facts, read_start()) {}

  ImportedSequence read() {
    read_initial();
    const auto deltas = record_.member("deltas").elements();
    check_import_size(record_.member("deltas"), deltas.size(), state_.frame().gen_length);
    for (const JsonNode& delta : deltas) read_delta(delta);
    return state_.finish(read_end());
  }

 private:
  SequenceStart read_start() const {
    const JsonNode frame = record_.member("initial_frame");
    SequenceStart start;
    if (given(record_, "name")) start.name = record_.member("name").text();
    start.prompt = read_tokens(frame.member("prompts"), facts_);
    for (const std::int64_t token : start.prompt) {
      if (token < 0) frame.member("prompts").complain("expected tokens of 0 or more, got -1");
    }
    const auto length =
        static_cast<std::int64_t>(frame.member("generated_tokens").elements().size());
    if (length + static_cast<std::int64_t>(start.prompt.size()) > kLargestLength) {
      frame.complain(fmt::format("expected at most {} positions, got {}", kLargestLength,
                                 length + static_cast<std::int64_t>(start.prompt.size())));
    }
    start.gen_length = length;
    check_head(start);
    return start;
  }

  SequenceEnd read_end() const {
    SequenceEnd end;
    if (given(record_, "text")) end.text = record_.member("text").text();
    if (given(record_, "finish_reason")) {
      const JsonNode node = record_.member("finish_reason");
      const auto reason = parse_finish_reason(node.text());
      if (!reason) node.refuse("unfinished, length, stop, replayed or interrupted");
      end.reason = *reason;
    }
    return end;
  }

  /// Reads the facts of the sequence other than its frames.
  void check_head(const SequenceStart& start) const {
    if (given(record_, "sequence")) record_.member("sequence").integer(0);
    if (given(record_, "aborted") && record_.member("aborted").boolean()) {
      record_.member("aborted").refuse(
          "false (it was cut by a kill and decoded again: export it without --aborted keep)");
    }
    if (!given(record_, "prompt_hash")) return;
    const std::string hash = to_hex(hash_prompt(start.prompt));
    const JsonNode node = record_.member("prompt_hash");
    if (node.text() != hash) node.refuse(fmt::format("\"{}\", the hash of its prompt", hash));
  }

  void read_initial() {
    const JsonNode frame = record_.member("initial_frame");
    const auto tokens = frame.member("generated_tokens").elements();
    const auto count = static_cast<std::int64_t>(tokens.size());
    const auto steps = frame.member("steps").elements(count);
    std::vector<JsonNode> confidence;
    if (given(frame, "confidence")) confidence = frame.member("confidence").elements(count);
    FrameDelta delta = make_transfer({}, {}, {});
    SequenceDelta& row = delta.rows.front();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t token = read_token(tokens[i], facts_);
      const bool masked = token == facts_.mask_token_id;
      const float sure = confidence.empty() ? kUntouchedConfidence
                                            : read_confidence(confidence[i], kUntouchedConfidence);
      // One row can hold only one step.
      const std::int64_t step = steps[i].integer(masked ? kUndecodedStep : 0, 0);
      if (masked && step == kUndecodedStep && sure == kUntouchedConfidence) continue;
      row.transfer_src_index.push_back(static_cast<std::int64_t>(row.transfer_index.size()));
      row.transfer_index.push_back(static_cast<std::int64_t>(i));
      row.transfer_step.push_back(step);
      row.decoded_tokens.push_back(token);
      row.confidence.push_back(sure);
    }
    state_.begin(frame, delta);
  }

  void read_delta(const JsonNode& node) {
    FrameDelta delta;
    SequenceDelta& row = delta.rows.front();
    row.transfer_index = read_index(node.member("transfer_index"));  // d2Cache always has it
    row.transfer_src_index = read_index(node, "transfer_src_index");
    row.insert_index = read_index(node, "insert_index");
    row.insert_src_index = read_index(node, "insert_src_index");
    row.delete_index = read_index(node, "delete_index");
    read_decoded(node, row, facts_);
    read_extra(node, row);
    if (given(node, "probs")) note("probs: distributions over the vocabulary are not kept");
    if (given(node, "intermediate")) note("intermediate: states of the model are not kept");
    std::vector<BestToken> best = read_best(row);
    fill_sources(row);
    check_revoked(node, row);
    state_.add_step(node, std::move(delta), std::move(best));
  }

  void read_extra(const JsonNode& node, SequenceDelta& row) {
    if (!given(node, "extra")) return;
    const JsonNode extra = node.member("extra");
    row.transfer_step = read_steps(extra, "transfer_step", row.transfer_index.size());
    row.insert_step = read_steps(extra, "insert_step", row.insert_index.size());
    for (const std::string& key : extra.keys()) {
      if (key != "transfer_step" && key != "insert_step") {
        note(fmt::format("extra.{}: not kept", key));
      }
    }
  }

  /// In d2Cache's own form, decoded_tokens has an element for every position: for a mask, the best
  /// token.
  std::vector<BestToken> read_best(const SequenceDelta& row) const {
    std::vector<BestToken> best;
    const Frame& frame = state_.frame();
    if (!row.transfer_src_index.empty() || row.decoded_tokens.size() < frame.gen_length)
      return best;
    for (std::size_t i = 0; i < frame.gen_length; ++i) {
      const std::int64_t token = row.decoded_tokens[i];
      const bool masked = frame.generated_tokens[i] == facts_.mask_token_id;
      if (!masked || token < 0 || token >= facts_.vocab_size) continue;
      best.push_back({static_cast<std::int64_t>(i), token, row.confidence[i]});
    }
    return best;
  }

  /// Sets transfer_src_index to transfer_index if the file leaves it out.
  static void fill_sources(SequenceDelta& row) {
    if (row.transfer_src_index.empty()) row.transfer_src_index = row.transfer_index;
  }

  void check_revoked(const JsonNode& node, const SequenceDelta& row) const {
    const Frame& frame = state_.frame();
    for (std::size_t i = 0; i < row.transfer_index.size() && i < row.transfer_src_index.size();
         ++i) {
      const auto at = static_cast<std::size_t>(row.transfer_index[i]);
      const auto source = static_cast<std::size_t>(row.transfer_src_index[i]);
      if (at >= frame.gen_length || source >= row.decoded_tokens.size())
        return;  // add_step() refuses
      if (row.decoded_tokens[source] != facts_.mask_token_id ||
          frame.generated_tokens[at] == facts_.mask_token_id) {
        continue;
      }
      const float sure = row.confidence[source];
      if (sure == kRevokedConfidence || std::isinf(sure) || std::isnan(sure)) continue;
      node.complain(fmt::format(
          "confidence of the mask that comes back at position {}: expected 1 or null, got {}", at,
          sure));
    }
  }

  void note(const std::string& text) {
    if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(text);
  }

  const JsonNode& record_;
  const ImportedTrajectory& facts_;
  std::vector<std::string>& notes_;
  ImportState state_;
};

/// The value from whichever of the two places has it.
const JsonNode& holder_of(const JsonNode& root, const JsonNode& record, const char* key) {
  return given(record, key) ? record : root;
}

/// Values of the file around its records hold for each record.
void check_around(const JsonNode& root, const std::vector<JsonNode>& records, const char* key,
                  std::int64_t least, std::int64_t most) {
  if (!given(root, key)) return;
  const std::int64_t value = root.member(key).integer(least, most);
  for (const JsonNode& record : records) {
    if (!given(record, key) || record.member(key).integer(least, most) == value) continue;
    record.member(key).refuse(fmt::format("{}, as the file says around its sequences", value));
  }
}

/// Without a given length: one block, which is d2Cache's default.
std::int64_t block_length_of(const JsonNode& root, const JsonNode& record,
                             const ImportFacts& facts) {
  const JsonNode& holder = holder_of(root, record, "block_length");
  if (!given(holder, "block_length") && !facts.block_length) {
    const auto count = record.member("initial_frame").member("generated_tokens").elements().size();
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(count));
  }
  return agreed(facts.block_length, "--block-length", holder, "block_length", 1, kLargestLength);
}

void check_frames_header(const JsonNode& root) {
  if (!root.has("format")) return;
  const JsonNode format = root.member("format");
  if (format.text() != "blockscope-frames") format.refuse("\"blockscope-frames\"");
  const JsonNode version = root.member("format_version");
  if (version.integer(0) != kFramesVersion) {
    version.refuse(fmt::format("{} (the version this build reads)", kFramesVersion));
  }
}

}  // namespace

ImportedTrajectory parse_frames(std::string_view text, const std::string& name,
                                const ImportFacts& facts) {
  const nlohmann::json document = parse_document(text, name, kFramesDepth);
  const JsonNode root(document, name, refuse_trajectory);
  check_frames_header(root);
  std::vector<JsonNode> records;
  if (root.has("sequences")) {
    records = root.member("sequences").elements();
    if (records.empty()) root.member("sequences").refuse("at least one sequence");
  } else {
    records.push_back(root);
  }
  for (const JsonNode& record : records) record.member("initial_frame").member("prompts");
  check_around(root, records, "block_length", 1, kLargestLength);
  check_around(root, records, "mask_token_id", -1, kLargestLength - 1);
  ImportedTrajectory trajectory;
  trajectory.tool = "d2Cache";
  trajectory.vocab_size =
      agreed(facts.vocab_size, "--vocab-size", root, "vocab_size", 1, kLargestLength);
  trajectory.mask_token_id =
      agreed(facts.mask_token_id, "--mask-token-id", holder_of(root, records[0], "mask_token_id"),
             "mask_token_id", -1, kLargestLength - 1);
  trajectory.block_causal = facts.block_causal;
  if (given(root, "bidirectional")) {
    const bool bidirectional = root.member("bidirectional").boolean();
    if (bidirectional && facts.block_causal) {
      root.member("bidirectional").refuse("false, as --block-causal says");
    }
    trajectory.block_causal = !bidirectional;
  }
  trajectory.block_length = block_length_of(root, records[0], facts);
  std::int64_t longest = 0;
  for (const JsonNode& record : records) {
    if (block_length_of(root, record, facts) != trajectory.block_length) {
      record.complain(
          fmt::format("block_length: expected {}, as in the first sequence: a trace has one",
                      trajectory.block_length));
    }
    const JsonNode& mask = holder_of(root, record, "mask_token_id");
    if (given(mask, "mask_token_id")) {
      agreed(trajectory.mask_token_id, "the first sequence", mask, "mask_token_id", -1,
             kLargestLength - 1);
    }
    trajectory.sequences.push_back(RecordReader(record, trajectory, trajectory.notes).read());
    const SequenceStart& start = trajectory.sequences.back().start;
    longest = std::max(longest, start.gen_length + static_cast<std::int64_t>(start.prompt.size()));
  }
  check_block_length(root, trajectory.block_length, longest);
  return trajectory;
}

}  // namespace blockscope
