// What the Curves panel remembers, and what it made once of the values it shows.
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
  bool together = true;        ///< all heads (recall) or layers (unions) instead of the selected
  std::vector<HeadSlot> kept;  ///< heads whose curves stay while others are selected
  // What is drawn of a result, made once for it.
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
