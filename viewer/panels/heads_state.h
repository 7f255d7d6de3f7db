// The state of the Heads panel, and its picture.
#pragma once

#include <cstddef>
#include <memory>

#include "viewer/model/view_model.h"

namespace blockscope {

struct HeadsState {
  std::size_t metric = 0;
  ViewModel::Scope scope = ViewModel::Scope::everything;
  /// The picture, made once per result.
  std::shared_ptr<const MetricPayload> grid_of;
  std::size_t grid_metric = 0;
  std::shared_ptr<const MatrixPayload> grid;
};

}  // namespace blockscope
