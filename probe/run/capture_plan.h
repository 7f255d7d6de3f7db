// What a capture will record, decided before the first pass. capture_cost.h says what it will cost.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/schema/trace_meta.h"
#include "probe/policies/policy_table.h"
#include "probe/record/recorder.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"

namespace blockscope {

struct RecordFlags {
  std::string level = "summary";
  std::string layers, heads, steps, blocks, sequences;  // index lists, empty: all
  int64_t set_size = 32;
  std::string set_normaliser = "prefix";
  std::string array_type = "bf16";
  std::string predictions = "masked";  // or "all"
  bool router = false;                 // record the experts that routers choose
  std::string maps;                    // --record-maps; empty: none
};
void add_record_flags(CLI::App& app, RecordFlags& flags);
/// Adds --predictions alone.
void add_predictions_flag(CLI::App& app, RecordFlags& flags);

/// The largest number of external keys that a run with these prompts can have.
int64_t longest_prefix(const std::vector<RunPrompt>& prompts, const DecodeOptions& decode);

/// Whether a step of the run can mask a decided position again, by its strategy or by a replay.
bool takes_tokens_back(const std::vector<RunPrompt>& prompts, const DecodeOptions& decode);

/// `longest`: the number of external keys of the run's longest sequence. Throws UsageError for a
/// level, index or type that does not fit the model.
RecorderOptions recorder_options(const RecordFlags& flags, const AttentionPolicy& policy,
                                 int64_t longest, const LoadedModel& model,
                                 const DecodeOptions& decode);

/// Throws UsageError for an option that the level would ignore.
void check_record_flags(const CLI::App& app, const RecordFlags& flags);

/// Throws UsageError if a filter names a sequence, block or step that the run can't have.
void check_filter(const RecorderOptions& recorder, const DecodeOptions& decode,
                  const std::vector<RunPrompt>& prompts);

}  // namespace blockscope
