// What a capture will cost in memory and on disk, forecast before the first pass.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "probe/record/recorder_options.h"
#include "probe/run/run_prompts.h"

namespace blockscope {

struct CaptureCost {
  int64_t file_bytes = 0;      // size of the trace if every block takes all its steps
  int64_t forecast_steps = 0;  // file_bytes counts this many for a block, which may take more; 0:
                               // none takes more
  int64_t kv_cache_bytes = 0;  // KV cache of the largest batch
  int64_t recorder_bytes = 0;  // the recorder's rows and history for the largest batch
  int64_t history_bytes = 0;   // klass's distributions for the largest batch
};
/// `other`: the other model of a drafted run. Its KV cache is as long as the recorded model's.
CaptureCost capture_cost(const RecorderOptions& recorder, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, int64_t batch_size,
                         const LoadedModel& model, const ModelConfig* other = nullptr);

/// "at most 12.1 MB", or "about" if blocks may take more steps than the forecast has.
std::string size_text(const CaptureCost& cost);

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
