#include "probe/policies/select_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace blockscope {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void SelectStream::submit(const std::vector<at::Tensor>& reads,
                          const std::function<std::vector<at::Tensor>()>& task) {
  const at::Device device = reads.front().device();
  if (!beside_) {
    const c10::impl::VirtualGuardImpl streams(device.type());
    beside_.emplace(Beside{streams.getStreamFromGlobalPool(device), c10::Event(device.type()),
                           c10::Event(device.type())});
  }
  beside_->before.record(current_stream(device));
  beside_->before.block(beside_->stream);
  // The caller may release these tensors before the task has read them.
  for (const at::Tensor& each : reads) each.record_stream(beside_->stream);
  const c10::StreamGuard guard(beside_->stream);
  for (at::Tensor& each : task()) {
    if (each.defined()) made_.push_back(std::move(each));
  }
  beside_->after.record(beside_->stream);
}

void SelectStream::wait() {
  if (made_.empty()) return;
  const c10::Stream caller = current_stream(made_.front().device());
  beside_->after.block(caller);
  for (const at::Tensor& each : made_) each.record_stream(caller);
  made_.clear();
}

}  // namespace blockscope
