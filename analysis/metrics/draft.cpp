#include "analysis/metrics/draft.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/draft_counts.h"
#include "analysis/metrics/draft_rounds.h"
#include "analysis/metrics/draft_selection.h"
#include "analysis/metrics/draft_speedup.h"
#include "analysis/metrics/draft_symptoms.h"
#include "analysis/metrics/external_mass_metric.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/write/round_records.h"

namespace blockscope {
namespace {

constexpr const char* kDraftMetric = "draft";
constexpr const char* kBehind = "reached positions beyond the answer's length";
constexpr const char* kUnknownValue = "values of reached positions that are not known";
constexpr const char* kNoCost = "traces without /draft/cost: no predicted speed-up";
constexpr const char* kFiltered = "rows that the recorder's filters left out: no external mass";

ResultArray array_of(std::string name, std::string unit, std::string description, ResultAxis axis) {
  return {std::move(name), std::move(unit), std::move(description), {std::move(axis)}, {}, {}};
}

ResultAxis counted_axis(std::string name, std::size_t count) {
  ResultAxis axis{std::move(name), {}, {}};
  for (std::size_t i = 1; i <= count; ++i) axis.index.push_back(static_cast<double>(i));
  return axis;
}

void append(ResultArray& array, const RunningMean& mean) {
  array.values.push_back(mean.mean());
  array.terms.push_back(mean.terms());
}

/// Means of a value over accepted positions, and over reached positions that were not accepted.
struct TwoMeans {
  RunningMean accepted, refused;
  void add(double value, bool was_accepted) { (was_accepted ? accepted : refused).add(value); }
};

/// Sums of one recorded layer. Only one thread at a time uses them.
struct LayerMass {
  BinnedShares by_mass{mass_bins()};
  std::vector<TwoMeans> heads;
  std::vector<double> mean;  // over heads, for the current row's positions
};

class DraftMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::draft_accepted, kDraftMetric);
    finish_trace();
    if (layers_.empty()) {
      shape_ = shape;
      vocab_size_ = trace.info().meta.vocab_size;
      layers_.resize(shape.layers.size());
      for (LayerMass& layer : layers_) layer.heads.resize(shape.heads.size());
      counts_ = LayerCounts(shape.layers.size());
      lengths_.assign(static_cast<std::size_t>(shape.block_length), 0);
      positions_.resize(lengths_.size() - 1);
    }
    trace_ = &trace;
    if (!trace.info().meta.draft_cost.empty()) speedup_.expect(shape.block_length);
    rounds_.emplace(trace);
    first_sequence_ += sequences_of_last_;
    sequences_of_last_ = trace.info().num_sequences;
    captured_ = knows_model_shape(trace.info().meta);
    has_selector_ = has_selector_ && trace.has(Field::candidate_chosen);
    // The row whose logits predict a position.
    shift_ = trace.info().meta.logit_shift;
    has_mass_ = has_mass_ && trace.has(Field::attention_lse_internal) &&
                !is_of_target(trace.info().meta);  // whose attention is not the draft's
    if (!has_mass_) return {};
    return Needs{{Field::attention_lse_external, Field::attention_lse_internal}, false, false, {}};
  }

  void add_block(const BlockSteps& block) override {
    for (const StepRef& step : block.steps) add_round(block.sequence, step);
    if (!has_mass_) return;
    left_out_[kFiltered] +=
        std::ranges::count_if(block.steps, [](const StepRef& step) { return !step.recorded; });
  }

  void add(const StepView& step) override {
    if (!has_mass_) return;
    const Reached& reached = reached_.at(step.now().row);
    const auto positions = static_cast<std::size_t>(shape_.block_length);
    const auto external = step.now(Field::attention_lse_external).floats();
    const auto internal = step.now(Field::attention_lse_internal).floats();
    LayerMass& layer = layers_[step.layer()];
    for (std::int64_t p = 1; p <= reached.positions; ++p) {
      const bool accepted = p <= reached.accepted;
      double sum = 0.0;
      for (std::size_t head = 0; head < layer.heads.size(); ++head) {
        const std::size_t at = head * positions + static_cast<std::size_t>(p - shift_);
        const double mass = external_mass_of(external[at], internal[at]);
        layer.heads[head].add(mass, accepted);
        sum += mass;
      }
      const double mean = sum / static_cast<double>(layer.heads.size());
      if (!layer.by_mass.add(mean, accepted)) counts_.values(step.layer(), kNonFinite);
    }
  }

  MetricResult finish() override;

 private:
  struct Reached {
    std::int64_t positions = 0, accepted = 0;
  };

  void add_round(std::int64_t sequence, const StepRef& step);
  void finish_trace();
  ResultArray means() const;
  std::vector<ResultArray> by_position() const;
  ResultArray within_best() const;
  std::vector<ResultArray> by_depth() const;
  std::vector<ResultArray> by_text() const;
  std::vector<ResultArray> by_mass() const;

  TraceShape shape_;
  const TraceReader* trace_ = nullptr;
  std::optional<DraftRounds> rounds_;  // of the current trace
  std::int64_t vocab_size_ = 0;
  std::vector<std::int64_t> lengths_;           // [length - 1] rounds
  std::vector<std::int64_t> lengths_of_trace_;  // likewise, for the current trace
  std::vector<AcceptedShare> positions_;        // [position - 1]
  TwoMeans draft_entropy_, target_entropy_;
  BinnedShares by_draft_entropy_{entropy_bins()}, by_target_entropy_{entropy_bins()};
  BinnedShares by_drafted_rank_under_target_{rank_bins()}, by_target_rank_under_draft_{rank_bins()};
  BinnedShares by_depth_{depth_bins()};
  std::vector<RunningMean> length_by_depth_{depth_bins().edges.size()};
  std::map<std::int64_t, std::pair<std::string, RunningMean>> sequences_;  // by number in the group
  std::map<std::string, RunningMean> tasks_;
  std::int64_t first_sequence_ = 0, sequences_of_last_ = 0;
  DraftSpeedup speedup_;
  DraftSymptoms symptoms_;
  bool captured_ = true;  // the current trace, by us: a rank of -1 is that of a token without one
  bool has_mass_ = true;  // true if all traces have it
  bool has_selector_ = true;  // likewise
  std::int64_t shift_ = 0;
  DraftSelection selection_;
  std::unordered_map<std::int64_t, Reached> reached_;  // by row of the current trace
  std::vector<LayerMass> layers_;
  LayerCounts counts_;
  LeftOut left_out_;
};

void DraftMetric::add_round(std::int64_t sequence, const StepRef& step) {
  const DraftRound round = rounds_->at(step);
  const std::int64_t length = round.length();
  const std::int64_t reached = round.reached();
  lengths_of_trace_.resize(lengths_.size(), 0);
  ++lengths_of_trace_[static_cast<std::size_t>(length - 1)];
  const std::int64_t anywhere = std::min(round.accepted + 1, round.drafted);
  left_out_[kBehind] += anywhere - reached;
  for (std::int64_t p = 1; p <= reached; ++p) {
    const auto at = static_cast<std::size_t>(p);
    const bool accepted = p <= round.accepted;
    positions_[at - 1].add(accepted);
    by_depth_.add(step.context_length, accepted);
    const auto add_entropy = [&](double value, TwoMeans& means, BinnedShares& bins) {
      if (!bins.add(std::max(value, 0.0), accepted)) ++left_out_[kUnknownValue];
      means.add(value, accepted);
    };
    const auto add_rank = [&](std::int32_t rank, bool may_be_none, BinnedShares& bins) {
      if (rank >= 0 || may_be_none) {
        bins.add(rank, accepted);
      } else {
        ++left_out_[kUnknownValue];
      }
    };
    add_entropy(round.draft_entropy[at], draft_entropy_, by_draft_entropy_);
    add_entropy(round.target_entropy[at], target_entropy_, by_target_entropy_);
    add_rank(round.drafted_rank_under_target[at], false, by_drafted_rank_under_target_);
    add_rank(round.target_rank_under_draft[at], captured_, by_target_rank_under_draft_);
    if (!has_selector_) continue;
    if (round.candidate_chosen[at] >= 0) {
      selection_.add(at, round.candidate_chosen[at], round.candidate_target[at], accepted);
    } else {
      ++left_out_[kUnknownValue];
    }
  }
  symptoms_.add(*trace_, step, round);
  const auto tokens = static_cast<double>(length);
  const std::ptrdiff_t depth = by_depth_.edges().bin(step.context_length);
  length_by_depth_[static_cast<std::size_t>(depth)].add(tokens);
  auto& [name, mean] = sequences_[first_sequence_ + sequence];
  if (mean.values() == 0) name = trace_->sequence(sequence).name;
  mean.add(tokens);
  tasks_[task_of(name)].add(tokens);
  if (has_mass_) reached_[step.row] = {reached, round.accepted};
}

/// Called before another trace, and at the end.
void DraftMetric::finish_trace() {
  if (trace_ == nullptr) return;
  const std::vector<DraftCost>& costs = trace_->info().meta.draft_cost;
  if (costs.empty()) {
    ++left_out_[kNoCost];
  } else if (!lengths_of_trace_.empty()) {
    speedup_.add(lengths_of_trace_, costs);
  }
  for (std::size_t i = 0; i < lengths_of_trace_.size(); ++i) lengths_[i] += lengths_of_trace_[i];
  lengths_of_trace_.clear();
  symptoms_.finish_trace();
  reached_.clear();
  trace_ = nullptr;
}

ResultArray DraftMetric::means() const {
  ResultArray array =
      array_of("means", "tokens, share, nats, nats, nats, nats",
               "means over rounds, and over reached positions",
               {"quantity",
                {},
                {"tokens a round", "acceptance", "draft entropy, accepted",
                 "draft entropy, refused", "target entropy, accepted", "target entropy, refused"}});
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    rounds += lengths_[i];
    tokens += lengths_[i] * static_cast<std::int64_t>(i + 1);
  }
  array.values.push_back(static_cast<double>(tokens) / static_cast<double>(rounds));
  array.terms.push_back(rounds);
  AcceptedShare all;
  for (const AcceptedShare& position : positions_) {
    all.accepted += position.accepted;
    all.reached += position.reached;
  }
  append(array, all);
  for (const TwoMeans* means : {&draft_entropy_, &target_entropy_}) {
    append(array, means->accepted);
    append(array, means->refused);
  }
  return array;
}

std::vector<ResultArray> DraftMetric::by_position() const {
  ResultArray lengths = array_of(
      "lengths", "count", "rounds by the number of tokens they added, including the target's own",
      counted_axis("length", lengths_.size()));
  lengths.values.assign(lengths_.begin(), lengths_.end());
  const ResultAxis axis = counted_axis("position", positions_.size());
  ResultArray survival = array_of("survival", "share", "rounds that accepted the position", axis);
  ResultArray acceptance =
      array_of("acceptance", "share", "accepted positions, as a share of reached ones", axis);
  std::int64_t rounds = 0;
  for (const std::int64_t count : lengths_) rounds += count;
  std::int64_t beyond = rounds;
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    beyond -= lengths_[i];
    append(survival, AcceptedShare{beyond, rounds});
    append(acceptance, positions_[i]);
  }
  return {lengths, survival, acceptance};
}

/// Rank bins begin at powers of two, so their sums count the best 1, 2, 4, ... tokens. They go up
/// to the whole vocabulary, so that results of several traces can be added.
ResultArray DraftMetric::within_best() const {
  ResultArray array = array_of("within_best", "share",
                               "reached positions whose target's token is among the draft's best",
                               {"candidates", {}, {}});
  const std::vector<AcceptedShare>& bins = by_target_rank_under_draft_.shares();
  const std::vector<double>& edges = by_target_rank_under_draft_.edges().edges;
  std::int64_t reached = 0;
  for (const AcceptedShare& bin : bins) reached += bin.reached;
  std::int64_t within = 0;
  for (std::size_t i = 1; i + 1 < bins.size(); ++i) {  // bin 0: not in the draft's vocabulary
    within += bins[i].reached;
    array.axes[0].index.push_back(edges[i + 1]);
    append(array, AcceptedShare{within, reached});
    if (edges[i + 1] >= static_cast<double>(vocab_size_)) break;
  }
  return array;
}

std::vector<ResultArray> DraftMetric::by_depth() const {
  ResultArray shares = by_depth_.array(
      "by_depth", "acceptance by the number of keys before the block", "context_length");
  ResultArray lengths =
      array_of("length_by_depth", "tokens", "tokens a round by the number of keys before the block",
               {"context_length", {}, {}});
  const ResultAxis bins = by_depth_.edges().axis("context_length");
  for (std::size_t i = 0; i < length_by_depth_.size(); ++i) {
    if (length_by_depth_[i].terms() == 0) continue;
    lengths.axes[0].index.push_back(bins.index[i]);
    lengths.axes[0].labels.push_back(bins.labels[i]);
    append(lengths, length_by_depth_[i]);
  }
  return {shares, lengths};
}

std::vector<ResultArray> DraftMetric::by_text() const {
  ResultArray sequences =
      array_of("length_by_sequence", "tokens", "tokens a round, by sequence", {"sequence", {}, {}});
  for (const auto& [number, named] : sequences_) {
    sequences.axes[0].index.push_back(static_cast<double>(number));
    append(sequences, named.second);
  }
  ResultArray tasks = array_of(
      "length_by_task", "tokens",
      "tokens a round, by the sequences' names without the numbers at their end", {"task", {}, {}});
  for (const auto& [task, mean] : tasks_) {
    tasks.axes[0].labels.push_back(task);
    append(tasks, mean);
  }
  return {sequences, tasks};
}

std::vector<ResultArray> DraftMetric::by_mass() const {
  const ResultAxis bins = mass_bins().axis("mass_bin");
  ResultArray shares{"by_external_mass",
                     "share",
                     "acceptance by the share of the attention that goes to the context's features",
                     {shape_.layer_axis(), bins},
                     {},
                     {}};
  ResultArray accepted{"mass_accepted",
                       "share",
                       "external mass of accepted positions",
                       {shape_.layer_axis(), shape_.head_axis()},
                       {},
                       {}};
  ResultArray refused = accepted;
  refused.name = "mass_refused";
  refused.description = "external mass of reached positions that were rejected";
  for (const LayerMass& layer : layers_) {
    for (const AcceptedShare& bin : layer.by_mass.shares()) append(shares, bin);
    for (const TwoMeans& head : layer.heads) {
      append(accepted, head.accepted);
      append(refused, head.refused);
    }
  }
  return {shares, accepted, refused};
}

MetricResult DraftMetric::finish() {
  finish_trace();
  MetricResult result;
  result.metric = kDraftMetric;
  result.title = "Acceptance of drafts";
  result.formula =
      "accepted / reached; length(b) T_target(1) / (T_draft(b) + T_target(b)), length(b) = mean "
      "min(length, b)";
  result.source = "DFlash, arXiv 2602.06036";
  result.computed_from = "/draft";
  const auto add = [&](std::vector<ResultArray> arrays) {
    for (ResultArray& array : arrays) result.arrays.push_back(std::move(array));
  };
  add({means()});
  add(by_position());
  add({by_draft_entropy_.array("by_draft_entropy", "acceptance by the draft's entropy",
                               "draft_entropy"),
       by_target_entropy_.array("by_target_entropy", "acceptance by the target's entropy",
                                "target_entropy"),
       by_drafted_rank_under_target_.array(
           "by_drafted_rank_under_target",
           "acceptance by the drafted token's rank under the target", "drafted_rank_under_target"),
       by_target_rank_under_draft_.array(
           "by_target_rank_under_draft",
           "acceptance by the rank of the target's token under the draft",
           "target_rank_under_draft"),
       within_best()});
  add(by_depth());
  add(by_text());
  add(symptoms_.arrays(by_depth_));
  if (has_mass_) {
    result.computed_from += ", /attention/lse_external, /attention/lse_internal";
    add(by_mass());
  }
  if (has_selector_) add(selection_.arrays(positions_.size()));
  if (!speedup_.empty()) {
    result.computed_from += ", /draft/cost";
    add(speedup_.arrays());
  }
  counts_.add_to(left_out_);
  result.left_out = without_zeros(left_out_);
  return result;
}

}  // namespace

std::unique_ptr<StepMetric> make_draft_metric() { return std::make_unique<DraftMetric>(); }

}  // namespace blockscope
