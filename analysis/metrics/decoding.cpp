#include "analysis/metrics/decoding.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace blockscope {

bool is_autoregressive(const TraceReader& trace) {
  const auto json = nlohmann::json::parse(trace.info().meta.run_json, nullptr, false);
  if (!json.is_object() || !json.contains("decoding")) return false;
  const auto& decoding = json.at("decoding");
  return decoding.is_string() && decoding.get<std::string>() == "autoregressive";
}

Needs DecodingMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  trace_ = &trace;
  autoregressive_ = is_autoregressive(trace);
  block_length_ = shape.block_length;
  return {};
}

void DecodingMetric::add_block(const BlockSteps& block) {
  totals_.add(*trace_, block, autoregressive_);
}

MetricResult DecodingMetric::finish() {
  MetricResult result;
  result.metric = "decoding";
  result.title = "Decoding";
  result.formula =
      "M = block inputs that differ from the previous step; edits_by_step: tokens that another "
      "token replaced, and more; share_below_tau: reuse iff "
      "fewer than tau tokens are counted";
  result.source = "FlashBlock, section 4.2; Fast-dLLM";
  result.computed_from = "/steps, /frames, /sequences/score";
  ResultArray means{
      "means",
      "tokens, steps, probability, tokens, score",
      "means over steps, blocks, decided tokens, steps after a block's first, and "
      "sequences",
      {{"quantity",
        {},
        {"tokens per step", "steps per block", "confidence at transfer", "M", "accuracy"}}},
      {},
      {}};
  for (const RunningMean& mean : {totals_.tokens_per_step(), totals_.steps_per_block(),
                                  totals_.confidence(), totals_.changed(), totals_.accuracy()}) {
    means.values.push_back(mean.mean());
    means.terms.push_back(mean.terms());
  }
  result.arrays = {means,
                   totals_.tokens_by_step(),
                   totals_.confidence_by_step(),
                   totals_.changed_by_step(),
                   totals_.masks_by_step(),
                   totals_.blocks_by_steps(),
                   totals_.settled(block_length_),
                   totals_.share_below_tau()};
  ResultArray edits = totals_.edits_by_step();
  if (!edits.values.empty()) result.arrays.push_back(std::move(edits));
  result.left_out = totals_.left_out();
  const std::int64_t non_finite = totals_.confidence().non_finite();
  if (non_finite > 0) result.left_out["confidences that are NaN or infinite"] = non_finite;
  return result;
}

}  // namespace blockscope
