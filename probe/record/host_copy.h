// What the recorder reads of an attention step, where it can read it: on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include "probe/decode/decode_observer.h"

namespace blockscope {

/// What a view shows, copied from the device that computed it in one go. The external keys stay
/// there.
class HostCopy {
 public:
  /// `keys`: the block's keys and values too. `view` must outlive this.
  HostCopy(const AttentionView& view, bool keys);
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  AttentionView view() const;

 private:
  const AttentionView& of_;
  at::Tensor q_, k_, v_;
  AttentionParts used_, exact_;
  AttentionInput input_{of_.input.layer, q_, k_, v_, of_.input.scale};
};

}  // namespace blockscope
