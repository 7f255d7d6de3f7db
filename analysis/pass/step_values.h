// What travels from the reading thread to the workers: one denoising step in one layer with the
// arrays that the metrics asked for. Internal to analysis.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "analysis/pass/buffer_pool.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/read/located_values.h"

namespace blockscope {

/// An array of which only the place was looked up: whoever gets its step reads it (LateReader).
struct LateArray {
  LocatedValues place;
  ViewType type = ViewType::f32;
  PooledBytes bytes;  ///< none until it was read
};

/// An array and what keeps it alive.
struct OwnedView {
  std::shared_ptr<const void> owner;
  ArrayView view;
  std::shared_ptr<LateArray> late = nullptr;  ///< instead of the two above

  /// A late array must have been read.
  ArrayView get() const;
};

/// The arrays of one step in one layer, by slot of FieldPlan; null: no such step. What a later step
/// looks back at shares its late arrays.
using LayerValues = std::shared_ptr<const std::vector<OwnedView>>;

/// The union of what all metrics need.
struct FieldPlan {
  std::vector<Field> fields;                      ///< slot -> field
  std::vector<bool> previous;                     ///< [slot] kept for the next step
  std::vector<bool> first;                        ///< [slot] kept for the whole block
  std::vector<bool> source;                       ///< [slot] kept for the taus
  std::vector<double> taus;                       ///< ascending
  std::array<std::int8_t, kNumFields> slot_of{};  ///< -1: nobody asked

  explicit FieldPlan(const std::vector<Needs>& needs);
};

/// What all layers of a step share.
struct StepContext {
  std::shared_ptr<const FieldPlan> plan;
  const StepRef* now = nullptr;
  const StepRef* previous = nullptr;
  const StepRef* first = nullptr;
  std::vector<const StepRef*> sources;  ///< [taus]
};

/// Which positions of a block a row computed: [B]; the same object for all layers where no cache
/// left some out at single layers.
using ValidPositions = std::shared_ptr<const std::vector<std::uint8_t>>;

/// One call of every metric.
struct StepTask {
  std::shared_ptr<const StepContext> context;
  std::size_t layer = 0;
  LayerValues now, previous, first;
  ValidPositions valid, previous_valid, first_valid;  ///< null: no such step
  std::vector<LayerValues> sources;                   ///< [taus]
  std::vector<ValidPositions> source_valid;           ///< [taus]
  std::size_t bytes = 0;       ///< held until the task has run, for the bound of the queue
  std::size_t late_bytes = 0;  ///< that will be read for `now`
};

}  // namespace blockscope
