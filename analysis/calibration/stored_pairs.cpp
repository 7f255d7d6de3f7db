// What a calibration takes from /summary/step_pair, which compares the pairs of all rows of a
// continuous model's block with those of each earlier step.
#include <cmath>

#include "analysis/calibration/calibration_metric.h"

namespace blockscope {

void CalibrationMetric::add_stored(const StepView& step, Layer& layer) const {
  const std::size_t heads = shape_.heads.size();
  if (options_.provisional) {
    for (std::size_t head = 0; head < heads; ++head) {
      const std::int32_t from = joint_reads_.step_of(step.now().row, step.layer(), head);
      if (from > 0) compare_stored(step, from, head, 1, layer);
    }
  } else if (options_.reference == ReuseReference::adjacent) {
    if (step.previous() != nullptr) compare_stored(step, step.previous()->step, 0, heads, layer);
  } else if (step.reuses(kept_rule_) && step.source(kept_rule_) != nullptr) {
    compare_stored(step, step.source(kept_rule_)->step, 0, heads, layer);
  }
}

void CalibrationMetric::compare_stored(const StepView& step, std::int32_t earlier,
                                       std::size_t first, std::size_t heads, Layer& layer) const {
  const std::size_t range = ranges_.of(step.now().step);
  for (std::size_t head = first; head < first + heads; ++head) {
    const StoredPair pair = reader_.stored_pair(step, earlier, head);
    const std::int64_t rows = pair.errors.terms;
    // The recorder leaves rows with NaN out of the sums.
    if (pair.known) layer.non_finite += block_tokens_ - rows;
    if (rows == 0 || !std::isfinite(pair.cosine) || !std::isfinite(pair.drift)) {
      layer.non_finite += pair.known ? rows : 0;
      continue;
    }
    Cell& cell = layer.cells[at(0, head, range)];
    cell.similarity.add(pair.cosine, rows);
    cell.lowest.add(pair.cosine);
    cell.drift.add(pair.drift, rows);
  }
}

std::vector<ReuseErrorSums> CalibrationMetric::errors_from(const StepView& step,
                                                           const KeptPair& pair) const {
  const std::size_t heads = shape_.heads.size();
  if (!reader_.reads_pairs()) return reader_.errors_of(step, pair_of(pair, 0, heads));
  std::vector<ReuseErrorSums> sums;
  for (std::size_t head = 0; head < heads; ++head) {
    sums.push_back(reader_.stored_pair(step, pair.step, head).errors);
  }
  return sums;
}

}  // namespace blockscope
