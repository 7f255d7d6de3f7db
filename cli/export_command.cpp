// `blockscope export`: the decoding trajectory of a trace for other tools. One sequence at a time
// is in memory. Numbers JSON has no word for (a confidence of -inf: never touched) become null.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "analysis/results/export_csv.h"
#include "cli/commands.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "command_line/text_output.h"
#include "decode_record/error.h"
#include "decode_record/text.h"
#include "decode_record/trace_reader.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

struct ExportFlags {
  std::string trace;
  std::string output;
  std::string format = "csv";
  std::string aborted;  // keep, drop, or empty: as the format's readers expect
  bool force = false;
};

/// The sequences to write. Readers of frames and step maps know nothing of the mark that
/// sequences bear which a kill cut and a resume decoded again; the other formats' rows carry it.
std::vector<std::int64_t> chosen_sequences(const TraceReader& reader, const ExportFlags& flags) {
  const bool marks = flags.format == "csv" || flags.format == "json";
  const bool keep = flags.aborted.empty() ? marks : flags.aborted == "keep";
  const std::vector<std::uint8_t> aborted = reader.aborted();
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i < aborted.size(); ++i) {
    if (keep || aborted[i] == 0) result.push_back(static_cast<std::int64_t>(i));
  }
  const auto left = static_cast<std::int64_t>(aborted.size() - result.size());
  if (left > 0) {
    note("note: {}: {} left out. HINT: --aborted keep writes them too\n", reader.info().path,
         plural(left, "aborted sequence"));
  }
  return result;
}

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json number(float value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json numbers(const std::vector<float>& values) {
  auto list = ordered_json::array();
  for (const float value : values) list.push_back(number(value));
  return list;
}

const char* finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::unfinished:
      return "unfinished";
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::replayed:
      return "replayed";
    case FinishReason::interrupted:
      return "interrupted";
  }
  return "unfinished";
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
  return {
      {"transfer_index", delta.transfer_index},  {"transfer_src_index", delta.transfer_src_index},
      {"insert_index", delta.insert_index},      {"insert_src_index", delta.insert_src_index},
      {"delete_index", delta.delete_index},      {"decoded_tokens", delta.decoded_tokens},
      {"confidence", numbers(delta.confidence)}, {"transfer_step", delta.transfer_step},
      {"insert_step", delta.insert_step}};
}

ordered_json sequence_head(const TraceReader& reader, std::int64_t index) {
  const SequenceInfo info = reader.sequence(index);
  return {{"sequence", index},
          {"name", info.name},
          {"prompt_hash", to_hex(info.prompt_hash)},
          {"finish_reason", finish_reason(info.finish_reason)},
          {"aborted", info.aborted},
          {"text", info.text}};
}

/// Row by row: what each pass of the sequence decided.
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
  item["score"] = number(info.score);
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

/// d2Cache's DecodeRecord: the initial Frame and one FrameDelta per denoising step.
ordered_json frames_json(const TraceReader& reader, std::int64_t index) {
  const DecodeRecord record = reader.decode_record(index);
  const Frame& first = record.initial_frame();
  ordered_json item = sequence_head(reader, index);
  item["block_length"] = record.block_length();
  item["mask_token_id"] = first.mask_token_id;
  item["initial_frame"] = {{"prompts", first.prompts.at(0)},
                           {"generated_tokens", first.generated_tokens},
                           {"confidence", numbers(first.confidence)},
                           {"steps", first.steps}};
  item["deltas"] = ordered_json::array();
  for (std::size_t t = 0; t < record.num_deltas(); ++t) {
    item["deltas"].push_back(delta_json(record.delta(t).rows.at(0)));
  }
  return item;
}

/// TraDo's view: the step at which each generated token was decided, -1 where a mask is left.
ordered_json step_map_json(const TraceReader& reader, std::int64_t index) {
  const Frame last = reader.decode_record(index).last_frame();
  ordered_json item = sequence_head(reader, index);
  item["prompt_ids"] = last.prompts.at(0);
  item["token_ids"] = last.generated_tokens;
  item["step_map"] = last.steps;
  return item;
}

using SequenceWriter = ordered_json (*)(const TraceReader&, std::int64_t);

void write_json(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                const std::string& format, SequenceWriter sequence, std::ostream& out) {
  out << "{\"format\": \"blockscope-" << format
      << "\", \"format_version\": 1, \"block_length\": " << reader.info().meta.block_length
      << ", \"mask_token_id\": " << reader.info().meta.mask_token_id << ", \"sequences\": [";
  const char* separator = "\n";
  for (const std::int64_t index : sequences) {
    out << std::exchange(separator, ",\n") << dump(sequence(reader, index));
  }
  out << "\n]}\n";
}

void write_format(const TraceReader& reader, const ExportFlags& flags, std::ostream& out) {
  const std::vector<std::int64_t> sequences = chosen_sequences(reader, flags);
  const std::map<std::string, SequenceWriter> writers = {
      {"trajectory", trajectory_json}, {"frames", frames_json}, {"step_map", step_map_json}};
  if (flags.format == "csv") {
    write_csv(reader, sequences, out);
  } else {
    const std::string name = flags.format == "json" ? "trajectory" : flags.format;
    write_json(reader, sequences, name, writers.at(name), out);
  }
}

void run_export(const ExportFlags& flags) {
  const TraceReader reader(flags.trace);
  const auto write = [&](std::ostream& out) { write_format(reader, flags, out); };
  if (flags.output.empty()) return print_text(write);
  const InterruptGuard guard;  // before the output: a signal must not leave half of it behind
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
  command
      ->add_option("--format", flags->format,
                   "csv, json: what each pass decided; frames: d2Cache's initial frame and deltas; "
                   "step_map: TraDo's step per generated token")
      ->check(CLI::IsMember({"csv", "json", "frames", "step_map"}))
      ->capture_default_str();
  command
      ->add_option("--aborted", flags->aborted,
                   "keep or drop sequences that a kill cut and a resume decoded again (default: "
                   "keep them, marked, in csv and json; drop them in frames and step_map)")
      ->check(CLI::IsMember({"keep", "drop"}));
  command->add_option("-o,--output", flags->output, "File (default, and -: standard output)");
  command->add_flag("--force", flags->force, "Replace an existing output");
  command->footer("Example: blockscope export run.h5 --format step_map -o run.json");
  command->callback([flags, command] {
    const bool file = !flags->output.empty() && flags->output != kStandardOutput;
    refuse_idle(*command, "--force", file, "a file as --output");
    run_export(*flags);
  });
}

}  // namespace blockscope
