// `blockscope export`: the decoding trajectory of a trace for other tools. One sequence at a time
// is in memory. Numbers that JSON can't hold become null, such as a confidence of -inf (never
// touched). The formats of other tools are in export_frames.cpp, export_klass.cpp and
// export_rounds.cpp.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "analysis/results/export_csv.h"
#include "cli/commands.h"
#include "cli/export_formats.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "command_line/text_output.h"
#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/base/text.h"
#include "decode_record/json/json_text.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

struct ExportFlags {
  std::string trace;
  std::string output;
  std::string format = "csv";
  std::string sequences;  // an index list, empty: all
  std::string aborted;    // keep, drop, or empty: as the format's readers expect
  bool force = false;
};

/// The sequences to write. csv and json mark aborted sequences, which a kill cut and a resume
/// decoded again. Readers of the other formats know no such mark.
std::vector<std::int64_t> chosen_sequences(const TraceReader& reader, const ExportFlags& flags) {
  const bool marks = flags.format == "csv" || flags.format == "json";
  const bool keep = flags.aborted.empty() ? marks : flags.aborted == "keep";
  const std::vector<std::uint8_t> aborted = reader.aborted();
  std::vector<std::int64_t> asked =
      parse_index_set(flags.sequences, "--sequence", 0, static_cast<std::int64_t>(aborted.size()));
  if (flags.sequences.empty()) {
    asked.resize(aborted.size());
    std::iota(asked.begin(), asked.end(), std::int64_t{0});
  }
  std::vector<std::int64_t> result;
  for (const std::int64_t i : asked) {
    if (keep || aborted[static_cast<std::size_t>(i)] == 0) result.push_back(i);
  }
  const auto left = static_cast<std::int64_t>(asked.size() - result.size());
  if (left > 0) {
    note("note: {}: {} left out. HINT: --aborted keep writes them too\n", reader.info().path,
         plural(left, "aborted sequence"));
  }
  return result;
}

const char* pass_kind(std::uint8_t kind) {
  switch (static_cast<PassKind>(kind)) {
    case PassKind::prefill:
      return "prefill";
    case PassKind::denoise:
      return "denoise";
    case PassKind::commit:
      return "commit";
  }
  return "commit";
}

std::string csv_confidence(const SequenceDelta& delta, std::size_t source) {
  return source < delta.confidence.size() ? fmt::format("{:.9g}", delta.confidence[source]) : "";
}

void write_csv_delta(std::ostream& out, const std::string& prefix, const SequenceDelta& delta,
                     bool aborted) {
  const int mark = aborted ? 1 : 0;
  for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
    const auto source = static_cast<std::size_t>(
        delta.transfer_src_index.empty() ? delta.transfer_index[i] : delta.transfer_src_index[i]);
    out << prefix
        << fmt::format("transfer,{},{},{},{},{}\n", delta.transfer_index[i],
                       delta.decoded_tokens.at(source), csv_confidence(delta, source),
                       delta.transfer_step.at(i), mark);
  }
  for (std::size_t i = 0; i < delta.insert_index.size(); ++i) {
    const auto source = static_cast<std::size_t>(delta.insert_src_index.at(i));
    out << prefix
        << fmt::format("insert,{},{},{},{},{}\n", delta.insert_index[i],
                       delta.decoded_tokens.at(source), csv_confidence(delta, source),
                       delta.insert_step.at(i), mark);
  }
  for (const std::int64_t position : delta.delete_index) {
    out << prefix << fmt::format("delete,{},,,,{}\n", position, mark);
  }
}

ordered_json delta_json(const SequenceDelta& delta) {
  return {{"transfer_index", delta.transfer_index},
          {"transfer_src_index", delta.transfer_src_index},
          {"insert_index", delta.insert_index},
          {"insert_src_index", delta.insert_src_index},
          {"delete_index", delta.delete_index},
          {"decoded_tokens", delta.decoded_tokens},
          {"confidence", json_numbers(delta.confidence)},
          {"transfer_step", delta.transfer_step},
          {"insert_step", delta.insert_step}};
}

/// What each pass of the sequence decided, row by row.
void write_csv(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
               std::ostream& out) {
  out << "sequence,name,row,pass,block,step,action,position,token,confidence,decoded_step,aborted"
         "\n";
  for (const std::int64_t index : sequences) {
    const SequenceInfo info = reader.sequence(index);
    const std::string name = csv_field(info.name);
    for (const std::int64_t row : reader.rows_of(index)) {
      const StepColumns step = reader.steps(row, 1);
      const std::string prefix = fmt::format("{},{},{},{},{},{},", index, name, row, step.pass[0],
                                             step.block[0], step.step[0]);
      for (const SequenceDelta& delta : reader.delta(row).rows) {
        write_csv_delta(out, prefix, delta, info.aborted);
      }
    }
  }
}

ordered_json trajectory_json(const TraceReader& reader, std::int64_t index) {
  ordered_json item = sequence_head(reader, index);
  const SequenceInfo info = reader.sequence(index);
  item["prompt"] = info.prompt;
  item["gen_length"] = info.gen_length;
  item["answer"] = info.answer;
  item["metric"] = info.metric;
  item["score"] = json_number(info.score);
  item["rows"] = ordered_json::array();
  for (const std::int64_t row : reader.rows_of(index)) {
    const StepColumns step = reader.steps(row, 1);
    ordered_json entry = {{"row", row},
                          {"pass", step.pass[0]},
                          {"kind", pass_kind(step.kind[0])},
                          {"block", step.block[0]},
                          {"block_start", step.block_start[0]},
                          {"step", step.step[0]},
                          {"context_length", step.context_length[0]},
                          {"masks_left", step.masks_left[0]},
                          {"pass_time_ns", step.pass_time_ns[0]}};
    for (const SequenceDelta& delta : reader.delta(row).rows) {
      if (!delta.empty()) entry["delta"] = delta_json(delta);
    }
    item["rows"].push_back(std::move(entry));
  }
  return item;
}

}  // namespace

ordered_json json_number(float value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json json_numbers(const std::vector<float>& values) {
  auto list = ordered_json::array();
  for (const float value : values) list.push_back(json_number(value));
  return list;
}

ordered_json sequence_head(const TraceReader& reader, std::int64_t index) {
  const SequenceInfo info = reader.sequence(index);
  return {{"sequence", index},
          {"name", info.name},
          {"prompt_hash", to_hex(info.prompt_hash)},
          {"finish_reason", to_string(info.finish_reason)},
          {"aborted", info.aborted},
          {"text", info.text}};
}

namespace {

using SequenceWriter = ordered_json (*)(const TraceReader&, std::int64_t);

void write_json(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                const std::string& format, SequenceWriter sequence, std::ostream& out) {
  const TraceMeta& meta = reader.info().meta;
  // 2: steps of step_map count from 1, and frames have d2Cache's own form.
  const int version = format == "trajectory" ? 1 : 2;
  ordered_json head = {{"format", "blockscope-" + format},
                       {"format_version", version},
                       {"block_length", meta.block_length},
                       {"mask_token_id", meta.mask_token_id}};
  if (format == "frames") {
    head["vocab_size"] = meta.vocab_size;
    head["bidirectional"] = meta.bidirectional;
  }
  const std::string text = json_text(head);
  out << text.substr(0, text.size() - 1) << ",\"sequences\":[";
  const char* separator = "\n";
  for (const std::int64_t index : sequences) {
    out << std::exchange(separator, ",\n") << json_text(sequence(reader, index));
  }
  out << "\n]}\n";
}

/// The bare array of one sequence's steps, as KLASS writes it.
void write_klass(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                 std::ostream& out) {
  if (sequences.size() != 1) {
    throw UsageError(
        fmt::format("--format klass: expected one sequence, because a file of KLASS holds one, got "
                    "{}. HINT: --sequence 0",
                    sequences.size()));
  }
  out << "[";
  const char* separator = "\n";
  for (const ordered_json& step : klass_json(reader, sequences.front())) {
    out << std::exchange(separator, ",\n") << json_text(step);
  }
  out << "\n]\n";
}

void write_format(const TraceReader& reader, const ExportFlags& flags, std::ostream& out) {
  const std::vector<std::int64_t> sequences = chosen_sequences(reader, flags);
  const std::map<std::string, SequenceWriter> writers = {
      {"trajectory", trajectory_json}, {"frames", frames_json}, {"step_map", step_map_json}};
  if (flags.format == "csv") {
    write_csv(reader, sequences, out);
  } else if (flags.format == "klass") {
    write_klass(reader, sequences, out);
  } else if (flags.format == "rounds") {
    write_rounds_lines(reader, sequences, out);
  } else {
    const std::string name = flags.format == "json" ? "trajectory" : flags.format;
    write_json(reader, sequences, name, writers.at(name), out);
  }
}

void run_export(const ExportFlags& flags) {
  const TraceReader reader(flags.trace);
  const auto write = [&](std::ostream& out) { write_format(reader, flags, out); };
  if (flags.output.empty()) return print_text(write);
  const InterruptGuard guard;  // before the output: a signal must not leave half of it
  CommandFiles files;
  files.reads_trace(reader.info().path);
  TextOutput output(files, flags.output, flags.force);
  output.write(write);
  InterruptGuard::check();
  output.commit();
}

}  // namespace

void add_export_command(CLI::App& app) {
  auto* command = app.add_subcommand("export", "Write the decoding trajectory for other tools");
  auto flags = std::make_shared<ExportFlags>();
  command->add_option("trace", flags->trace, "Trace file, finished or .partial")->required();
  command->add_option("--format", flags->format, "Write this format (explained below)")
      ->check(CLI::IsMember({"csv", "json", "frames", "step_map", "klass", "rounds"}))
      ->capture_default_str();
  command->add_option("--sequence", flags->sequences, "Write only these sequences, such as 0-3,7");
  command
      ->add_option("--aborted", flags->aborted,
                   "Keep or drop aborted sequences (default: keep in csv and json, drop elsewhere)")
      ->check(CLI::IsMember({"keep", "drop"}));
  command->add_option("-o,--output", flags->output,
                      "Write to this file (default and -: standard output)");
  command->add_flag("--force", flags->force, "Replace an existing output");
  command->footer(
      "Formats:\n"
      "  csv, json  what each pass decided; aborted sequences are marked\n"
      "  frames     d2Cache's initial frame and deltas\n"
      "  step_map   TraDo's step of each generated token\n"
      "  klass      KLASS's --save_steps of one sequence\n"
      "  rounds     the rounds of a draft, as JSON lines\n"
      "An aborted sequence was cut by a kill and decoded again by --resume.\n"
      "Example: blockscope export run.h5 --format step_map -o run.json\n"
      "`blockscope import` reads frames, klass and rounds.");
  command->callback([flags, command] {
    const bool file = !flags->output.empty() && flags->output != kStandardOutput;
    refuse_idle(*command, "--force", file, "a file as --output");
    run_export(*flags);
  });
}

}  // namespace blockscope
