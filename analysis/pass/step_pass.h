// One pass over one or more traces for any number of metrics. Every array is read once, and memory
// does not grow with the file.
//
// The calling thread reads. It and the workers call the metrics. Calls for one layer come from one
// thread at a time, block by block with ascending steps. Blocks have the order of list_blocks, even
// if a batch interleaves the rows of its sequences. Calls for different layers run at the same
// time. So a metric keeps its sums per layer and needs no locks. Its result does not depend on the
// number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/pass/array_view.h"
#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/schema/reuse_rule.h"

namespace blockscope {

/// Properties that all traces of one analysis must share. TraceGroup refuses others and names the
/// field and both values.
struct TraceShape : LayerSizes {
  std::int64_t hidden_size = 0;
  std::int64_t block_length = 0;
  std::int64_t set_size = 0;  ///< k; 0: no sets
  std::string model_digest;   ///< of the checkpoint; empty if the trace doesn't say
  /// The KV heads that these query heads use in any recorded layer, ascending.
  std::vector<std::int64_t> kv_heads_used_by(const std::vector<std::int64_t>& query_heads) const;
  ResultAxis layer_axis() const;
  ResultAxis head_axis() const;
  ResultAxis kv_head_axis() const;
};

TraceShape shape_of(const TraceMeta& meta);
/// Throws UsageError with the first field that differs, both values and both files.
void check_same_shape(const TraceShape& first, const std::string& first_path,
                      const TraceShape& other, const std::string& path);

/// One recorded denoising step in one recorded layer, as a metric sees it. Views are valid during
/// the call.
class StepView {
 public:
  virtual ~StepView() = default;
  virtual const StepRef& now() const = 0;
  /// The previous step of the same block. nullptr in a block's first recorded step and after a gap.
  virtual const StepRef* previous() const = 0;
  /// Step 1 of the block; nullptr if it was not recorded. At step 1 it is now().
  virtual const StepRef* first() const = 0;
  virtual std::size_t layer() const = 0;                    ///< recorded slot
  virtual std::span<const std::uint8_t> valid() const = 0;  ///< [B], 1: computed at this layer
  virtual std::int64_t num_valid() const = 0;
  /// The same for previous() and first(); empty if that step is nullptr.
  virtual std::span<const std::uint8_t> previous_valid() const = 0;
  virtual std::span<const std::uint8_t> first_valid() const = 0;

  /// Values of a field in Needs::fields. For datasets with a layer axis: this layer's part, without
  /// the row and layer axes (A_out: [H, B, D]), and without padding: D and the KV heads are the
  /// layer's own (LayerSizes). For others: the whole row. For /summary/reuse_error, with a layer
  /// axis that is not the first: [tau, H, 4] of this layer.
  virtual ArrayView now(Field field) const = 0;
  virtual ArrayView previous(Field field) const = 0;
  virtual ArrayView first(Field field) const = 0;
  // The rule of reuse must be in Needs::rules.
  /// Whether this step reuses, if every step of the block follows the rule.
  virtual bool reuses(const ReuseRule& rule) const = 0;
  /// Arrays of the last step of this block, up to this one, that reads the prefix by the rule.
  /// Empty if a gap hides that step.
  virtual ArrayView source(Field field, const ReuseRule& rule) const = 0;
  /// The step of these arrays; nullptr if a gap hides it.
  virtual const StepRef* source(const ReuseRule& rule) const = 0;
  /// [B], 1: that step computed the position at this layer; empty if there is no such step.
  virtual std::span<const std::uint8_t> source_valid(const ReuseRule& rule) const = 0;
};

/// The values that a metric needs.
struct Needs {
  std::vector<Field> fields;     ///< read for every recorded denoising step
  bool previous = false;         ///< previous(field) of these fields
  bool first = false;            ///< first(field)
  std::vector<ReuseRule> rules;  ///< source(field, rule) for these rules
};

class StepMetric {
 public:
  virtual ~StepMetric() = default;
  /// Called from one thread before the first row of each trace. Returns what the metric needs from
  /// this trace. Throws TraceError with the --record level that has the missing data.
  virtual Needs begin_trace(const TraceReader& trace, const TraceShape& shape) = 0;
  /// Called for every recorded denoising step and layer; see the rules at the top of this file.
  virtual void add(const StepView& step) = 0;
  /// Called from one thread for all blocks of a trace, recorded or not, before its rows (for
  /// counts).
  virtual void add_block(const BlockSteps& /*block*/) {}
  /// Called after the last trace.
  virtual MetricResult finish() = 0;
};

struct PassOptions {
  RowSelection rows;
  std::optional<std::vector<std::int64_t>> layers;  ///< the model's indices; unset: all recorded
  std::size_t threads = 0;                          ///< including the calling one; 0: one per core
  std::size_t memory_bytes = std::size_t{256} << 20;  ///< for the arrays in memory at one time
  /// Called now and then from the reading thread with the rows done and all rows. Returning false,
  /// or throwing InterruptedError, stops the pass with InterruptedError.
  std::function<bool(std::int64_t done, std::int64_t total)> progress;
};

/// Traces that are analysed together.
class TraceGroup {
 public:
  /// Opens all traces. Throws what TraceReader throws. Throws UsageError, with the field, both
  /// files and both values, if their models, recorded layers, heads or k differ. Also throws
  /// UsageError if two of them hold the same sequence of the same run, which would count twice: one
  /// file with two names, a copy, or a merged trace and one of its parts.
  explicit TraceGroup(const std::vector<std::string>& paths);
  const TraceShape& shape() const { return shape_; }
  std::size_t size() const { return traces_.size(); }
  const TraceReader& trace(std::size_t i) const { return traces_[i]; }

 private:
  std::vector<TraceReader> traces_;
  TraceShape shape_;
};

/// Runs all metrics over all traces of the group and returns their results in the same order. With
/// options.layers, arrays with a layer axis keep only those layers. Throws what the metrics and the
/// reader throw. Throws UsageError if a layer was not recorded, or if memory_bytes can't hold one
/// layer; the message says how much is needed.
std::vector<MetricResult> run_pass(const TraceGroup& traces,
                                   const std::vector<std::unique_ptr<StepMetric>>& metrics,
                                   const PassOptions& options = {});

}  // namespace blockscope
