#include "probe/verify/logit_lens.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/exact_values.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/base/error.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// The positions of a row that the lens looks at: which row of the block predicts them, and what.
struct Looked {
  std::vector<int64_t> predictors, tokens;
};

class Lens {
 public:
  Lens(const TraceReader& trace, const BlockDiffusionModel& model, const LensOptions& options)
      : trace_(trace), model_(model), options_(options), shape_(shape_of(trace.info().meta)) {
    require_field(trace, Field::hidden, "the logit lens");
    for (std::size_t slot = 0; slot < shape_.layers.size(); ++slot) {
      if (!options.layers || std::ranges::count(*options.layers, shape_.layers[slot]) > 0) {
        slots_.push_back(slot);
      }
    }
    for (const int64_t layer : options.layers.value_or(std::vector<int64_t>{})) {
      if (std::ranges::count(shape_.layers, layer) == 0) {
        throw UsageError(fmt::format("--layer: {} was not recorded. HINT: the trace has {}", layer,
                                     fmt::join(shape_.layers, ",")));
      }
    }
    if (trace.info().meta.hidden_size != model.config().hidden_size) {
      throw UsageError(fmt::format(
          "{}: expected hidden states of {} channels, as this checkpoint "
          "has, got {}. HINT: use the checkpoint of the trace; blockscope info names it",
          trace.info().path, model.config().hidden_size, trace.info().meta.hidden_size));
    }
    for (StepGrid* grid : {&probability_, &rank_, &first_}) *grid = StepGrid(slots_.size(), 1);
  }

  MetricResult run() {
    const c10::InferenceMode inference;
    const std::vector<BlockSteps> blocks = list_blocks(trace_, options_.rows);
    int64_t total = 0;
    for (const BlockSteps& block : blocks) {
      total +=
          std::ranges::count_if(block.steps, [&](const StepRef& step) { return wanted(step); });
    }
    if (total == 0) {
      throw UsageError(fmt::format(
          "{}: no recorded step is left. HINT: --sequence, --block and --step select others; "
          "blockscope info says what the trace has",
          trace_.info().path));
    }
    int64_t done = 0;
    for (const BlockSteps& block : blocks) {
      const BlockDecisions decisions = decisions_of(trace_, block);
      for (std::size_t t = 0; t < block.steps.size(); ++t) {
        if (!wanted(block.steps[t])) continue;
        add_row(block.steps[t], looked_at(decisions, static_cast<int64_t>(t)));
        if (options_.progress) options_.progress(++done, total);
      }
    }
    return result();
  }

 private:
  bool wanted(const StepRef& step) const {
    return step.recorded && (!options_.steps || std::ranges::count(*options_.steps, step.step) > 0);
  }

  Looked looked_at(const BlockDecisions& decisions, int64_t t) {
    const int64_t shift = trace_.info().meta.logit_shift;
    Looked looked;
    for (std::size_t p = 0; p < decisions.token.size(); ++p) {
      if (decisions.index[p] < t || decisions.masks[static_cast<std::size_t>(t)][p] == 0) {
        ++left_out_["positions that are no masks, or that the block's steps do not decide"];
      } else if (static_cast<int64_t>(p) < shift) {
        ++left_out_["first positions of a block, predicted from outside it"];
      } else {
        if (decisions.token[p] < 0 || decisions.token[p] >= model_.config().vocab_size) {
          throw UsageError(fmt::format(
              "{}: expected tokens below this checkpoint's vocab_size {}, got {}. HINT: use the "
              "checkpoint of the trace; blockscope info names it",
              trace_.info().path, model_.config().vocab_size, decisions.token[p]));
        }
        looked.predictors.push_back(static_cast<int64_t>(p) - shift);
        looked.tokens.push_back(decisions.token[p]);
      }
    }
    return looked;
  }

  void add_row(const StepRef& step, const Looked& looked) {
    if (looked.tokens.empty()) return;
    const TraceMeta& meta = trace_.info().meta;
    const at::Tensor rows = at::tensor(looked.predictors, at::kLong);
    const at::Tensor tokens = at::tensor(looked.tokens, at::kLong).unsqueeze(1);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      std::vector<float> values =
          trace_.read_floats_at(Field::hidden, step.row, static_cast<int64_t>(slots_[i]));
      const at::Tensor hidden =
          at::from_blob(values.data(), {meta.block_length, meta.hidden_size}, at::kFloat)
              .index_select(0, rows);
      const at::Tensor logits =
          on_host(model_.logits(model_.final_norm(hidden.to(model_.device(), model_.dtype()))))
              .to(at::kDouble);
      const at::Tensor of_token = logits.gather(1, tokens);
      const at::Tensor probability = (of_token - logits.logsumexp(1, /*keepdim=*/true)).exp();
      const at::Tensor rank = (logits > of_token).sum(1).add(1);
      for (int64_t n = 0; n < rank.size(0); ++n) {
        const double p = probability[n][0].item<double>();
        if (!std::isfinite(p)) {
          ++left_out_[kNonFinite];
          continue;
        }
        const auto r = static_cast<double>(rank[n].item<int64_t>());
        probability_.add(i, 0, step.step, p);
        rank_.add(i, 0, step.step, std::log2(r));
        first_.add(i, 0, step.step, r == 1.0 ? 1.0 : 0.0);
      }
    }
  }

  MetricResult result() const {
    ResultAxis layers{"layer", {}, {}};
    for (const std::size_t slot : slots_) {
      layers.index.push_back(static_cast<double>(shape_.layers[slot]));
    }
    MetricResult result;
    result.metric = "lens";
    result.title = "Logit lens: the final token, seen from the input of each layer";
    result.formula = "softmax(LM head(final norm(h_layer)))[final token]";
    result.source = "nostalgebraist, interpreting GPT: the logit lens, 2020";
    result.computed_from = "/hidden/hidden, /frames, the checkpoint";
    const auto add = [&](const StepGrid& grid, const char* name, const char* unit,
                         const char* description) {
      ResultArray array = grid.means(name, unit, description, layers, {"", {0.0}, {}});
      array.axes.erase(array.axes.begin() + 1);
      result.arrays.push_back(std::move(array));
    };
    add(probability_, "lens_probability", "probability", "probability of the final token");
    add(rank_, "lens_rank", "log2", "log2 of the final token's rank; 0: first");
    add(first_, "lens_first", "share", "masks whose final token has rank 1");
    result.left_out = left_out_;
    return result;
  }

  const TraceReader& trace_;
  const BlockDiffusionModel& model_;
  const LensOptions& options_;
  TraceShape shape_;
  std::vector<std::size_t> slots_;
  StepGrid probability_, rank_, first_;
  LeftOut left_out_;
};

}  // namespace

MetricResult logit_lens(const TraceReader& trace, const BlockDiffusionModel& model,
                        const LensOptions& options) {
  return Lens(trace, model, options).run();
}

}  // namespace blockscope
