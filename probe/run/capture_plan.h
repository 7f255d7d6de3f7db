// What a capture will record and what it will cost, decided before the first pass.
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

struct CaptureCost {
  int64_t file_bytes = 0;      // size of the trace if every block takes all its steps
  int64_t kv_cache_bytes = 0;  // KV cache of the largest batch
  int64_t recorder_bytes = 0;  // the recorder's rows and history for the largest batch
  int64_t history_bytes = 0;   // klass's distributions for the largest batch
};
/// `beside`: the other model of a drafted run. Its KV cache is as long as the recorded model's.
CaptureCost capture_cost(const RecorderOptions& recorder, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, int64_t batch_size,
                         const LoadedModel& model, const ModelConfig* beside = nullptr);

/// Throws UsageError for an option that the level would ignore.
void check_record_flags(const CLI::App& app, const RecordFlags& flags);

/// Throws UsageError if a filter names a sequence, block or step that the run can't have.
void check_filter(const RecorderOptions& recorder, const DecodeOptions& decode,
                  const std::vector<RunPrompt>& prompts);

/// The bytes of memory that this machine can still give to a process; 0: unknown.
int64_t available_memory();

/// Throws Error if cache, recorder and history need more than the `available` bytes of memory (0:
/// unknown). The weights are in memory already. `whose`: "memory", or "memory of" a device.
void check_memory(const CaptureCost& cost, int64_t weights, int64_t available,
                  const std::string& whose = "memory");

/// The same for a run whose weights and cache are on a device. Recorded data is on the host.
void check_memory_of(at::Device device, const CaptureCost& cost, int64_t weights);

/// "KV cache 1.0 MB, recorder 2.0 MB", and klass's history if there is one.
std::string memory_text(const CaptureCost& cost);

/// Throws TraceError if the file system of `path` has less free space than `bytes`.
void check_free_space(const std::string& path, int64_t bytes);

}  // namespace blockscope
