#include "analysis/pass/exact_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace blockscope {
namespace {

/// The policy that the run names; empty if it names none.
std::string policy_of(const TraceInfo& trace) {
  const auto run = nlohmann::json::parse(trace.meta.run_json, nullptr, false);
  if (!run.is_object()) return {};
  const auto policy = run.find("policy");
  return policy != run.end() && policy->is_string() ? policy->get<std::string>() : "";
}

/// Whether the run changed attention (--intervene).
bool intervened(const TraceInfo& trace) {
  const auto run = nlohmann::json::parse(trace.meta.run_json, nullptr, false);
  return trace.meta.has_interventions || (run.is_object() && run.contains("interventions"));
}

/// The text after `--record` for a capture that writes the dataset.
std::string_view level_of(Exists exists) {
  switch (exists) {
    case Exists::always:
    case Exists::since_read:
    case Exists::continuous:
    case Exists::cache:
    case Exists::ragged:
    case Exists::model_layers:
      return "trajectory";
    case Exists::summary:
    case Exists::spread:
    case Exists::answer_blocks:
    case Exists::kept_pair:
    case Exists::step_pairs:
      return "summary";
    case Exists::prompt_regions:
      return "summary --regions FILE";
    case Exists::intervened:
      return "summary --intervene drop_head,layers=3";
    case Exists::maps:
      return "summary --record-maps \"layers=3;heads=0\"";
    case Exists::selected:
    case Exists::lse_residual:
      return "summary --policy mage,k=512";
    case Exists::shadow:
    case Exists::staleness:
      return "summary --shadow";
    case Exists::router:
      return "summary --record-router";
    case Exists::revocations:
      return "trajectory --strategy wino";
    case Exists::kl:
      return "trajectory --strategy klass";
    case Exists::draft:
    case Exists::draft_cost:
    case Exists::candidates:
      return "trajectory --draft DRAFT";
    case Exists::sets:
    case Exists::set_norms:
      return "sets";
    case Exists::outputs:
      return "outputs";
    case Exists::residual:
      return "outputs --policy mage+flashblock,k=512";
    case Exists::shadow_outputs:
      return "outputs --shadow";
    case Exists::full:
    case Exists::sets_full:
      break;
  }
  return "full";
}

/// The models whose traces have the dataset, where not all models' do.
std::string_view model_of(Exists exists) {
  switch (exists) {
    case Exists::continuous:
    case Exists::step_pairs:
      return " a continuous model";
    case Exists::cache:
    case Exists::staleness:
      return " a bidirectional model";
    case Exists::ragged:
    case Exists::model_layers:
      return " a model whose layers differ";
    default:
      return "";
  }
}

}  // namespace

std::string inexact_policy(const TraceInfo& trace) {
  const std::string policy = policy_of(trace);
  if (intervened(trace)) return (policy.empty() ? "exact" : policy) + " with interventions";
  return policy == "exact" ? "" : policy;
}

ExactFields exact_fields(const TraceInfo& trace) {
  const std::string policy = inexact_policy(trace);
  if (policy.empty()) return ExactFields{};
  if (trace.meta.has_shadow) {
    return ExactFields{Field::shadow_external, Field::shadow_lse_external};
  }
  throw TraceError(fmt::format(
      "{}: expected exact attention values, got those of policy `{}`, which may be from an earlier "
      "step or from only some keys. HINT: capture with `--policy exact`, or with `--shadow`, which "
      "also stores the exact values.",
      trace.path, policy));
}

std::vector<Field> output_fields(const ExactFields& exact) {
  return {exact.external, exact.lse_external, Field::attention_internal,
          Field::attention_lse_internal};
}

std::string paths_of(const std::vector<Field>& fields) {
  std::string paths;
  for (const Field field : fields) {
    paths += (paths.empty() ? "" : ", ") + std::string(spec_of(field).path);
  }
  return paths;
}

void require_field(const TraceReader& trace, Field field, const std::string& metric) {
  if (trace.has(field)) return;
  const DatasetSpec& spec = spec_of(field);
  const TraceMeta& meta = trace.info().meta;
  const bool sets = spec.exists == Exists::sets || spec.exists == Exists::sets_full;
  throw TraceError(fmt::format(
      "{}: {} needs {}, which this trace of level {} does not have. HINT: "
      "capture{} with `--record {}`{}.",
      trace.info().path, metric, spec.path, to_string(meta.level), model_of(spec.exists),
      level_of(spec.exists), sets && meta.set_size == 0 ? " and --set-size > 0" : ""));
}

void require_tokens(const TraceReader& trace, const std::string& metric) {
  if (!trace.info().meta.continuous()) return;
  throw TraceError(fmt::format("{}: {}: the trace has no tokens, because its model is continuous",
                               trace.info().path, metric));
}

}  // namespace blockscope
