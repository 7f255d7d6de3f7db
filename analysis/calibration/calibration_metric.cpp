#include "analysis/calibration/calibration_metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace blockscope {
namespace {

constexpr double kPercentile = 0.05;

}  // namespace

CalibrationMetric::CalibrationMetric(const CalibrationSums& sums, const CalibrationOptions& options,
                                     const std::vector<std::int64_t>& most_pairs)
    : reader_(taus_of(sums), options.count, options.from_summary),
      options_(options),
      ranges_(sums.ranges),
      kept_rule_{static_cast<double>(options.kept_tau), options.count},
      rules_(rules_of(sums, options.count)),
      kept_steps_(rules_),
      most_pairs_(most_pairs) {}

std::vector<double> CalibrationMetric::taus_of(const CalibrationSums& sums) {
  std::vector<double> taus;
  for (const TauSums& tau : sums.taus) taus.push_back(static_cast<double>(tau.tau));
  return taus;
}

std::vector<ReuseRule> CalibrationMetric::rules_of(const CalibrationSums& sums, ReuseCount count) {
  std::vector<ReuseRule> rules;
  for (const double tau : taus_of(sums)) rules.push_back({tau, count});
  return rules;
}

Needs CalibrationMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  Needs needs = reader_.begin_trace(trace, shape, "calibration");
  fields_ = exact_fields(trace);
  kept_steps_.begin_trace(trace);
  block_tokens_ = trace.info().meta.block_tokens;
  if (reader_.reads_pairs() && options_.provisional) {
    joint_reads_ = JointReads(trace, *options_.provisional);
  }
  std::string datasets = reader_.computed_from();
  if (reader_.reads_summary()) {
    const bool kept = options_.reference == ReuseReference::kept;
    if (kept || options_.needs_drift || ranges_.size() > 1) {
      throw TraceError(
          fmt::format("{}: {}: expected the arrays of the attention, got summaries, which compare "
                      "adjacent steps "
                      "only. HINT: capture with `--record outputs`",
                      trace.info().path,
                      kept                   ? "--reference kept"
                      : options_.needs_drift ? "--lse-bound"
                                             : "--by-step"));
    }
    has_arrays_ = false;
    needs.fields.push_back(Field::similarity_external);
    datasets += ", " + std::string(spec_of(Field::similarity_external).path);
  } else {
    needs.previous = options_.reference == ReuseReference::adjacent && !reader_.reads_pairs();
  }
  if (computed_from_.find(datasets) == std::string::npos) {
    computed_from_ += (computed_from_.empty() ? "" : ", ") + datasets;
  }
  for (Layer& layer : layers_) {
    layer.provisional.known = false;
    for (KeptPair& end : layer.ends) end.known = false;
  }
  if (!layers_.empty()) return needs;
  shape_ = shape;
  const std::size_t taus = rules_.size();
  layers_.resize(shape.layers.size());
  for (Layer& layer : layers_) {
    layer.errors.resize(taus * shape.heads.size() * ranges_.size());
    for (std::size_t i = 0; i < layer.errors.size(); ++i) {
      layer.errors[i].reused.resize(i % ranges_.size() + 1);
    }
    for (std::size_t i = 0; i < shape.heads.size() * ranges_.size(); ++i) {
      layer.cells.push_back({{}, {}, LowestValues(kPercentile, most_pairs_[i % ranges_.size()])});
    }
    layer.rows.resize(kRowKinds.size() * layer.errors.size());
    layer.ends.resize(ranges_.size() - 1);
    layer.left_out.resize(taus);
  }
  return needs;
}

void CalibrationMetric::add_block(const BlockSteps& block) {
  if (!reader_.reads_summary() && !reader_.reads_pairs()) kept_steps_.add_block(block);
  count_missing_pairs(block, left_out_);
  count_rows_without_prefix(block, left_out_);
}

void CalibrationMetric::add(const StepView& step) {
  if (shape_.keys_at(step.layer(), step.now().context_length) == 0) return;
  Layer& layer = layers_[step.layer()];
  if (reader_.reads_summary()) {
    if (step.previous() != nullptr) add_stored_similarity(step, layer);
  } else {
    add_change(step, layer);
  }
  add_errors(step, layer);
  if (!reader_.reads_summary() && !reader_.reads_pairs()) add_rows(step, layer);
}

/// The change from the reference's step.
void CalibrationMetric::add_change(const StepView& step, Layer& layer) const {
  const std::size_t heads = shape_.heads.size();
  if (reader_.reads_pairs()) return add_stored(step, layer);
  if (options_.provisional) return add_provisional(step, layer);
  if (options_.reference == ReuseReference::kept) {
    if (!step.reuses(kept_rule_) || step.source(kept_rule_) == nullptr) return;
    compare(step,
            {step.source(fields_.external, kept_rule_),
             step.source(fields_.lse_external, kept_rule_).floats(), step.source_valid(kept_rule_)},
            0, heads, layer);
  } else if (step.previous() != nullptr) {
    compare(step,
            {step.previous(fields_.external), step.previous(fields_.lse_external).floats(),
             step.previous_valid()},
            0, heads, layer);
  }
}

/// The errors of each rule's pair by what became of the rows.
void CalibrationMetric::add_rows(const StepView& step, Layer& layer) const {
  const std::size_t heads = shape_.heads.size();
  const std::size_t range = ranges_.of(step.now().step);
  std::vector<ReuseErrorSums> sums;
  const StepRef* source = nullptr;  // of `sums`
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    const ReuseRule& rule = rules_[t];
    if (!step.reuses(rule) || step.source(rule) == nullptr) continue;
    if (source != step.source(rule)) {  // neighbouring taus mostly have the same one
      source = step.source(rule);
      sums = reader_.errors_of(
          step,
          {step.source(fields_.external, rule), step.source(fields_.lse_external, rule).floats(),
           step.source_valid(rule)},
          kept_steps_.kinds(step.now(), t));
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!sums[i].finite()) continue;
      layer.rows[at(t * kRowKinds.size() + i / heads, i % heads, range)].add(sums[i]);
    }
  }
}

CalibrationMetric::Change CalibrationMetric::compare(const StepView& step, const ExternalPair& pair,
                                                     std::size_t first, std::size_t heads,
                                                     Layer& layer) const {
  const std::size_t block = step.valid().size();
  const std::size_t range = ranges_.of(step.now().step);
  const auto head_size = block * static_cast<std::size_t>(shape_.channels_at(step.layer()));
  sum_cosines(pair.external, step.now(fields_.external).slice(first * head_size, heads * head_size),
              heads, pair.valid, step.valid(), layer.cosines);
  const auto lse = step.now(fields_.lse_external).floats().subspan(first * block, heads * block);
  Change change;
  for (std::size_t head = 0; head < heads; ++head) {
    Cell& cell = layer.cells[at(0, first + head, range)];
    const CosineSum& sum = layer.cosines[head];
    layer.non_finite += sum.non_finite;
    layer.zero += sum.zero;
    change = {};
    if (sum.terms > 0) {
      change.cosine = sum.sum / static_cast<double>(sum.terms);
      cell.similarity.add(change.cosine, sum.terms);
      cell.lowest.add(change.cosine);
    }
    double drift = 0.0;
    std::int64_t terms = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const double delta = std::fabs(double{lse[head * block + i]} - pair.lse[head * block + i]);
      if (step.valid()[i] == 0 || pair.valid[i] == 0 || !std::isfinite(delta)) continue;
      drift += delta;
      ++terms;
    }
    if (terms == 0) continue;
    change.drift = drift / static_cast<double>(terms);
    cell.drift.add(change.drift, terms);
  }
  return change;
}

void CalibrationMetric::add_provisional(const StepView& step, Layer& layer) const {
  KeptPair& kept = layer.provisional;
  if (step.now().step == 1) return keep_all(step, kept);
  kept.known = kept.known && step.previous() != nullptr;  // else hidden by a gap
  if (!kept.known) return;
  const ProvisionalMask& mask = *options_.provisional;
  for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
    const Change change = compare(step, pair_of(kept, head, 1), head, 1, layer);
    const bool reuses =
        change.cosine > mask.gamma && (!mask.lse_bound || change.drift <= *mask.lse_bound);
    if (!reuses) keep(step, head, kept);
  }
}

void CalibrationMetric::keep(const StepView& step, std::size_t head, KeptPair& pair) const {
  const ArrayView now = step.now(fields_.external);
  const auto lse = step.now(fields_.lse_external).floats();
  const std::size_t block = step.valid().size();
  const std::size_t bytes = block * static_cast<std::size_t>(shape_.channels_at(step.layer())) *
                            (now.type == ViewType::bf16 ? 2U : 4U);
  std::memcpy(pair.external.data() + head * bytes, now.data + head * bytes, bytes);
  std::copy_n(lse.begin() + static_cast<std::ptrdiff_t>(head * block), block,
              pair.lse.begin() + static_cast<std::ptrdiff_t>(head * block));
  pair.valid[head].assign(step.valid().begin(), step.valid().end());
}

void CalibrationMetric::keep_all(const StepView& step, KeptPair& pair) const {
  const std::size_t heads = shape_.heads.size();
  pair.known = true;
  pair.sequence = step.now().sequence;
  pair.block = step.now().block;
  pair.step = step.now().step;
  if (reader_.reads_pairs()) return;
  const ArrayView now = step.now(fields_.external);
  pair.type = now.type;
  pair.external.resize(now.size * (now.type == ViewType::bf16 ? 2U : 4U));
  pair.lse.resize(heads * step.valid().size());
  pair.valid.resize(heads);
  for (std::size_t head = 0; head < heads; ++head) keep(step, head, pair);
}

ExternalPair CalibrationMetric::pair_of(const KeptPair& pair, std::size_t first,
                                        std::size_t heads) const {
  const std::size_t block = pair.valid[first].size();
  const std::size_t all_heads = pair.valid.size();
  const std::size_t words = pair.external.size() / (pair.type == ViewType::bf16 ? 2U : 4U);
  const std::size_t head_size = words / all_heads;
  const ArrayView all{pair.external.data(), words, pair.type};
  return {all.slice(first * head_size, heads * head_size),
          std::span(pair.lse).subspan(first * block, heads * block), pair.valid[first]};
}

void CalibrationMetric::add_stored_similarity(const StepView& step, Layer& layer) const {
  std::int64_t terms = 0;
  for (std::size_t i = 0; i < step.valid().size(); ++i) {
    terms += step.valid()[i] != 0 && step.previous_valid()[i] != 0 ? 1 : 0;
  }
  const auto stored = step.now(Field::similarity_external).floats();
  for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
    const auto mean = static_cast<double>(stored[head]);
    if (!std::isfinite(mean)) {
      layer.non_finite += terms;
    } else if (terms > 0) {
      Cell& cell = layer.cells[at(0, head, 0)];
      cell.similarity.add(mean, terms);
      cell.lowest.add(mean);
    }
  }
}

void CalibrationMetric::add_errors(const StepView& step, Layer& layer) {
  using Rule = ReuseErrorReader::Rule;
  const std::size_t range = ranges_.of(step.now().step);
  const std::vector<ReuseErrorReader::Tau>& taus = reader_.read(step);
  for (std::size_t t = 0; t < taus.size(); ++t) {
    if (taus[t].rule == Rule::hidden) ++layer.left_out[t].hidden;
    if (taus[t].rule == Rule::unknown) ++layer.left_out[t].unknown;
    for (std::size_t head = 0; head < taus[t].heads.size(); ++head) {
      const ReuseErrorSums& sums = taus[t].heads[head];
      Errors& into = layer.errors[at(t, head, range)];
      if (!sums.finite()) {
        ++layer.non_finite;
      } else {
        (taus[t].rule == Rule::reused ? into.reused.front() : into.recomputed).add(sums);
      }
    }
  }
  if (ranges_.size() > 1) add_masked_errors(step, taus, layer);
}

/// The errors if a head read, by its mask, up to the end of an earlier range.
void CalibrationMetric::add_masked_errors(const StepView& step,
                                          const std::vector<ReuseErrorReader::Tau>& read,
                                          Layer& layer) {
  const std::int32_t now = step.now().step;
  const std::size_t range = ranges_.of(now);
  for (KeptPair& end : layer.ends) {
    const bool same = end.sequence == step.now().sequence && end.block == step.now().block;
    end.known = end.known && same && end.step < now;
  }
  std::vector<std::vector<ReuseErrorSums>> of_end(range);
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    const ReuseRule& rule = rules_[t];
    if (!step.reuses(rule) || step.source(rule) == nullptr) continue;
    for (std::size_t earlier = 0; earlier < range; ++earlier) {
      const KeptPair& end = layer.ends[earlier];
      const bool later = ranges_.first[earlier + 1] - 1 > step.source(rule)->step;
      if (later && !end.known) continue;
      if (later && of_end[earlier].empty()) {
        of_end[earlier] = errors_from(step, end);
      }
      for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
        const ReuseErrorSums& sums = later ? of_end[earlier][head] : read[t].heads[head];
        if (sums.finite()) layer.errors[at(t, head, range)].reused[earlier + 1].add(sums);
      }
    }
  }
  if (range < layer.ends.size() && ranges_.first[range + 1] == now + 1) {
    keep_all(step, layer.ends[range]);
  }
}

void CalibrationMetric::write(CalibrationSums& sums) const {
  sums.computed_from = computed_from_;
  const auto columns = static_cast<std::size_t>(sums.model.heads);
  const auto write_head = [&](std::size_t l, std::size_t h, std::size_t range) {
    const auto layer = static_cast<std::size_t>(shape_.layers[l]);
    const auto column = static_cast<std::size_t>(shape_.heads[h]);
    const Cell& cell = layers_[l].cells[at(0, h, range)];
    sums.similarity[range][layer][column] = std::clamp(cell.similarity.mean(), -1.0, 1.0);
    sums.standard_deviation[range][layer][column] = cell.similarity.standard_deviation();
    sums.standard_error[range][layer][column] = cell.similarity.standard_error();
    sums.p5[range][layer][column] = cell.lowest.percentile();
    sums.lse_drift[range][layer][column] = cell.drift.mean();
    sums.count[range][layer][column] = cell.similarity.values();
    for (std::size_t t = 0; t < sums.taus.size(); ++t) {
      RangeSums& into = sums.taus[t].ranges[range];
      for (std::size_t kind = 0; has_arrays_ && kind < kRowKinds.size(); ++kind) {
        into.rows[kind].resize(into.recomputed.size());
        into.rows[kind][layer * columns + column] =
            layers_[l].rows[at(t * kRowKinds.size() + kind, h, range)];
      }
      const Errors& errors = layers_[l].errors[at(t, h, range)];
      for (std::size_t source = 0; source <= range; ++source) {
        into.reused[source][layer * columns + column] = errors.reused[source];
      }
      into.recomputed[layer * columns + column] = errors.recomputed;
    }
  };
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (std::size_t h = 0; h < shape_.heads.size(); ++h) {
      for (std::size_t range = 0; range < ranges_.size(); ++range) write_head(l, h, range);
    }
  }
  if (!has_arrays_) sums.lse_drift.clear();
  write_left_out(sums);
}

void CalibrationMetric::write_left_out(CalibrationSums& sums) const {
  sums.left_out = left_out_;
  for (std::size_t t = 0; t < sums.taus.size(); ++t) {
    std::vector<LeftOutSteps> layers;
    for (const Layer& layer : layers_) layers.push_back(layer.left_out[t]);
    count_left_out_steps(layers, std::to_string(sums.taus[t].tau), "error", sums.left_out);
    if (std::ranges::any_of(layers, [](const auto& layer) { return layer.unknown > 0; })) {
      sums.taus[t].errors_known = false;
    }
  }
  for (const Layer& layer : layers_) {
    sums.left_out[kNonFinite] += layer.non_finite;
    sums.left_out[kZeroVector] += layer.zero;
  }
  sums.left_out = without_zeros(sums.left_out);
}

}  // namespace blockscope
