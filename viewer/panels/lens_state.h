// The state of the Lens panel.
#pragma once

#include <memory>

#include "viewer/model/lens_data.h"

namespace blockscope {

struct LensState {
  std::size_t mode = 0;  ///< index into kLensModes
  std::shared_ptr<const LensData> data;
};

}  // namespace blockscope
