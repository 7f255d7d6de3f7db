// A recorded run, whose attention or hidden states replace those of another run at the same step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/read/step_source.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// The values of a StepSource as tensors.
class PatchSource {
 public:
  /// Throws as StepSource does, like the functions below.
  PatchSource(const std::string& path, const PatchedModel& model, const std::vector<Field>& needed)
      : source_(path, "intervene", model, needed) {}

  /// Values of `field` at the same prompt, block and step: [heads, B, ...] of these model heads.
  at::Tensor of_heads(Field field, const SequencePass& pass, int64_t layer,
                      const at::Tensor& heads) const;
  /// The residual stream that enters a layer, [B, hidden_size] float32.
  at::Tensor hidden(const SequencePass& pass, int64_t layer) const;

 private:
  StepSource source_;
};

}  // namespace blockscope
