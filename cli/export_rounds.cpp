// Rounds of a draft as JSON lines: docs/interchange.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "cli/export_formats.h"
#include "decode_record/base/error.h"
#include "decode_record/interchange/import_rounds.h"
#include "decode_record/json/json_text.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

ordered_json known_or_null(std::int64_t value) {
  return value == kUnknown ? ordered_json(nullptr) : ordered_json(value);
}

/// Sets a member if its value is known.
template <typename Value, typename ToJson>
void add_column(ordered_json& line, const char* name, const std::vector<Value>& values,
                const ToJson& to_json) {
  auto list = ordered_json::array();
  bool any = false;
  for (const Value value : values) {
    list.push_back(to_json(value));
    any = any || !list.back().is_null();
  }
  if (any) line[name] = std::move(list);
}

/// Sets a member [n, C] if any of its values is known. `tokens`: the candidates, also [n, C]; a
/// position without one of them is null.
template <typename Value, typename ToJson>
void add_rows(ordered_json& line, const char* name, const std::vector<Value>& values,
              std::span<const std::int64_t> tokens, std::size_t width, const ToJson& to_json) {
  auto rows = ordered_json::array();
  bool any = false;
  for (std::size_t first = 0; first < values.size(); first += width) {
    auto row = ordered_json::array();
    bool known = false;
    for (std::size_t i = first; i < first + width; ++i) {
      row.push_back(to_json(values[i]));
      known = known || !row.back().is_null();
    }
    known = known && std::ranges::find(tokens.subspan(first, width), kUnknown) ==
                         tokens.subspan(first, width).end();
    rows.push_back(known ? std::move(row) : ordered_json(nullptr));
    any = any || known;
  }
  if (any) line[name] = std::move(rows);
}

void add_number(ordered_json& line, const char* name, float value) {
  if (!std::isnan(value)) line[name] = json_number(value);
}

ordered_json member(const ordered_json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : ordered_json(nullptr);
}

ordered_json header(const TraceReader& reader) {
  const TraceMeta& meta = reader.info().meta;
  const auto parse = [](const std::string& text) {
    return ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  };
  const ordered_json model = parse(meta.model_json);
  const ordered_json run = parse(meta.run_json);
  const ordered_json kept = member(member(run, "imported"), "kept");
  const bool imported = member(model, "imported_from").is_string();
  const bool of_target = is_of_target(meta);
  ordered_json line = {{"format", kRoundsFormat}, {"format_version", kRoundsVersion}};
  line["engine"] = imported ? member(model, "imported_from") : ordered_json("Blockscope");
  const std::pair<const char*, ordered_json> names[] = {
      {"engine_version", imported ? member(kept, "engine_version") : member(run, "version")},
      {"target", imported ? member(kept, "target")
                          : member(of_target ? model : member(model, "target"), "requested")},
      {"draft", imported ? member(kept, "draft")
                         : member(of_target ? member(model, "draft") : model, "requested")}};
  for (const auto& [name, value] : names) {
    if (value.is_string()) line[name] = value;
  }
  line["vocab_size"] = meta.vocab_size;
  line["block_size"] = meta.block_length;
  line["mask_token_id"] = known_or_null(meta.mask_token_id);
  if (meta.draft_candidates > 0) line["draft_candidates"] = meta.draft_candidates;
  line["stop_token_ids"] = stop_ids(reader);
  return line;
}

ordered_json start_line(std::int64_t index, const DraftedSequence& sequence) {
  ordered_json line = {{"sequence", index},
                       {"name", sequence.start.name},
                       {"prompt_ids", sequence.start.prompt},
                       {"gen_length", sequence.start.gen_length}};
  if (sequence.first_token != kUnknown) line["first_token"] = sequence.first_token;
  add_number(line, "first_confidence", sequence.first_confidence);
  return line;
}

ordered_json round_line(std::int64_t index, std::size_t number, std::size_t candidates,
                        const RoundRecord& round) {
  auto drafted = ordered_json::array();
  for (const std::int64_t token : round.drafted) drafted.push_back(known_or_null(token));
  ordered_json line = {{"sequence", index},
                       {"round", number},
                       {"position", round.position},
                       {"token", known_or_null(round.token)},
                       {"drafted", drafted},
                       {"accepted", round.accepted},
                       {"next", known_or_null(round.next)}};
  add_column(line, "target", round.target, known_or_null);
  for (std::size_t i = 0; i < kRoundRanks.size(); ++i) {
    add_column(line, kRoundRanks[i].name, round.ranks[i], known_or_null);
  }
  for (std::size_t i = 0; i < kRoundValues.size(); ++i) {
    add_column(line, kRoundValues[i].name, round.values[i], json_number);
  }
  const RoundCandidates& known = round.candidates;
  add_rows(line, "candidate_token", known.tokens, known.tokens, candidates, known_or_null);
  add_rows(line, "candidate_probability", known.probabilities, known.tokens, candidates,
           json_number);
  add_rows(line, "candidate_score", known.scores, known.tokens, candidates, json_number);
  add_number(line, "next_confidence", round.next_confidence);
  if (round.draft_ns > 0) line["draft_ns"] = round.draft_ns;
  if (round.target_ns > 0) line["target_ns"] = round.target_ns;
  return line;
}

}  // namespace

void write_rounds_lines(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                        std::ostream& out) {
  if (!reader.info().meta.has_draft) {
    throw UsageError(fmt::format(
        "--format rounds: expected a trace of a draft, got {}. HINT: capture with --draft",
        reader.info().path));
  }
  const auto print = [&](const ordered_json& line) { out << json_text(line) << '\n'; };
  const auto candidates = static_cast<std::size_t>(reader.info().meta.draft_candidates);
  print(header(reader));
  for (const std::int64_t index : sequences) {
    const DraftedSequence sequence = read_rounds(reader, index);
    print(start_line(index, sequence));
    for (std::size_t i = 0; i < sequence.rounds.size(); ++i) {
      print(round_line(index, i, candidates, sequence.rounds[i]));
    }
    print({{"sequence", index},
           {"finish_reason", to_string(sequence.end.reason)},
           {"text", sequence.end.text}});
  }
}

}  // namespace blockscope
