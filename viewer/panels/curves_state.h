// The state of the Curves panel, and data that it derived once from the shown values.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "viewer/model/panel_metrics.h"
#include "viewer/model/view_model.h"

namespace blockscope {

struct CurvesState {
  enum class Mode { over_steps, per_head, recall_sizes, union_sizes };
  Mode mode = Mode::over_steps;
  std::size_t metric = 0;
  ViewModel::Scope scope = ViewModel::Scope::everything;
  bool together = true;        ///< all heads (recall) or layers (unions), not only the selected
  std::vector<HeadSlot> kept;  ///< their curves stay while other heads are selected
  // Drawing data, made once per result.
  std::shared_ptr<const MetricPayload> curves_of, bars_of, recall_of, unions_of;
  std::size_t curves_metric = 0;
  HeadCurves curves;
  SimilarityMatrix external, internal;
  std::optional<HeadSlot> recall_head;
  std::vector<SizeCurve> recall;
  std::optional<std::size_t> unions_layer;
  UnionDistribution unions;
};

}  // namespace blockscope
