#include "analysis/metrics/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/metrics/cache.h"
#include "analysis/metrics/decoding.h"
#include "analysis/metrics/draft.h"
#include "analysis/metrics/drift.h"
#include "analysis/metrics/estimation_accuracy.h"
#include "analysis/metrics/external_mass_metric.h"
#include "analysis/metrics/heads.h"
#include "analysis/metrics/kept_pair.h"
#include "analysis/metrics/own_metrics.h"
#include "analysis/metrics/query_statistics.h"
#include "analysis/metrics/recall.h"
#include "analysis/metrics/reuse_error.h"
#include "analysis/metrics/router.h"
#include "analysis/metrics/selection.h"
#include "analysis/metrics/settling.h"
#include "analysis/metrics/similarity_metric.h"
#include "analysis/metrics/sinks.h"
#include "analysis/metrics/spread_metrics.h"
#include "analysis/metrics/union_size.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::string_view kFromSummary = "--from-summary";
constexpr std::string_view kSetSizes = "--set-sizes";
constexpr std::string_view kTaus = "--taus";
constexpr std::string_view kCount = "--count";
constexpr std::string_view kSinkFactor = "--sink-factor";

}  // namespace

const std::vector<MetricInfo>& all_metrics() {
  static const std::vector<MetricInfo> metrics{
      {"similarity",
       "cosine of A_out and A_in between adjacent steps",
       "summary",
       true,
       {kFromSummary},
       make_similarity_metric,
       std::nullopt,
       {{"similarity of A_out", "similarity_external", "cosine"},
        {"similarity of A_in", "similarity_internal", "cosine"}}},
      {"recall",
       "share of the first step's top-k set that later steps still select",
       "sets",
       true,
       {kFromSummary, kSetSizes},
       [](const MetricOptions& options) { return std::make_unique<RecallMetric>(options); },
       std::nullopt,
       {{"recall of step 1's set", "recall", "share"}}},
      {"union_size",
       "union of the tokens' top-k sets, mean and distribution",
       "sets",
       true,
       {kFromSummary},
       [](const MetricOptions& options) { return std::make_unique<UnionSizeMetric>(options); },
       std::nullopt,
       {{"union size", "union_size", "|union| / k"}}},
      {"entropy",
       "over how many keys a head spreads its weights, and the largest weight",
       "summary",
       true,
       {},
       make_entropy_metric,
       Field::spread_entropy,
       {{"entropy of attention", "entropy", "nats"},
        {"effective keys", "effective_keys", "keys"},
        {"largest weight", "largest", "share"}}},
      {"distance",
       "share of the weights by distance, and how much of it stays from step to step",
       "summary",
       true,
       {},
       make_distance_metric,
       Field::spread_distance,
       {{"agreement with the step before", "agreement", "share"},
        {"agreement with step 1", "agreement_first", "share"}}},
      {"regions",
       "share of the weights on the prompt, earlier answers, decided tokens and masks",
       "summary",
       true,
       {},
       make_regions_metric,
       Field::spread_region},
      {"heads",
       "one class a head: retrieval, sink, local or diffuse, with its scores",
       "summary",
       true,
       {},
       make_heads_metric,
       Field::spread_region},
      {"sinks",
       "prefix keys that receive much more than their share, and how they move",
       "sets",
       true,
       {kSinkFactor},
       make_sinks_metric,
       std::nullopt,
       {{"sinks", "sinks", "keys"},
        {"probability on sinks", "sink_mass", "share"},
        {"sinks that stay", "kept", "share"}}},
      {"est_acc",
       "share of each token's top-k set that the block's set contains",
       "full",
       true,
       {},
       [](const MetricOptions&) { return std::make_unique<EstimationAccuracyMetric>(); },
       std::nullopt,
       {{"EstAcc of step 1", "est_acc", "share"}}},
      {"selection",
       "share of the exact sets that a sparse policy read, and its error",
       "summary",
       true,
       {},
       [](const MetricOptions&) { return std::make_unique<SelectionMetric>(); },
       Field::attention_selected,
       {{"block accuracy", "block_accuracy", "share", "sets"},
        {"token accuracy", "token_accuracy", "share", "full"},
        {"probability read", "covered", "share"},
        {"output error", "output_error", "relative L2"}}},
      {"router",
       "how routers use their experts, and whether steps agree on them",
       "summary",
       true,
       {},
       [](const MetricOptions&) { return make_router_metric(); },
       Field::router_expert},
      {"cache",
       "positions that a cache computed and kept, its saving and staleness",
       "trajectory",
       true,
       {},
       [](const MetricOptions&) { return make_cache_metric(); },
       Field::query_end},
      {"draft",
       "drafted tokens that the target accepted, and the speed-up of each block length",
       "trajectory",
       true,
       {},
       [](const MetricOptions&) { return make_draft_metric(); },
       Field::draft_accepted},
      {"query_statistics",
       "five stages from predictions to top-k sets, compared with step 1",
       "summary",
       true,
       {kFromSummary},
       [](const MetricOptions& options) {
         return std::make_unique<QueryStatisticsMetric>(options);
       },
       std::nullopt,
       {{"query gap to step 1", "query_gap", "relative L2"}}},
      {"decoding",
       "tokens per step, confidence, steps of final tokens, M, accuracy",
       "trajectory",
       true,
       {kTaus, kCount},
       [](const MetricOptions& options) { return std::make_unique<DecodingMetric>(options); }},
      {"settling",
       "step from which the final token is predicted, and order of the decisions",
       "trajectory",
       true,
       {},
       [](const MetricOptions&) { return make_settling_metric(); }},
      {"similarity_states",
       "cosine of queries, keys, values and hidden states between adjacent steps",
       "outputs",
       false,
       {},
       [](const MetricOptions&) { return make_state_similarity_metric(); },
       std::nullopt,
       {{"similarity of queries", "similarity_query", "cosine"},
        {"similarity of keys", "similarity_key", "cosine"},
        {"similarity of values", "similarity_value", "cosine"},
        {"similarity of hidden", "similarity_hidden", "cosine"}}},
      {"drift",
       "cosine of a position's states between adjacent steps, by distance to its decision",
       "outputs",
       false,
       {},
       [](const MetricOptions&) { return make_drift_metric(); }},
      {"token_matrix",
       "token x token cosines of A_out and A_in between adjacent steps",
       "outputs",
       false,
       {},
       [](const MetricOptions&) { return make_token_matrix_metric(); }},
      {"external_mass",
       "share of the attention that goes to the prefix",
       "summary",
       true,
       {kFromSummary},
       make_external_mass_metric,
       std::nullopt,
       {{"external mass", "external_mass", "share"}}},
      {"reuse_error",
       "one-step error of reusing A_out, for every tau",
       "summary",
       true,
       {kFromSummary, kTaus, kCount},
       make_reuse_error,
       std::nullopt,
       {{"reuse error, tau 2", "relative_l2", "relative L2", nullptr, 2.0, "relative_l2_head"}}},
      {"kept_pair",
       "A_out and L_out compared with the kept pair, and the reuse error, by kind of row",
       "summary",
       true,
       {kFromSummary, kTaus, kCount},
       make_kept_pair,
       std::nullopt,
       {{"kept A_out, tau 2", "similarity_kept", "cosine", nullptr, 2.0, nullptr, "all"},
        {"kept A_out, masks", "similarity_kept", "cosine", nullptr, 2.0, nullptr, "masks"},
        {"kept A_out, known", "similarity_kept", "cosine", nullptr, 2.0, nullptr, "known"},
        {"kept A_out, decided", "similarity_kept", "cosine", nullptr, 2.0, nullptr, "decided"},
        {"change of L_out, tau 2", "lse_change", "nats", nullptr, 2.0, nullptr, "all"},
        {"reuse error, masks", "kept_error", "relative L2", nullptr, 2.0, "kept_error_head",
         "masks"},
        {"reuse error, known", "kept_error", "relative L2", nullptr, 2.0, "kept_error_head",
         "known"},
        {"reuse error, decided", "kept_error", "relative L2", nullptr, 2.0, "kept_error_head",
         "decided"}}},
  };
  return metrics;
}

const MetricInfo& metric_by_name(const std::string& name) {
  const auto found = std::ranges::find(all_metrics(), name, &MetricInfo::name);
  if (found != all_metrics().end()) return *found;
  std::string names;
  for (const MetricInfo& metric : all_metrics()) {
    names += (names.empty() ? "" : ", ") + metric.name;
  }
  for (const OwnMetric& metric : own_metrics()) names += ", " + metric.name;
  throw UsageError(fmt::format("metric `{}`: no such metric; expected one of {}", name, names));
}

}  // namespace blockscope
