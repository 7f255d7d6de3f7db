#include "probe/decode/pass_graphs.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "kernels/cuda/device_operators.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

at::Tensor rows_of(const std::vector<int64_t>& values, const PassPlan& plan) {
  return at::tensor(values, at::kLong).view({plan.entries(), plan.rows.count});
}

/// Two passes of equal kinds do the same work.
std::vector<int64_t> kind_of(const PassPlan& plan, const std::vector<int64_t>& same) {
  std::vector<int64_t> kind{plan.entries(), plan.rows.first, plan.rows.count};
  for (const SequencePass& pass : plan.context.sequences) kind.push_back(pass.context_length);
  kind.insert(kind.end(), plan.positions.begin(), plan.positions.end());
  kind.insert(kind.end(), same.begin(), same.end());
  return kind;
}

}  // namespace

PassGraphs::PassGraphs(const BlockDiffusionModel& model, bool wanted)
    : model_(model),
      enabled_(wanted && has_graphs(model.device()) && !model.config().moe.has_value()) {}

at::Tensor PassGraphs::single(const PassPlan& plan, ForwardSeams& seams) {
  return model_.forward(rows_of(plan.ids, plan), rows_of(plan.positions, plan), seams);
}

at::Tensor PassGraphs::repeatable(const PassPlan& plan, const std::vector<int64_t>& same,
                                  ForwardSeams& seams) {
  if (!enabled_) return single(plan, seams);
  std::vector<int64_t> kind = kind_of(plan, same);
  if (kind != last_) {
    // The first pass of a kind is not captured: many blocks end after it, and libraries choose
    // their kernels and workspace at a first call.
    at::Tensor hidden = single(plan, seams);
    graph_.reset();
    last_ = std::move(kind);
    return hidden;
  }
  if (graph_ == nullptr) return capture(plan, seams);
  copy_over(rows_of(plan.ids, plan), ids_);
  graph_->launch();
  return hidden_;
}

at::Tensor PassGraphs::capture(const PassPlan& plan, ForwardSeams& seams) {
  ids_ = on_device(rows_of(plan.ids, plan), model_.device());
  positions_ = on_device(rows_of(plan.positions, plan), model_.device());
  try {
    graph_ =
        capture_graph(model_.device(), [&] { hidden_ = model_.forward(ids_, positions_, seams); });
  } catch (const c10::Error& error) {
    // Nothing of the pass has run. If the device itself failed, the pass below fails again.
    const std::string reason = error.what_without_backtrace();
    fmt::print(stderr, "decoding continues without CUDA graphs: {}\n",
               reason.substr(0, reason.find('\n')));
    enabled_ = false;
    return single(plan, seams);
  }
  graph_->launch();
  return hidden_;
}

}  // namespace blockscope
