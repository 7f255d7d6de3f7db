// A recorded run, whose attention or hidden states replace those of another run at the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// The sizes of the model that a trace must agree with.
struct PatchedModel {
  int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, hidden_size = 0;
};

class PatchSource {
 public:
  /// Throws TraceError; UsageError if the trace's level lacks `needed`, or if its model has other
  /// sizes. Weights may differ: patching between checkpoints is what some users want.
  PatchSource(const std::string& path, const PatchedModel& model, const std::vector<Field>& needed);

  /// Values of `field` at the same prompt, block and step: [heads, B, ...] of these model heads.
  /// Throws UsageError if the trace has no such row, layer or head, or blocks of another length.
  at::Tensor of_heads(Field field, const SequencePass& pass, int64_t layer,
                      const at::Tensor& heads) const;
  /// The residual stream that enters a layer, [B, hidden_size] float32.
  at::Tensor hidden(const SequencePass& pass, int64_t layer) const;

 private:
  int64_t row_of(const SequencePass& pass) const;
  int64_t layer_slot(int64_t layer) const;
  /// Values of all recorded heads; refuses a row that was computed in part.
  std::vector<float> computed_values(Field field, const SequencePass& pass, int64_t layer) const;
  [[noreturn]] void refuse(const std::string& why) const;

  TraceReader trace_;
  std::map<std::vector<int64_t>, int64_t> sequences_;                  // by prompt
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> recorded_;  // (sequence, block start,
                                                                       // step) -> row
};

}  // namespace blockscope
