#include "viewer/model/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "analysis/metrics/query_comparison.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::size_t kPassBytes = std::size_t{64} << 20;

std::string pair_key(const ViewModel& model, std::size_t other, const std::string& what) {
  return fmt::format("{}/compare/{}/{}", model.trace_key(model.selection().trace),
                     model.trace_key(other), what);
}

std::size_t array_bytes(const ResultArray& array) {
  return (array.values.size() + array.terms.size()) * sizeof(double);
}

std::shared_ptr<PairPayload> make_pair(const TraceReader& a, const TraceReader& b) {
  auto pair = std::make_shared<PairPayload>();
  pair->matches = match_sequences(a, b);
  pair->differences = shape_differences(a.info().meta, b.info().meta);
  pair->same_architecture = same_architecture(a.info().meta, b.info().meta);
  return pair;
}

/// The rows of both sides that a scope names. Throws UsageError when it names none.
std::pair<RowSelection, RowSelection> rows_of(const PairPayload& pair, CompareScope scope,
                                              std::int64_t sequence) {
  std::pair<RowSelection, RowSelection> rows;
  if (scope == CompareScope::everything) return rows;
  rows.first.sequences.emplace();
  rows.second.sequences.emplace();
  for (const SequenceMatch& match : pair.matches.pairs) {
    if (scope == CompareScope::sequence && match.a != sequence) continue;
    rows.first.sequences->push_back(match.a);
    rows.second.sequences->push_back(match.b);
  }
  if (!rows.first.sequences->empty()) return rows;
  throw UsageError(scope == CompareScope::sequence
                       ? fmt::format("Sequence {} of A has no partner in B: no sequence of B has "
                                     "its prompt or its name.",
                                     sequence)
                       : "The two traces have no prompt in common.");
}

/// Half of a job's progress.
class HalfProgress {
 public:
  HalfProgress(JobControl& control, double first) : control_(control), first_(first) {}
  const JobControl& control() const { return control_; }
  bool operator()(std::int64_t done, std::int64_t total) const {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    control_.report(first_ + share / 2, 1.0);
    return true;
  }

 private:
  JobControl& control_;
  double first_;
};

/// The metric of one side, or its problem if the trace can't give the metric.
std::optional<MetricResult> side_of(const TraceReader& trace, const PanelMetric& choice,
                                    const RowSelection& rows, const HalfProgress& progress,
                                    std::string& problem) {
  if (result_of_file(choice.metric) != nullptr) {
    problem =
        fmt::format("{} came from a file, so it is the same for both traces.", choice.view.label);
    return std::nullopt;
  }
  MetricOptions metric_options;
  metric_options.from_summary = true;
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name(choice.metric).make(metric_options));
  PassOptions options;
  options.rows = rows;
  options.memory_bytes = kPassBytes;
  options.progress = progress;
  try {
    const TraceGroup group({trace.info().path});
    require_pass(group, choice.metric, rows, progress.control());
    return std::move(run_pass(group, metrics, options).at(0));
  } catch (const Error& error) {
    problem = error.what();
    return std::nullopt;
  }
}

std::shared_ptr<const MetricComparison> compute_comparison(
    const TraceReader& a, const TraceReader& b, const PanelMetric& choice, CompareScope scope,
    std::int64_t sequence, JobControl& control) {
  const auto pair = make_pair(a, b);
  const auto rows = rows_of(*pair, scope, sequence);
  auto payload = std::make_shared<MetricComparison>();
  if (const auto result =
          side_of(a, choice, rows.first, HalfProgress(control, 0.0), payload->problem_a)) {
    payload->by_head_a = means_by_head(*result, choice);
    payload->by_step_a = means_by_step(*result, choice);
    payload->grid_a = with_range(head_grid(payload->by_head_a, a.info().meta));
  }
  if (const auto result =
          side_of(b, choice, rows.second, HalfProgress(control, 0.5), payload->problem_b)) {
    payload->by_head_b = means_by_head(*result, choice);
    payload->by_step_b = means_by_step(*result, choice);
    payload->grid_b = with_range(head_grid(payload->by_head_b, b.info().meta));
  }
  if (payload->grid_a && payload->grid_b && pair->same_architecture) {
    payload->grid_difference =
        with_range(head_grid(difference(payload->by_head_b, payload->by_head_a), a.info().meta));
    payload->by_step_difference = difference(payload->by_step_b, payload->by_step_a);
  }
  return payload;
}

std::vector<std::string> texts_of(const TraceReader& trace,
                                  const std::vector<std::int64_t>& tokens) {
  std::vector<std::string> texts;
  for (const std::int64_t token : tokens) texts.push_back(readable_token(trace, token));
  return texts;
}

}  // namespace

std::size_t PairPayload::bytes() const {
  return sizeof(*this) + matches.pairs.size() * sizeof(SequenceMatch) +
         (matches.only_a.size() + matches.only_b.size()) * sizeof(std::int64_t);
}

const SequenceMatch* PairPayload::of(std::int64_t sequence_a) const {
  const auto found = std::ranges::find(matches.pairs, sequence_a, &SequenceMatch::a);
  return found == matches.pairs.end() ? nullptr : &*found;
}

std::string PairPayload::text() const {
  const auto by_name = std::ranges::count(matches.pairs, false, &SequenceMatch::same_prompt);
  std::string text = fmt::format("{} sequence{} in both", matches.pairs.size(),
                                 matches.pairs.size() == 1 ? "" : "s");
  if (by_name > 0) text += fmt::format(" ({} by name only: their prompt tokens differ)", by_name);
  return text +
         fmt::format("; {} only in A, {} only in B", matches.only_a.size(), matches.only_b.size());
}

std::size_t MetricComparison::bytes() const {
  std::size_t sum = sizeof(*this);
  for (const ResultArray* array :
       {&by_head_a, &by_head_b, &by_step_a, &by_step_b, &by_step_difference}) {
    sum += array_bytes(*array);
  }
  for (const auto& grid : {grid_a, grid_b, grid_difference}) sum += grid ? grid->bytes() : 0;
  return sum;
}

std::size_t TokensPayload::bytes() const {
  std::size_t sum = sizeof(*this) + tokens.states.size() + tokens.tokens_a.size() * 16;
  for (const auto* texts : {&text_a, &text_b}) {
    for (const std::string& text : *texts) sum += sizeof(text) + text.size();
  }
  return sum;
}

Data<PairPayload> compare_pair(ViewModel& model) {
  const std::optional<std::size_t> other = model.other_trace();
  if (!other) return {};
  return model.data().request<PairPayload>(
      "compare-pair", pair_key(model, *other, "pair"),
      [a = model.selection().trace, b = *other](OpenTraces& traces, JobControl&) {
        return make_pair(open_trace(traces, a), open_trace(traces, b));
      });
}

Data<MetricComparison> compare_metric(ViewModel& model, std::size_t choice, CompareScope scope) {
  const std::optional<std::size_t> other = model.other_trace();
  if (!other) return {};
  const std::int64_t sequence =
      scope == CompareScope::sequence && model.block() != nullptr ? model.block()->sequence : -1;
  return model.data().request<MetricComparison>(
      "compare-metric",
      pair_key(model, *other,
               fmt::format("metric/{}/{}/{}", choice, static_cast<int>(scope), sequence)),
      [a = model.selection().trace, b = *other, choice, scope, sequence](OpenTraces& traces,
                                                                         JobControl& control) {
        return compute_comparison(open_trace(traces, a), open_trace(traces, b),
                                  panel_metrics()[choice], scope, sequence, control);
      });
}

Data<TokensPayload> compare_trajectories(ViewModel& model) {
  const std::optional<std::size_t> other = model.other_trace();
  if (!other || model.block() == nullptr) return {};
  const std::int64_t sequence = model.block()->sequence;
  return model.data().request<TokensPayload>(
      "compare-tokens", pair_key(model, *other, fmt::format("tokens/{}", sequence)),
      [a = model.selection().trace, b = *other, sequence](OpenTraces& traces, JobControl& control) {
        const TraceReader& trace_a = open_trace(traces, a);
        const TraceReader& trace_b = open_trace(traces, b);
        const auto pair = make_pair(trace_a, trace_b);
        rows_of(*pair, CompareScope::sequence, sequence);  // throws if there is no partner
        auto payload = std::make_shared<TokensPayload>();
        payload->match = *pair->of(sequence);
        payload->name = trace_a.sequence(sequence).name;
        payload->tokens =
            compare_tokens(trace_a, payload->match.a, trace_b, payload->match.b,
                           [&](std::int64_t done, std::int64_t total) {
                             control.report(static_cast<double>(done), static_cast<double>(total));
                             return true;
                           });
        payload->text_a = texts_of(trace_a, payload->tokens.tokens_a);
        payload->text_b = texts_of(trace_b, payload->tokens.tokens_b);
        return payload;
      });
}

Data<MetricPayload> compare_queries(ViewModel& model) {
  const std::optional<std::size_t> other = model.other_trace();
  if (!other) return {};
  return model.data().request<MetricPayload>(
      "compare-queries", pair_key(model, *other, "queries"),
      [a = model.selection().trace, b = *other](OpenTraces& traces, JobControl& control) {
        MetricOptions metric_options;
        metric_options.from_summary = true;
        PassOptions options;
        options.memory_bytes = kPassBytes;
        options.progress = [&](std::int64_t done, std::int64_t total) {
          control.report(static_cast<double>(done), static_cast<double>(total));
          return true;
        };
        for (const std::size_t trace : {a, b}) {
          require_pass(open_trace(traces, trace), "query_statistics", {}, control);
        }
        auto payload = std::make_shared<MetricPayload>();
        payload->result = compare_query_statistics(TraceGroup({open_trace(traces, a).info().path}),
                                                   TraceGroup({open_trace(traces, b).info().path}),
                                                   metric_options, options);
        return payload;
      });
}

}  // namespace blockscope
