#include "decode_record/interchange/import_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_round_line.h"
#include "decode_record/interchange/import_state.h"
#include "decode_record/json/json_document.h"
#include "decode_record/json/json_node.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kRoundsDepth = 4;
constexpr std::int64_t kLongestBlock = std::int64_t{1} << 16;
constexpr std::int64_t kMostCandidates = 1024;
constexpr std::int64_t kMostValues = std::int64_t{1} << 25;
constexpr std::size_t kMostNotes = 8;
constexpr std::int64_t kRowsOfKeyframe = 64;
// The least that a line costs, however few values it holds.
constexpr std::int64_t kLeastOfSequence = 64;
constexpr std::int64_t kLeastOfRound = 16;
constexpr const char* kBehind = "rounds after an answer's end: not kept";

std::string_view first_line(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
}

/// The state of a sequence while its lines are read.
struct OpenSequence {
  DraftedSequence sequence;
  std::optional<std::int64_t> gen_length;
  std::int64_t prompt_length = 0;
  bool stopped = false;   // at a stop token
  bool finished = false;  // the line of its end was read

  std::int64_t position() const {  // of the next round
    return sequence.rounds.empty() ? prompt_length : sequence.rounds.back().after();
  }
  std::int64_t& certain() {  // the token at position()
    return sequence.rounds.empty() ? sequence.first_token : sequence.rounds.back().next;
  }
  bool over() const { return stopped || (gen_length && position() >= prompt_length + *gen_length); }
};

class RoundsReader {
 public:
  RoundsReader(const std::string& name, const ImportFacts& facts) : name_(name), facts_(facts) {}

  ImportedRounds read(std::string_view text) {
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string place = fmt::format("{}:{}", name_, number);
      const nlohmann::json document = parse_document(line, place, kRoundsDepth);
      read_line(JsonNode(document, place, refuse_trajectory));
    }
    if (!has_header_) throw TrajectoryError(fmt::format("{}: file: expected JSON lines", name_));
    if (open_.empty()) {
      throw TrajectoryError(
          fmt::format("{}: expected a sequence (prompt_ids) after the header, got none", name_));
    }
    for (OpenSequence& open : open_) finish(open);
    return std::move(run_);
  }

 private:
  void read_line(const JsonNode& line) {
    if (!has_header_) return read_header(line);
    if (line.has("format")) line.member("format").complain("expected one header, got another one");
    if (line.has("drafted")) return read_round(line);
    if (line.has("prompt_ids")) return read_sequence(line);
    if (line.has("finish_reason")) return read_end(line);
    line.complain(
        "expected a sequence (prompt_ids), a round (drafted) or an end (finish_reason), got none "
        "of "
        "them");
  }

  void read_header(const JsonNode& line) {
    const JsonNode format = line.member("format");
    if (format.text() != kRoundsFormat) format.refuse(fmt::format("\"{}\"", kRoundsFormat));
    const JsonNode version = line.member("format_version");
    if (version.integer(0) != kRoundsVersion) {
      version.refuse(fmt::format("{} (the version this build reads)", kRoundsVersion));
    }
    run_.engine = line.member("engine").text();
    run_.vocab_size =
        agreed(facts_.vocab_size, "--vocab-size", line, "vocab_size", 1, kLargestLength);
    run_.block_length =
        agreed(facts_.block_length, "--block-length", line, "block_size", 1, kLongestBlock);
    if (run_.block_length > kLongestBlock) {
      throw UsageError(fmt::format("--block-length: expected at most {} positions, got {}",
                                   kLongestBlock, run_.block_length));
    }
    if (facts_.mask_token_id || given(line, "mask_token_id")) {
      run_.mask_token_id = agreed(facts_.mask_token_id, "--mask-token-id", line, "mask_token_id", 0,
                                  kLargestLength - 1);
    }
    if (given(line, "draft_candidates")) {
      run_.draft_candidates =
          line.member("draft_candidates").integer(0, std::min(run_.vocab_size, kMostCandidates));
    }
    if (given(line, "stop_token_ids")) {
      for (const JsonNode& id : line.member("stop_token_ids").elements()) {
        run_.stop_ids.push_back(read_id(id));
      }
    }
    ordered_json kept = ordered_json::object();
    for (const char* member : {"engine_version", "target", "draft"}) {
      if (given(line, member)) kept[member] = line.member(member).text();
    }
    run_.kept = kept.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    note_others(
        line, {"format", "format_version", "engine", "engine_version", "target", "draft",
               "vocab_size", "block_size", "mask_token_id", "draft_candidates", "stop_token_ids"});
    has_header_ = true;
  }

  void read_sequence(const JsonNode& line) {
    const JsonNode node = line.member("sequence");
    if (!places_.emplace(key_of(node), open_.size()).second) {
      node.refuse("a sequence that has no line yet");
    }
    OpenSequence& open = open_.emplace_back();
    SequenceStart& start = open.sequence.start;
    if (node.is_text()) start.name = node.text();
    if (given(line, "name")) start.name = line.member("name").text();
    for (const JsonNode& id : line.member("prompt_ids").elements()) {
      start.prompt.push_back(read_id(id));
    }
    open.prompt_length = static_cast<std::int64_t>(start.prompt.size());
    // The prefill's row has candidates, too.
    spend(line, std::max(open.prompt_length + run_.block_length * run_.draft_candidates,
                         kLeastOfSequence));
    if (given(line, "gen_length")) {
      open.gen_length =
          line.member("gen_length")
              .integer(1, std::max<std::int64_t>(1, kLargestLength - open.prompt_length));
      spend(line, *open.gen_length);
    }
    if (given(line, "first_token")) open.sequence.first_token = read_id(line.member("first_token"));
    open.sequence.first_confidence = read_probability(line, "first_confidence");
    note_others(
        line, {"sequence", "name", "prompt_ids", "gen_length", "first_token", "first_confidence"});
    if (stops(open.sequence.first_token)) open.stopped = true;
  }

  void read_round(const JsonNode& line) {
    OpenSequence& open = sequence_of(line);
    if (open.over()) return note(kBehind);
    RoundRecord round;
    read_place(line, open, round);
    if (stops(round.token)) {
      open.stopped = true;
      return note(kBehind);
    }
    for (const JsonNode& id : line.member("drafted").elements()) {
      round.drafted.push_back(id.is_null() ? kUnknown : read_id(id));
    }
    const std::size_t count = round.drafted.size();
    if (std::cmp_greater_equal(count, run_.block_length)) {
      line.member("drafted").complain(
          fmt::format("expected at most {} tokens, one less than a block has, got {}",
                      run_.block_length - 1, count));
    }
    if (round.position + run_.block_length > kLargestLength) {
      line.complain(fmt::format("expected at most {} positions, got more", kLargestLength));
    }
    spend(line, std::max(run_.block_length * (1 + run_.draft_candidates), kLeastOfRound));
    read_decision(line, run_.vocab_size, round);
    read_columns(line, run_.vocab_size, round);
    read_candidates(line, run_.vocab_size, run_.draft_candidates, round);
    std::set<std::string> known = {"sequence",        "round",    "position", "token",
                                   "drafted",         "accepted", "next",     "target",
                                   "next_confidence", "draft_ns", "target_ns"};
    for (const RoundColumn& column : kRoundRanks) known.insert(column.name);
    for (const RoundColumn& column : kRoundValues) known.insert(column.name);
    known.insert(kCandidateColumns.begin(), kCandidateColumns.end());
    note_others(line, known);
    open.stopped = open.stopped || stops_in(open, round);
    open.sequence.rounds.push_back(std::move(round));
  }

  /// Reads where the round begins, and with which token.
  void read_place(const JsonNode& line, OpenSequence& open, RoundRecord& round) const {
    const auto number = static_cast<std::int64_t>(open.sequence.rounds.size());
    if (given(line, "round") && line.member("round").integer(0) != number) {
      line.member("round").refuse(fmt::format("{}, the sequence's next one", number));
    }
    round.position = open.position();
    if (given(line, "position") && line.member("position").integer(0) != round.position) {
      line.member("position")
          .refuse(fmt::format(
              "{}, {}", round.position,
              number == 0 ? "where the answer begins" : "where the round before it ended"));
    }
    std::int64_t& before = open.certain();
    if (!given(line, "token")) {
      if (before == kUnknown) {
        line.complain(
            "token: expected the certain token, because no earlier line gives it, got none");
      }
      round.token = before;
      return;
    }
    round.token = read_id(line.member("token"));
    if (before != kUnknown && before != round.token) {
      line.member("token").refuse(fmt::format("{}, the token that came before it", before));
    }
    before = round.token;
  }

  void read_end(const JsonNode& line) {
    OpenSequence& open = sequence_of(line);
    const JsonNode node = line.member("finish_reason");
    const auto reason = parse_finish_reason(node.text());
    if (!reason) node.refuse("unfinished, length, stop, replayed or interrupted");
    open.sequence.end.reason = *reason;
    if (given(line, "text")) open.sequence.end.text = line.member("text").text();
    note_others(line, {"sequence", "finish_reason", "text"});
    open.finished = true;
  }

  void finish(OpenSequence& open) {
    DraftedSequence& sequence = open.sequence;
    if (!open.finished && open.stopped) sequence.end.reason = FinishReason::stop;
    const std::int64_t decided =
        open.position() - open.prompt_length + (open.certain() == kUnknown ? 0 : 1);
    sequence.start.gen_length = open.gen_length.value_or(std::max<std::int64_t>(decided, 1));
    // Keyframes of the whole answer are stored at intervals of rows, so they limit the rows.
    const auto rows = 2 * static_cast<std::int64_t>(sequence.rounds.size()) + 1;
    if (sequence.start.gen_length > kMostValues / (1 + rows / kRowsOfKeyframe)) {
      throw TrajectoryError(fmt::format(
          "{}: sequence '{}': expected fewer rounds of an answer of {} positions, got {}", name_,
          sequence.start.name, sequence.start.gen_length, sequence.rounds.size()));
    }
    run_.sequences.push_back(std::move(sequence));
  }

  OpenSequence& sequence_of(const JsonNode& line) {
    const JsonNode node = line.member("sequence");
    const auto found = places_.find(key_of(node));
    if (found == places_.end()) node.refuse("a sequence whose line (prompt_ids) came before");
    OpenSequence& open = open_[found->second];
    if (open.finished) node.refuse("a sequence whose end (finish_reason) did not come yet");
    return open;
  }

  /// A name: a text or a number. The text "1" and the number 1 are different names.
  static std::string key_of(const JsonNode& node) {
    return node.is_text() ? "\"" + node.text() : std::to_string(node.integer(0));
  }

  std::int64_t read_id(const JsonNode& node) const {
    return read_known_token(node, run_.vocab_size);
  }

  bool stops(std::int64_t token) const {
    return token != kUnknown && std::ranges::find(run_.stop_ids, token) != run_.stop_ids.end();
  }

  /// A capture ends the same way: at a stop token among the round's certain tokens in the answer.
  bool stops_in(const OpenSequence& open, const RoundRecord& round) const {
    const auto inside = [&](std::int64_t position) {
      return !open.gen_length || position < open.prompt_length + *open.gen_length;
    };
    for (std::int64_t i = 0; i < round.accepted; ++i) {
      if (inside(round.position + 1 + i) && stops(round.drafted[static_cast<std::size_t>(i)])) {
        return true;
      }
    }
    return inside(round.after()) && stops(round.next);
  }

  /// A few bytes of a file must not fill a disk with rows.
  void spend(const JsonNode& line, std::int64_t values) {
    spent_ += values;
    if (spent_ <= kMostValues) return;
    line.complain(fmt::format(
        "expected at most {} values of prompts, answers and blocks in all, got more. HINT: divide "
        "the file by sequences; repack --merge joins their traces",
        kMostValues));
  }

  void note(const std::string& text) {
    if (std::ranges::find(run_.notes, text) == run_.notes.end()) run_.notes.push_back(text);
  }

  void note_others(const JsonNode& line, const std::set<std::string>& known) {
    for (const std::string& key : line.keys()) {
      if (run_.notes.size() >= kMostNotes) return;
      if (!known.contains(key)) note(fmt::format("{}: not kept", key));
    }
  }

  const std::string& name_;
  const ImportFacts& facts_;
  ImportedRounds run_;
  bool has_header_ = false;
  std::vector<OpenSequence> open_;             // in the order of their lines
  std::map<std::string, std::size_t> places_;  // of sequences in open_
  std::int64_t spent_ = 0;
};

}  // namespace

bool is_rounds(std::string_view text) {
  const std::string_view line = first_line(text);
  if (line.empty() || line.front() != '{' || !nlohmann::json::accept(line)) return false;
  const auto end = static_cast<std::size_t>(line.data() - text.data()) + line.size();
  return line.find(kRoundsFormat) != std::string_view::npos ||
         text.find_first_not_of(" \t\r\n", end) != std::string_view::npos;
}

ImportedRounds parse_rounds(std::string_view text, const std::string& name,
                            const ImportFacts& facts) {
  return RoundsReader(name, facts).read(text);
}

}  // namespace blockscope
