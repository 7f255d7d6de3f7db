#include "probe/run/capture_resume.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "command_line/interrupt.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/schema/same_layout.h"
#include "probe/run/run_description.h"

namespace blockscope {
namespace {

constexpr std::chrono::seconds kLockPatience{5};

/// The settings of a model_json that decide what a run writes: each model's digest, the compute
/// type, and the kind of device.
nlohmann::json model_settings(const std::string& model_json) {
  const auto model = nlohmann::json::parse(model_json, nullptr, /*allow_exceptions=*/false);
  nlohmann::json settings = nlohmann::json::object();
  if (!model.is_object()) return settings;
  for (const char* key : {"digest", "compute_dtype"}) {
    if (model.contains(key)) settings[key] = model[key];
  }
  const std::string device = model.value("device", "cpu");
  settings["device"] = device.substr(0, device.find(':'));
  for (const std::string other : {"target", "draft"}) {
    const bool there = model.contains(other);
    settings[other + "_digest"] = there ? model[other].value("digest", "") : "";
  }
  return settings;
}

/// The settings of a run_json.
nlohmann::json run_settings(const std::string& run_json) {
  const auto run = nlohmann::json::parse(run_json, nullptr, /*allow_exceptions=*/false);
  nlohmann::json settings = nlohmann::json::object();
  if (!run.is_object()) return settings;
  for (const auto& [key, value] : run.items()) {
    if (is_setting(key)) settings[key] = value;
  }
  // Written only if there are any.
  settings.emplace("interventions", nlohmann::json::array());
  return settings;
}

/// Ignores keys that only the new run has: an older build did not write them.
void compare(const std::string& trace, const nlohmann::json& was, const nlohmann::json& is) {
  for (const auto& [key, value] : was.items()) {
    const nlohmann::json now = is.value(key, nlohmann::json());
    if (value == now) continue;
    throw UsageError(
        fmt::format("--resume: {}: {} was {}, and is {} now. HINT: give the options "
                    "of the run that was cut off, or another -o",
                    trace, key, value.dump(), now.dump()));
  }
}

}  // namespace

bool resumes(const CaptureTarget& target) {
  const std::string partial = target.output + ".partial";
  std::error_code error;
  return target.resume && std::filesystem::exists(partial, error) &&
         !(std::filesystem::is_regular_file(partial, error) &&
           std::filesystem::file_size(partial, error) == 0);
}

void discard_empty_partial(const CaptureTarget& target) {
  const std::string partial = target.output + ".partial";
  if (!target.resume || !std::filesystem::exists(partial)) return;
  note("note: {}: an empty file, no run to resume; starting anew\n", partial);
  std::filesystem::remove(partial);
}

void check_same_run(const std::string& trace, const TraceMeta& meta) {
  const TraceMeta before = TraceReader(trace).info().meta;
  compare(trace, {{"level", to_string(before.level)}}, {{"level", to_string(meta.level)}});
  compare(trace, model_settings(before.model_json), model_settings(meta.model_json));
  compare(trace, run_settings(before.run_json), run_settings(meta.run_json));
  check_same_layout(before, meta, trace);
}

namespace {

/// Waits a few seconds for a reader's lock before it gives up. A reader holds HDF5's lock while it
/// opens the file; a reader without SWMR holds it as long as the file is open.
TraceWriter resume_when_unlocked(const std::string& output, const TraceMeta& meta,
                                 ResumeState& state) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kLockPatience;
  bool told = false;
  while (true) {
    try {
      check_same_run(output + ".partial", meta);
      TraceMeta resumed = meta;  // keeps the draft's cost, which was measured once
      resumed.draft_cost = TraceReader(output + ".partial").info().meta.draft_cost;
      return TraceWriter::resume(output, resumed, state);
    } catch (const TraceLocked&) {
      if (Clock::now() >= deadline || InterruptGuard::signal() != 0) throw;
    }
    if (!told) {
      note("note: {}.partial: another process holds its lock; waiting up to {} s\n", output,
           kLockPatience.count());
    }
    told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

TraceWriter open_writer(const CaptureTarget& target, const TraceMeta& meta, ResumeState& state) {
  if (resumes(target)) return resume_when_unlocked(target.output, meta, state);
  TraceWriterOptions options;
  options.force = target.force;
  return TraceWriter(target.output, meta, options);
}

}  // namespace blockscope
