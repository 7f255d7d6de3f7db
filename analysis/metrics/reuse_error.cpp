#include "analysis/metrics/reuse_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "analysis/math/row_products.h"
#include "decode_record/base/nan.h"
#include "decode_record/schema/reuse_rule.h"

namespace blockscope {

double external_weight(float lse_external, float lse_internal) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (lse_external == kInfinity || lse_internal == kInfinity) return kNaN;
  return 1.0 / (1.0 + std::exp(static_cast<double>(lse_internal) - lse_external));
}

std::vector<ReuseRule> reuse_rules(const std::vector<double>& taus, ReuseCount count) {
  std::vector<ReuseRule> rules;
  for (const double tau : taus) {
    if (!(tau >= 1.0)) throw UsageError(fmt::format("tau: expected at least 1, got {}", tau));
    rules.push_back({tau, count});
  }
  return rules;
}

std::ptrdiff_t summary_tau(const ReuseRule& rule, ReuseCount count) {
  const auto* found = std::ranges::find(kReuseTaus, static_cast<float>(rule.tau));
  const bool known = rule.count == count && found != kReuseTaus.end();
  return known ? found - kReuseTaus.begin() : -1;
}

namespace {

/// Sums over the channels of one position in float. Sums over positions are in double.
ReuseErrorSums position_sums(const MergedRow& row, std::size_t channels) {
  static const RowProductKernels& kernels = best_row_products();
  const MergeError sums = kernels.merge_error(row, channels);
  return {double{sums.squared},
          double{sums.absolute},
          double{sums.reference},
          double{sums.dot},
          1,
          static_cast<std::int64_t>(channels)};
}

}  // namespace

void ReuseErrorSums::add(const ReuseErrorSums& other) {
  squared += other.squared;
  absolute += other.absolute;
  reference += other.reference;
  dot += other.dot;
  terms += other.terms;
  values += other.values;
}

bool ReuseErrorSums::finite() const {
  return std::isfinite(squared) && std::isfinite(absolute) && std::isfinite(reference) &&
         std::isfinite(dot);
}

double ReuseErrorSums::relative_l2() const {
  return terms > 0 ? std::sqrt(squared / reference) : kNaN;
}

double ReuseErrorSums::mean_l1() const {
  return values > 0 ? absolute / static_cast<double>(values) : kNaN;
}

double ReuseErrorSums::cosine() const {
  // |merged|^2 = |ref + e|^2 = |ref|^2 + 2 <ref, e> + |e|^2, and <ref, e> = dot - |ref|^2.
  const double merged = 2.0 * dot - reference + squared;
  return terms > 0 ? dot / std::sqrt(reference * merged) : kNaN;
}

ReuseErrorReader::ReuseErrorReader(const std::vector<double>& taus, ReuseCount count,
                                   bool from_summary)
    : rules_(reuse_rules(taus, count)), from_summary_(from_summary) {}

std::vector<double> ReuseErrorReader::taus() const {
  std::vector<double> taus;
  for (const ReuseRule& rule : rules_) taus.push_back(rule.tau);
  return taus;
}

Needs ReuseErrorReader::begin_trace(const TraceReader& trace, const TraceShape& shape,
                                    const std::string& metric) {
  fields_ = exact_fields(trace);
  pair_steps_ = from_summary_ ? 0 : trace.info().meta.pair_steps;
  path_ = trace.info().path;
  reads_summary_ = pair_steps_ == 0 && (from_summary_ || !trace.has(fields_.external));
  // Before /steps/since_read, recorders followed the paper's letter.
  const bool accumulates = trace.info().meta.has_since_read;
  summary_count_ = accumulates ? ReuseCount::since_read : ReuseCount::step;
  require_field(trace, Field::reuse_error, metric);
  heads_ = shape.heads.size();
  sizes_ = shape;
  layers_.resize(shape.layers.size());
  Needs needs;
  needs.rules = rules_;
  if (pair_steps_ > 0) {
    require_field(trace, Field::step_pair, metric);
    needs.fields = {Field::reuse_error, Field::step_pair};
  } else if (reads_summary_) {
    needs.fields = {Field::reuse_error};
  } else {
    require_field(trace, Field::attention_internal, metric);
    needs.fields = output_fields(fields_);
  }
  return needs;
}

std::string ReuseErrorReader::computed_from() const {
  if (reads_pairs()) return std::string(spec_of(Field::step_pair).path);
  if (reads_summary_) return std::string(spec_of(Field::reuse_error).path);
  return paths_of(output_fields(fields_));
}

const std::vector<ReuseErrorReader::Tau>& ReuseErrorReader::read(const StepView& step) {
  Layer& layer = layers_.at(step.layer());
  layer.taus.resize(rules_.size());
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    layer.taus[t].rule = step.reuses(rules_[t]) ? Rule::reused : Rule::recomputed;
    layer.taus[t].heads.clear();
  }
  if (reads_pairs()) {
    read_pairs(step, layer);
  } else if (reads_summary_) {
    read_stored(step, layer);
  } else {
    read_arrays(step, layer);
  }
  return layer.taus;
}

void ReuseErrorReader::read_stored(const StepView& step, Layer& layer) const {
  const auto stored = step.now(Field::reuse_error).floats();  // [4, H, 4]
  const std::int64_t channels = sizes_.channels_at(step.layer());
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    Tau& tau = layer.taus[t];
    // A recomputed step has the same sums for every tau: no error, only the output.
    const std::ptrdiff_t index =
        tau.rule == Rule::recomputed ? 0 : summary_tau(rules_[t], summary_count_);
    if (index < 0) {
      tau.rule = Rule::unknown;
      continue;
    }
    for (std::size_t head = 0; head < heads_; ++head) {
      const float* sums = &stored[(static_cast<std::size_t>(index) * heads_ + head) * 4];
      ReuseErrorSums total{static_cast<double>(sums[0]),
                           static_cast<double>(sums[1]),
                           static_cast<double>(sums[2]),
                           static_cast<double>(sums[3]),
                           step.num_valid(),
                           step.num_valid() * channels};
      if (tau.rule == Rule::recomputed) {
        total.squared = total.absolute = 0.0;
        total.dot = total.reference;
      }
      tau.heads.push_back(total);
    }
  }
}

void ReuseErrorReader::read_pairs(const StepView& step, Layer& layer) const {
  const auto stored = step.now(Field::reuse_error).floats();  // for the output alone
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    Tau& tau = layer.taus[t];
    const StepRef* source = tau.rule == Rule::reused ? step.source(rules_[t]) : nullptr;
    if (tau.rule == Rule::reused && source == nullptr) {
      tau.rule = Rule::hidden;
      continue;
    }
    for (std::size_t head = 0; head < heads_; ++head) {
      if (source != nullptr) {
        tau.heads.push_back(stored_pair(step, source->step, head).errors);
        continue;
      }
      const double reference = stored[head * 4 + 2];
      tau.heads.push_back({0.0, 0.0, reference, reference, step.num_valid(),
                           step.num_valid() * sizes_.channels_at(step.layer())});
    }
  }
}

StoredPair ReuseErrorReader::stored_pair(const StepView& step, std::int32_t earlier,
                                         std::size_t head) const {
  if (earlier < 1 || earlier > pair_steps_) {
    throw TraceError(fmt::format(
        "{}:{}: expected a comparison with step {} of a block, but the trace has those with steps "
        "1 to {}. HINT: record(..., pair_steps={})",
        path_, spec_of(Field::step_pair).path, earlier, pair_steps_, earlier));
  }
  const auto all = step.now(Field::step_pair).floats();  // [earlier_step, H, pair_sum]
  const auto at = (static_cast<std::size_t>(earlier - 1) * heads_ + head) * kPairSums;
  const auto sums = all.subspan(at, kPairSums);
  const double rows = sums[0];
  StoredPair pair;
  pair.cosine = rows > 0.0 ? sums[1] / rows : kNaN;
  pair.drift = rows > 0.0 ? sums[2] / rows : kNaN;
  pair.known = std::isfinite(rows);
  const std::int64_t terms = pair.known ? static_cast<std::int64_t>(rows) : 0;
  pair.errors = {sums[3], sums[4], sums[5],
                 sums[6], terms,   terms * sizes_.channels_at(step.layer())};
  return pair;
}

ReuseErrorReader::Scratch& ReuseErrorReader::scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

void ReuseErrorReader::read_arrays(const StepView& step, Layer& layer) const {
  Scratch& scratch = scratch_of_thread();
  to_floats(step.now(fields_.external), scratch.external);
  to_floats(step.now(Field::attention_internal), scratch.internal);
  const auto lse_external = step.now(fields_.lse_external).floats();
  const auto lse_internal = step.now(Field::attention_lse_internal).floats();
  scratch.weight.resize(lse_external.size());
  for (std::size_t i = 0; i < lse_external.size(); ++i) {
    scratch.weight[i] = external_weight(lse_external[i], lse_internal[i]);
  }
  layer.sources.assign(rules_.size(), nullptr);
  std::vector<ReuseErrorSums> reference;
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    Tau& tau = layer.taus[t];
    if (tau.rule == Rule::recomputed) {
      if (reference.empty()) reference = reference_sums(step, scratch);
      tau.heads = reference;
      continue;
    }
    layer.sources[t] = step.source(rules_[t]);
    if (layer.sources[t] == nullptr) {
      tau.rule = Rule::hidden;
      continue;
    }
    // Neighbouring taus mostly have the same source, so reuse its sums.
    const auto same = std::ranges::find(layer.sources, layer.sources[t]);
    const auto first = static_cast<std::size_t>(same - layer.sources.begin());
    tau.heads = first < t ? layer.taus[first].heads
                          : errors_of(step, {step.source(fields_.external, rules_[t]),
                                             step.source(fields_.lse_external, rules_[t]).floats(),
                                             step.source_valid(rules_[t])});
  }
}

std::vector<ReuseErrorSums> ReuseErrorReader::reference_sums(const StepView& step,
                                                             const Scratch& scratch) const {
  const std::size_t block = step.valid().size();
  const auto channels = static_cast<std::size_t>(sizes_.channels_at(step.layer()));
  std::vector<ReuseErrorSums> sums(heads_);
  for (std::size_t row = 0; row < heads_ * block; ++row) {
    if (step.valid()[row % block] == 0) continue;
    const float* external = &scratch.external[row * channels];
    const auto weight = static_cast<float>(scratch.weight[row]);
    sums[row / block].add(position_sums(
        {external, &scratch.internal[row * channels], external, weight, weight, 0.0F}, channels));
  }
  return sums;
}

std::vector<ReuseErrorSums> ReuseErrorReader::errors_of(const StepView& step,
                                                        const ExternalPair& pair,
                                                        std::span<const std::uint8_t> kinds) const {
  Scratch& scratch = scratch_of_thread();
  to_floats(pair.external, scratch.source);
  const auto lse_internal = step.now(Field::attention_lse_internal).floats();
  const auto valid = step.valid();
  const std::size_t block = valid.size();
  const auto channels = static_cast<std::size_t>(sizes_.channels_at(step.layer()));
  std::vector<ReuseErrorSums> sums(kinds.empty() ? heads_ : kRowKinds.size() * heads_);
  for (std::size_t row = 0; row < heads_ * block; ++row) {
    if (valid[row % block] == 0 || pair.valid[row % block] == 0) continue;
    const double weight = external_weight(pair.lse[row], lse_internal[row]);
    const std::size_t kind = kinds.empty() ? 0 : kinds[row % block];
    sums[kind * heads_ + row / block].add(position_sums(
        {&scratch.external[row * channels], &scratch.internal[row * channels],
         &scratch.source[row * channels], static_cast<float>(scratch.weight[row]),
         static_cast<float>(weight), static_cast<float>(weight - scratch.weight[row])},
        channels));
  }
  return sums;
}

}  // namespace blockscope
