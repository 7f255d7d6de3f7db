#include "probe/record/host_copy.h"

#include <vector>

#include "probe/model/device.h"

namespace blockscope {

HostCopy::HostCopy(const AttentionView& view, bool keys) : of_(view), q_(view.input.q) {
  if (keys) {
    k_ = view.input.k;
    v_ = view.input.v;
  }
  std::vector<at::Tensor*> copied{&q_, &k_, &v_};
  const auto add = [&copied](const AttentionParts& parts, AttentionParts& copy) {
    copy = parts;
    for (at::Tensor* part :
         {&copy.out, &copy.external, &copy.lse_external, &copy.internal, &copy.lse_internal,
          &copy.reused, &copy.selected, &copy.residual, &copy.lse_residual}) {
      copied.push_back(part);
    }
  };
  add(view.used, used_);
  if (view.exact != nullptr && view.exact != &view.used) add(*view.exact, exact_);
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* each : copied) tensors.push_back(*each);
  tensors = on_host(tensors);
  for (size_t i = 0; i < copied.size(); ++i) *copied[i] = tensors[i];
}

AttentionView HostCopy::view() const {
  const AttentionParts* exact = of_.exact == &of_.used ? &used_ : &exact_;
  return {of_.context, input_, of_.external, used_, of_.exact == nullptr ? nullptr : exact,
          of_.rows};
}

}  // namespace blockscope
