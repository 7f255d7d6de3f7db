// One pass over one or more traces that feeds any number of metrics: every array is read once,
// however many metrics want it, and memory does not grow with the file.
//
// The calling thread reads; it and workers call the metrics. Calls for one layer come block by
// block (in the order of list_blocks, also where a batch interleaves the rows of its sequences),
// steps ascending, and from one thread at a time; calls for different layers run at the same time.
// So a metric keeps its sums per layer and needs no locks, and its result does not depend on the
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

namespace blockscope {

/// What the traces of one analysis have in common; traces that differ in it are refused, naming the
/// field and both values (see TraceGroup).
struct TraceShape {
  std::int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0;  ///< of the model
  std::int64_t head_dim = 0, hidden_size = 0;
  std::vector<std::int64_t> layers, heads, kv_heads;  ///< recorded, the model's indices
  std::int64_t block_length = 0;
  std::int64_t set_size = 0;  ///< k; 0: no sets
  std::string model_digest;   ///< of the checkpoint; empty when the trace doesn't say
  ResultAxis layer_axis() const;
  ResultAxis head_axis() const;
  ResultAxis kv_head_axis() const;
};

TraceShape shape_of(const TraceMeta& meta);
/// Throws UsageError naming the first field that differs, both values and both files.
void check_same_shape(const TraceShape& first, const std::string& first_path,
                      const TraceShape& other, const std::string& path);

/// What a metric sees of one recorded denoising step in one recorded layer. Views are valid during
/// the call.
class StepView {
 public:
  virtual ~StepView() = default;
  virtual const StepRef& now() const = 0;
  /// The step before in the same block; nullptr in a block's first recorded step and behind a gap.
  virtual const StepRef* previous() const = 0;
  /// Step 1 of the block; nullptr when it was not recorded. In step 1 itself it is now().
  virtual const StepRef* first() const = 0;
  virtual std::size_t layer() const = 0;                    ///< recorded slot
  virtual std::span<const std::uint8_t> valid() const = 0;  ///< [B], 1: computed at this layer
  virtual std::int64_t num_valid() const = 0;
  /// The same of previous() and first(); empty when there is none.
  virtual std::span<const std::uint8_t> previous_valid() const = 0;
  virtual std::span<const std::uint8_t> first_valid() const = 0;

  /// Values of a field that the metric listed in fields(). Datasets with a layer axis: this layer's
  /// part, without the row and layer axes (A_out: [H, B, D]); others: the whole row.
  /// /summary/reuse_error, whose layer axis is not the first: [tau, H, 4] of this layer.
  virtual ArrayView now(Field field) const = 0;
  virtual ArrayView previous(Field field) const = 0;
  virtual ArrayView first(Field field) const = 0;
  /// The arrays of the last step of this block that the rule "recompute iff M >= tau" recomputed,
  /// this step included; empty when a gap hides it. tau as in Needs::taus.
  virtual ArrayView source(Field field, double tau) const = 0;
  /// The step of these arrays; nullptr when a gap hides it.
  virtual const StepRef* source(double tau) const = 0;
  /// [B], 1: that step computed the position at this layer; empty when there is none.
  virtual std::span<const std::uint8_t> source_valid(double tau) const = 0;
};

/// What a metric wants to be fed with.
struct Needs {
  std::vector<Field> fields;  ///< read for every recorded denoising step
  bool previous = false;      ///< previous(field) of these fields
  bool first = false;         ///< first(field)
  std::vector<double> taus;   ///< source(field, tau) for these tau
};

class StepMetric {
 public:
  virtual ~StepMetric() = default;
  /// Called before the first row of each trace, from one thread. Returns what the metric needs from
  /// this trace. Throws TraceError saying which --record level has what is missing.
  virtual Needs begin_trace(const TraceReader& trace, const TraceShape& shape) = 0;
  /// Every recorded denoising step, per layer; see the rules at the top of this file.
  virtual void add(const StepView& step) = 0;
  /// Blocks of this trace, recorded or not, from one thread, before its rows (for counts).
  virtual void add_block(const BlockSteps& /*block*/) {}
  /// After the last trace.
  virtual MetricResult finish() = 0;
};

struct PassOptions {
  RowSelection rows;
  std::optional<std::vector<std::int64_t>> layers;    ///< the model's indices; unset: all recorded
  std::size_t threads = 0;                            ///< the calling one included; 0: one per core
  std::size_t memory_bytes = std::size_t{256} << 20;  ///< for arrays held at one time
  /// Called now and then from the reading thread with rows done and rows in all; false stops the
  /// pass with InterruptedError, and so does throwing one.
  std::function<bool(std::int64_t done, std::int64_t total)> progress;
};

/// Traces that are analysed together.
class TraceGroup {
 public:
  /// Opens all. Throws what TraceReader throws; UsageError when they are traces of different models
  /// or record different layers, heads or k, naming the field, both files and both values; and when
  /// two of them hold the same sequence of the same run, which would count twice: one file by two
  /// names, a copy, or a merged trace beside one of its parts.
  explicit TraceGroup(const std::vector<std::string>& paths);
  const TraceShape& shape() const { return shape_; }
  std::size_t size() const { return traces_.size(); }
  const TraceReader& trace(std::size_t i) const { return traces_[i]; }

 private:
  std::vector<TraceReader> traces_;
  TraceShape shape_;
};

/// Feeds all metrics with all traces of the group and returns their results in the same order. With
/// options.layers, arrays with a layer axis keep only those layers. Throws what the metrics and the
/// reader throw, and UsageError when a layer was not recorded or memory_bytes can't hold one layer,
/// saying how much can.
std::vector<MetricResult> run_pass(const TraceGroup& traces,
                                   const std::vector<std::unique_ptr<StepMetric>>& metrics,
                                   const PassOptions& options = {});

}  // namespace blockscope
