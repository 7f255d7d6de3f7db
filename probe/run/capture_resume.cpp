#include "probe/run/capture_resume.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <thread>

#include "command_line/interrupt.h"
#include "command_line/standard_streams.h"
#include "decode_record/error.h"
#include "decode_record/trace_reader.h"

namespace blockscope {
namespace {

constexpr std::chrono::seconds kLockPatience{5};

/// Of the models beside the recorded one in a drafted run's model_json, as a JSON object of its
/// own; "" where there is none.
std::string other_digests(const std::string& model_json) {
  const auto model = nlohmann::json::parse(model_json, nullptr, /*allow_exceptions=*/false);
  nlohmann::json digests;
  for (const std::string other : {"target", "draft"}) {
    const bool there = model.is_object() && model.contains(other);
    digests[other + "_digest"] = there ? model[other].value("digest", "") : "";
  }
  return digests.dump();
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
  note("note: {}: an empty file, no run to resume; starting afresh\n", partial);
  std::filesystem::remove(partial);
}

void check_same_run(const std::string& partial, const TraceMeta& meta) {
  const TraceMeta before = TraceReader(partial).info().meta;
  const auto compare = [&](const std::string& old_text, const std::string& new_text,
                           std::initializer_list<const char*> keys) {
    const auto was = nlohmann::json::parse(old_text, nullptr, /*allow_exceptions=*/false);
    const auto is = nlohmann::json::parse(new_text);
    for (const char* key : keys) {
      if (!was.is_object() || !was.contains(key)) continue;  // from a build that didn't say
      const nlohmann::json& old_value = was[key];
      const nlohmann::json new_value = is.value(key, nlohmann::json());
      if (old_value == new_value) continue;
      throw UsageError(
          fmt::format("--resume: {}: {} was {}, and is {} now. HINT: give the options "
                      "of the run that was cut, or another -o",
                      partial, key, old_value.dump(), new_value.dump()));
    }
  };
  if (before.level != meta.level) {
    throw UsageError(
        fmt::format("--resume: {}: level was {}, and is {} now. HINT: give the options "
                    "of the run that was cut, or another -o",
                    partial, to_string(before.level), to_string(meta.level)));
  }
  compare(before.model_json, meta.model_json, {"digest", "compute_dtype"});
  compare(other_digests(before.model_json), other_digests(meta.model_json),
          {"target_digest", "draft_digest"});
  compare(before.run_json, meta.run_json,
          {"decoding",       "policy",          "tau",
           "reuse_file",     "reuse_digest",    "k",
           "density",        "exact_layers",    "page",
           "per_block",      "policy_seed",     "strategy",
           "rank_by",        "quota",           "density_sigma",
           "kl_threshold",   "kl_history",      "threshold_back",
           "pc_lambda",      "pc_alpha",        "frequencies_digest",
           "cache",          "prompt_interval", "answer_interval",
           "transfer_ratio", "current_k",       "certainty_sigma",
           "rollout_p",      "inflate_window",  "as_released",
           "block_length",   "denoising_steps", "threshold",
           "eb_threshold",   "factor",          "sub_block_length",
           "temperature",    "top_k",           "top_p",
           "seed",           "stop_ids",        "batch_size",
           "shadow",         "replay",          "gen_length",
           "recorded_steps", "recorded_blocks", "recorded_sequences",
           "klass_choose",   "num_prompts",     "prompts_digest",
           "rank",           "world_size"});
}

namespace {

/// A reader holds HDF5's lock only while it opens the file, or as long as it lives when it opened
/// it without SWMR: waits a little before it gives up.
TraceWriter resume_when_unlocked(const std::string& output, const TraceMeta& meta,
                                 ResumeState& state) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kLockPatience;
  bool told = false;
  while (true) {
    try {
      check_same_run(output + ".partial", meta);
      TraceMeta resumed = meta;  // what a draft costs was measured once
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
