// See repack.h: checks the inputs, makes the output's header and its file.
#include "decode_record/repack/repack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "decode_record/base/text.h"
#include "decode_record/compare/given_once.h"
#include "decode_record/files/command_files.h"
#include "decode_record/json/json_text.h"
#include "decode_record/read/raw_trace.h"
#include "decode_record/repack/repack_copy.h"
#include "decode_record/schema/trace_header.h"
#include "decode_record/write/trace_file.h"

namespace blockscope {

namespace {

namespace fs = std::filesystem;

std::vector<std::byte> whole(const RawTrace& trace, Field field) {
  return trace.read(field, 0, static_cast<std::int64_t>(trace.dataset(field).extent[0]));
}

void check_inputs(const RawTraces& traces, const RepackOptions& options) {
  const RawTrace& first = *traces.front();
  GivenOnce given;
  for (const auto& trace : traces) {
    if (!trace->complete() && !options.repair) {
      throw UsageError(
          fmt::format("{}: expected a trace whose run ended, got an unfinished one. "
                      "HINT: pass --repair to keep its committed rows",
                      trace->path()));
    }
    if (traces.size() == 1) return;
    check_same_layout(trace->meta(), first.meta(), trace->path(), first.path());
    const bool same = trace->meta().model_json == first.meta().model_json &&
                      whole(*trace, Field::token_bytes) == whole(first, Field::token_bytes);
    if (!same) {
      throw UsageError(
          fmt::format("{}: expected the model and vocabulary of {}, got others. HINT: "
                      "only files of one run can be merged",
                      trace->path(), first.path()));
    }
    given.add(*trace);
  }
}

std::string repacked_run_json(const RawTraces& traces, const RepackOptions& options) {
  auto run = nlohmann::ordered_json::parse(traces.front()->meta().run_json);
  auto inputs = nlohmann::ordered_json::array();
  for (const auto& trace : traces) {
    inputs.push_back({{"file", fs::path(trace->path()).filename().string()},
                      {"rows", trace->length(Axis::row)},
                      {"sequences", trace->length(Axis::sequence)},
                      {"complete", trace->complete()}});
    const WholeRows& whole = trace->whole();
    if (whole.all()) continue;
    inputs.back()["lost"] = {{"committed_rows", whole.committed_rows},
                             {"committed_sequences", whole.committed_sequences},
                             {"cut_sequences", std::ranges::count(whole.cut, true)},
                             {"why", whole.why}};
  }
  run["repacked"] = {{"inputs", inputs}, {"deflate", options.deflate}, {"repair", options.repair}};
  return json_text(run);
}

TraceMeta output_meta(const RawTraces& traces, const RepackOptions& options) {
  const RawTrace& first = *traces.front();
  TraceMeta meta = first.meta();
  meta.format_version = version_of(meta);
  meta.run_json = repacked_run_json(traces, options);
  const auto offsets =
      first.read_integers(Field::token_offset, 0,
                          static_cast<std::int64_t>(first.dataset(Field::token_offset).extent[0]));
  const auto bytes = whole(first, Field::token_bytes);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t end = offsets[i + 1];
    if (offsets[i] < 0 || end < offsets[i] || end > static_cast<std::int64_t>(bytes.size())) {
      throw CorruptTrace(
          fmt::format("{}:/tokenizer/piece_offset: element {} lies outside the {} "
                      "bytes of the pieces",
                      first.path(), i + 1, bytes.size()));
    }
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    meta.pieces.emplace_back(text + offsets[i], text + end);
  }
  return meta;
}

/// Whether another file can show the trace's arrays: they are in the trace's own file, without
/// extra rows.
bool can_be_shown(const RawTrace& trace) {
  if (trace.meta().format_version != version_of(trace.meta()))
    return false;  // has other dataset names
  return std::ranges::all_of(kDatasets, [&](const DatasetSpec& spec) {
    if (!trace.has(spec.field) || !is_virtual(spec)) return true;
    const h5::Dataset& dataset = trace.dataset(spec.field);
    return dataset.parts.empty() && std::cmp_equal(dataset.extent[0], trace.length(spec.axes[0]));
  });
}

/// The inputs as a virtual output names them; empty if their arrays must be copied.
std::vector<VirtualSource> virtual_sources(const RawTraces& traces, const std::string& output,
                                           const RepackOptions& options) {
  const bool can = traces.size() > 1 && options.deflate == 0 && !options.copy && !options.repair &&
                   std::ranges::all_of(traces, [](const auto& t) { return can_be_shown(*t); });
  if (!can) return {};
  const fs::path folder = fs::absolute(output).parent_path();
  std::vector<VirtualSource> sources;
  for (const auto& trace : traces) {
    VirtualSource& source = sources.emplace_back();
    source.file = fs::absolute(trace->path()).lexically_proximate(folder).string();
    for (std::size_t i = 0; i < source.lengths.size(); ++i) {
      source.lengths[i] = trace->length(static_cast<Axis>(i));
    }
  }
  return sources;
}

std::unique_ptr<RawTrace> open_input(const std::string& path, const RepackOptions& options) {
  if (!options.repair) return std::make_unique<RawTrace>(path);
  const bool live = TraceFile::has_writer(existing_trace(path));
  auto trace = std::make_unique<RawTrace>(path, RawTrace::Opening::salvage,
                                          live ? Writer::maybe : Writer::none);
  const WholeRows& whole = trace->whole();
  if (whole.committed_rows > 0 && whole.rows == 0) {
    throw CorruptTrace(fmt::format("{}: none of {} is whole: {}", trace->path(),
                                   plural(whole.committed_rows, "committed row"), whole.why));
  }
  return trace;
}

std::vector<RepackLoss> losses(const RawTraces& traces) {
  std::vector<RepackLoss> result;
  for (const auto& trace : traces) {
    const WholeRows& whole = trace->whole();
    if (whole.all()) continue;
    result.push_back({trace->path(), whole.rows, whole.committed_rows, whole.sequences,
                      whole.committed_sequences, std::ranges::count(whole.cut, true), whole.why});
  }
  return result;
}

}  // namespace

RepackResult repack_traces(const std::vector<std::string>& inputs, const std::string& output,
                           const RepackOptions& options) {
  if (inputs.empty()) throw UsageError("repack: expected at least one trace, got none");
  RawTraces traces;
  for (const std::string& input : inputs) traces.push_back(open_input(input, options));
  CommandFiles files;
  for (const auto& trace : traces) files.reads_trace(trace->path());
  OutputFile file = files.open(output, options.force);
  check_inputs(traces, options);

  const std::vector<VirtualSource> sources = virtual_sources(traces, output, options);
  TraceFile made =
      TraceFile::create_in(file, output_meta(traces, options), options.deflate, sources);
  RepackResult result = copy_traces(traces, made, !sources.empty(), options);
  made.trim();
  made.close();
  file.sync();
  file.commit();
  for (const auto& trace : traces) {
    result.bytes_before += static_cast<std::int64_t>(trace->file_bytes());
  }
  result.lost = losses(traces);
  result.is_virtual = !sources.empty();
  result.bytes_after = static_cast<std::int64_t>(fs::file_size(output));
  return result;
}

}  // namespace blockscope
