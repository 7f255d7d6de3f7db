// bfloat16 autocast for a scope.
#pragma once

#include <ATen/autocast_mode.h>

namespace blockscope {

/// While it lives, linear layers use bfloat16 autocast.
class AutocastGuard {
 public:
  explicit AutocastGuard(bool enabled, at::DeviceType device) : device_(device) {
    at::autocast::set_autocast_enabled(device_, enabled);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;
  ~AutocastGuard() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }

 private:
  at::DeviceType device_;
};

}  // namespace blockscope
