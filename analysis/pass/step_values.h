// Data that the reading thread passes to the workers: one denoising step in one layer, with the
// arrays that the metrics need. Internal to analysis.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "analysis/pass/buffer_pool.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/read/located_values.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

/// An array whose place in the file is known. The thread that gets its step reads it (LateReader).
struct LateArray {
  LocatedValues place;
  ViewType type = ViewType::f32;
  LayerPart own;      ///< of the values at that place
  PooledBytes bytes;  ///< none until it was read
};

/// An array and the owner that keeps it alive.
struct OwnedView {
  std::shared_ptr<const void> owner;
  ArrayView view;
  std::shared_ptr<LateArray> late = nullptr;  ///< instead of the two above

  /// A late array must have been read.
  ArrayView get() const;
};

/// The arrays of one step in one layer, by slot of FieldPlan; null: no such step. Copies for later
/// steps share the late arrays.
using LayerValues = std::shared_ptr<const std::vector<OwnedView>>;

/// The union of what all metrics need.
struct FieldPlan {
  std::vector<Field> fields;                      ///< slot -> field
  std::vector<bool> previous;                     ///< [slot] kept for the next step
  std::vector<bool> first;                        ///< [slot] kept for the whole block
  std::vector<bool> source;                       ///< [slot] kept for the rules
  std::vector<ReuseRule> rules;                   ///< ascending
  std::array<std::int8_t, kNumFields> slot_of{};  ///< -1: no metric needs it

  explicit FieldPlan(const std::vector<Needs>& needs);
};

/// Data that all layers of a step share.
struct StepContext {
  std::shared_ptr<const FieldPlan> plan;
  const StepRef* now = nullptr;
  const StepRef* previous = nullptr;
  const StepRef* first = nullptr;
  std::vector<const StepRef*> sources;  ///< [rules]
  std::vector<bool> reuses;             ///< [rules]
};

/// The positions of a block that a row computed: [B]. All layers share one object, unless a cache
/// left positions out at single layers.
using ValidPositions = std::shared_ptr<const std::vector<std::uint8_t>>;

/// One call of every metric.
struct StepTask {
  std::shared_ptr<const StepContext> context;
  std::size_t layer = 0;
  LayerValues now, previous, first;
  ValidPositions valid, previous_valid, first_valid;  ///< null: no such step
  std::vector<LayerValues> sources;                   ///< [rules]
  std::vector<ValidPositions> source_valid;           ///< [rules]
  std::size_t bytes = 0;       ///< in memory until the task has run; limits the queue
  std::size_t late_bytes = 0;  ///< still to be read for `now`
};

}  // namespace blockscope
