// A recorded run, whose values at a step take the place of those of another run at the same step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The sizes of the model that a trace must agree with; -1: not known.
struct PatchedModel {
  std::int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, hidden_size = 0;
};

/// The step of the run that gets the values.
struct SoughtStep {
  std::int64_t sequence = 0;  ///< of that run, for messages
  const std::vector<std::int64_t>& prompt;
  std::int64_t block_start = 0, block_length = 0, step = 0;
};

class StepSource {
 public:
  /// `who` begins each message. Throws TraceError; UsageError if the trace's level lacks `needed`,
  /// and what check_model() throws.
  StepSource(const std::string& path, std::string who, const PatchedModel& model,
             const std::vector<Field>& needed);

  /// Throws UsageError if the trace's model has other sizes. Weights may differ: patching between
  /// checkpoints is what some users want.
  void check_model(const PatchedModel& model) const;

  /// Values of `field` at the same prompt, block and step: [heads, B, ...] of these model heads.
  /// Throws UsageError if the trace has no such row, layer or head, blocks of another length, or a
  /// row that was computed in part; CorruptTrace for values that no pass can have.
  std::vector<float> of_heads(Field field, const SoughtStep& step, std::int64_t layer,
                              const std::vector<std::int64_t>& heads) const;
  /// The residual stream that enters a layer, [B, hidden_size].
  std::vector<float> hidden(const SoughtStep& step, std::int64_t layer) const;

  const TraceInfo& info() const { return trace_.info(); }

 private:
  std::int64_t row_of(const SoughtStep& step) const;
  std::int64_t layer_slot(std::int64_t layer) const;
  /// The chosen ones of `all` [groups, B, ...], where a group is a head.
  std::vector<float> chosen(Field field, std::int64_t row, std::int64_t layer,
                            const std::vector<float>& all, const std::vector<std::size_t>& groups,
                            std::size_t num_groups) const;
  [[noreturn]] void refuse(const std::string& why) const;

  TraceReader trace_;
  std::string who_;
  std::map<std::vector<std::int64_t>, std::int64_t> sequences_;  // by prompt
  // (sequence, block start, step) -> row
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> recorded_;
};

}  // namespace blockscope
