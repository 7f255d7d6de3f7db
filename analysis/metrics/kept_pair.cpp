#include "analysis/metrics/kept_pair.h"

#include <algorithm>
#include <cmath>

#include "analysis/math/cosine.h"
#include "analysis/math/row_products.h"
#include "analysis/metrics/reuse_error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

constexpr std::size_t kSumsPerKind = kKeptSums;

double ratio(double sum, double of) { return of > 0.0 ? sum / of : kNaN; }

/// The cosine of two rows; 0 if one of them has no direction, as the recorder sums it.
double cosine_of(const float* a, const float* b, std::size_t channels) {
  const double cosine = row_cosine(a, b, channels);
  return std::isinf(cosine) ? 0.0 : cosine;
}

}  // namespace

void KeptTerms::add(const KeptTerms& other) {
  rows += other.rows;
  cosine += other.cosine;
  change += other.change;
  squared += other.squared;
  reference += other.reference;
}

bool KeptTerms::finite() const {
  return std::isfinite(rows) && std::isfinite(cosine) && std::isfinite(change) &&
         std::isfinite(squared) && std::isfinite(reference);
}

double KeptTerms::similarity() const { return ratio(cosine, rows); }
double KeptTerms::lse_change() const { return ratio(change, rows); }
double KeptTerms::relative_l2() const { return rows > 0.0 ? std::sqrt(squared / reference) : kNaN; }

KeptReader::KeptReader(const std::vector<double>& taus, ReuseCount count, bool from_summary)
    : rules_(reuse_rules(taus, count)), steps_(rules_), from_summary_(from_summary) {}

std::vector<double> KeptReader::taus() const {
  std::vector<double> taus;
  for (const ReuseRule& rule : rules_) taus.push_back(rule.tau);
  return taus;
}

Needs KeptReader::begin_trace(const TraceReader& trace, const TraceShape& shape,
                              const std::string& metric) {
  fields_ = exact_fields(trace);
  // The arrays of a continuous model's block may have a sample of its rows.
  reads_summary_ = from_summary_ || !trace.has(fields_.external) || trace.info().meta.continuous();
  heads_ = shape.heads.size();
  sizes_ = shape;
  layers_.resize(shape.layers.size());
  steps_.begin_trace(trace);
  Needs needs;
  if (reads_summary_) {
    require_field(trace, Field::kept_pair, metric);
    needs.fields = {Field::kept_pair};
  } else {
    require_field(trace, Field::attention_internal, metric);
    needs.fields = output_fields(fields_);
    needs.rules = rules_;
  }
  return needs;
}

std::string KeptReader::computed_from() const {
  if (reads_summary_) return std::string(spec_of(Field::kept_pair).path) + ", /frames";
  return paths_of(output_fields(fields_)) + ", /frames";
}

const std::vector<KeptReader::Tau>& KeptReader::read(const StepView& step) {
  Layer& layer = layers_.at(step.layer());
  layer.taus.resize(rules_.size());
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    layer.taus[t].age = steps_.age(step.now(), t);
    layer.taus[t].found = layer.taus[t].age > 0 ? Found::reuses : Found::reads;
    layer.taus[t].heads.clear();
  }
  if (reads_summary_) {
    read_stored(step, layer);
  } else {
    read_arrays(step, layer);
  }
  return layer.taus;
}

void KeptReader::read_stored(const StepView& step, Layer& layer) const {
  const auto stored = step.now(Field::kept_pair).floats();  // [tau, H, kind, sum]
  constexpr std::size_t kOfHead = kRowKinds.size() * kSumsPerKind;
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    Tau& tau = layer.taus[t];
    if (tau.found != Found::reuses) continue;
    const std::ptrdiff_t index = summary_tau(rules_[t], ReuseCount::since_read);
    if (index < 0) {
      tau.found = Found::unknown;
      continue;
    }
    const float* sums = &stored[static_cast<std::size_t>(index) * heads_ * kOfHead];
    tau.heads.resize(heads_);
    for (ByKind& head : tau.heads) {
      for (KeptTerms& terms : head) {
        terms = {double{sums[0]}, double{sums[1]}, double{sums[2]}, double{sums[3]},
                 double{sums[4]}};
        sums += kSumsPerKind;
      }
    }
  }
}

void KeptReader::read_arrays(const StepView& step, Layer& layer) const {
  thread_local Scratch scratch;
  scratch.external.clear();
  layer.sources.assign(rules_.size(), nullptr);
  for (std::size_t t = 0; t < rules_.size(); ++t) {
    Tau& tau = layer.taus[t];
    if (tau.found != Found::reuses) continue;
    layer.sources[t] = step.source(rules_[t]);
    if (layer.sources[t] == nullptr) {
      tau.found = Found::hidden;
      continue;
    }
    // Neighbouring taus mostly have the same source, so reuse its sums.
    const auto same = std::ranges::find(layer.sources, layer.sources[t]);
    const auto first = static_cast<std::size_t>(same - layer.sources.begin());
    tau.heads = first < t ? layer.taus[first].heads : compare(step, t, scratch);
  }
}

std::vector<KeptReader::ByKind> KeptReader::compare(const StepView& step, std::size_t t,
                                                    Scratch& scratch) const {
  if (scratch.external.empty()) {  // once a step
    to_floats(step.now(fields_.external), scratch.external);
    to_floats(step.now(Field::attention_internal), scratch.internal);
  }
  const ReuseRule& rule = rules_[t];
  to_floats(step.source(fields_.external, rule), scratch.source);
  const auto lse_external = step.now(fields_.lse_external).floats();
  const auto lse_internal = step.now(Field::attention_lse_internal).floats();
  const auto lse_source = step.source(fields_.lse_external, rule).floats();
  const auto valid = step.valid();
  const auto source_valid = step.source_valid(rule);
  const auto kinds = steps_.kinds(step.now(), t);
  const std::size_t block = valid.size();
  const auto channels = static_cast<std::size_t>(sizes_.channels_at(step.layer()));
  std::vector<ByKind> sums(heads_);
  for (std::size_t row = 0; row < heads_ * block; ++row) {
    const std::size_t i = row % block;
    if (valid[i] == 0 || source_valid[i] == 0) continue;
    if (lse_external[row] == -INFINITY || lse_source[row] == -INFINITY) continue;
    const double weight = external_weight(lse_external[row], lse_internal[row]);
    const double source_weight = external_weight(lse_source[row], lse_internal[row]);
    const float* external = &scratch.external[row * channels];
    const float* source = &scratch.source[row * channels];
    const MergeError error = best_row_products().merge_error(
        {external, &scratch.internal[row * channels], source, static_cast<float>(weight),
         static_cast<float>(source_weight), static_cast<float>(source_weight - weight)},
        channels);
    sums[row / block][kinds[i]].add({1.0, cosine_of(source, external, channels),
                                     std::abs(double{lse_external[row]} - double{lse_source[row]}),
                                     double{error.squared}, double{error.reference}});
  }
  return sums;
}

}  // namespace blockscope
