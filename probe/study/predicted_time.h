// The time of a pass on paper: a roofline for each kernel, max(bytes / bandwidth, FLOP / rate),
// and the cost of its launch (Williams et al., doi 10.1145/1498765.1498785). It predicts Table 1
// and Fig. 3 of FlashBlock (arXiv 2602.05305) at sizes that this machine can't run.
// docs/design/0024-predicted-time.md has the formulas.
#pragma once

#include <cstdint>
#include <string>

#include "probe/checkpoint/model_config.h"
#include "probe/study/device_numbers.h"

namespace blockscope {

/// What is decoded: `batch` sequences, each with a block of `block_length` positions after
/// `context` tokens in the cache.
struct PredictedRun {
  const ModelConfig& config;
  const DeviceNumbers& device;
  std::string dtype;  // a key of DeviceNumbers::flops
  int64_t batch = 1;
  int64_t block_length = 1;
  double context = 0.0;
  int64_t devices = 1;  // each has a part of the heads, widths, vocabulary and experts
};

/// What one pass does beyond exact attention.
struct PassWork {
  double read = 0.0;               // cached positions whose keys and values are read
  double read_exact_layers = 0.0;  // the same in the first `exact_layers` layers
  int64_t exact_layers = 0;
  double scored = 0.0;     // cached positions whose keys are read again to choose
  double residual = 0.0;   // cached positions read again for the attention over unselected keys
  double head_rows = 0.0;  // positions of a block whose logits are computed; 0: no LM head
  bool pair = false;       // A_out and L_out are stored or merged, float32
};

/// Seconds of a pass, by part.
struct PassTime {
  double products = 0.0;   // of weights, without the LM head
  double attention = 0.0;  // and choosing keys
  double head = 0.0;       // LM head and choice of tokens
  double rest = 0.0;       // norms, activations, sums over devices, and all launches
  double total() const { return products + attention + head + rest; }
};

PassTime predicted_pass(const PredictedRun& run, const PassWork& work);

/// The bytes that one device needs: weights, KV cache, logits and the kept pair.
double predicted_memory(const PredictedRun& run);

/// The denoising steps of a block that read the prefix, if a block takes `steps` steps with even
/// shares and a pass reuses iff fewer than `tau` tokens were decided since the last pass that read,
/// that pass's own included (the released FlashBlock; its first step reads).
int64_t predicted_reading_steps(int64_t block_length, int64_t steps, int64_t tau);

}  // namespace blockscope
