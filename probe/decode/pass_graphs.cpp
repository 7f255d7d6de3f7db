#include "probe/decode/pass_graphs.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "kernels/cuda/device_operators.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

void append(const std::vector<int64_t>& part, std::vector<int64_t>& whole) {
  whole.push_back(std::ssize(part));
  whole.insert(whole.end(), part.begin(), part.end());
}

/// Two passes of equal kinds do the same work.
std::vector<int64_t> kind_of(const at::Tensor& positions, const std::vector<int64_t>& same,
                             const std::vector<int64_t>& questions) {
  std::vector<int64_t> kind{positions.size(0)};
  const auto* first = positions.const_data_ptr<int64_t>();
  append({first, first + positions.numel()}, kind);
  append(same, kind);
  append(questions, kind);
  return kind;
}

}  // namespace

PassGraphs::PassGraphs(const BlockDiffusionModel& model, bool wanted)
    : model_(model), enabled_(wanted && has_graphs(model.device()) && !model.waits_for_router()) {}

/// Queries, outputs and hidden states in the model's type; two pairs of parts and a residual in
/// float32.
int64_t PassGraphs::shown_bytes(int64_t rows) const {
  const ModelConfig& config = model_.config();
  const auto element = static_cast<int64_t>(at::elementSize(model_.dtype()));
  return config.num_layers * rows *
         (config.num_heads * config.head_dim * (3 * element + 5 * 4) +
          config.hidden_size * element);
}

at::Tensor PassGraphs::repeatable(const at::Tensor& ids, const at::Tensor& positions,
                                  const std::vector<int64_t>& same, ObservedSeams& seams) {
  if (!enabled_ || (seams.shown() && shown_bytes(seams.shown_positions()) > kMostShownBytes)) {
    return model_.forward(ids, positions, seams);
  }
  std::vector<int64_t> kind = kind_of(positions, same, seams.questions(model_.config().num_layers));
  if (kind != last_) {
    // The first pass of a kind is not captured: many blocks end after it, and libraries choose
    // their kernels and workspace at a first call.
    at::Tensor hidden = model_.forward(ids, positions, seams);
    graph_.reset();
    shown_.clear();
    last_ = std::move(kind);
    return hidden;
  }
  if (graph_ == nullptr) return capture(ids, positions, seams);
  copy_over(ids, ids_);
  graph_->launch();
  seams.launched();
  seams.show_kept(shown_);
  return hidden_;
}

at::Tensor PassGraphs::capture(const at::Tensor& ids, const at::Tensor& positions,
                               ObservedSeams& seams) {
  ids_ = on_device(ids, model_.device());
  positions_ = on_device(positions, model_.device());
  try {
    const ObservedSeams::Keeping keeping(seams, shown_);
    graph_ =
        capture_graph(model_.device(), [&] { hidden_ = model_.forward(ids_, positions_, seams); });
  } catch (const c10::Error& error) {
    // Nothing of the pass has run. If the device itself failed, the pass below fails again.
    const std::string reason = error.what_without_backtrace();
    fmt::print(stderr, "decoding continues without CUDA graphs: {}\n",
               reason.substr(0, reason.find('\n')));
    enabled_ = false;
    shown_.clear();
    return model_.forward(ids, positions, seams);
  }
  seams.captured();
  graph_->launch();
  seams.show_kept(shown_);
  return hidden_;
}

}  // namespace blockscope
