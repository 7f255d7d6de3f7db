// What happens to the predictions if attention is taken away: each head's external part, each
// head, each head's change over the steps (its external pair is frozen), what stands in a region,
// and the sinks. Replays of the exact run give the KL of the predictions; free runs give the
// accuracy. Head ablation as in Michel et al., arXiv 1905.10650.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/figures/head_map.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"
#include "analysis/math/running_mean.h"
#include "command_line/interrupt.h"
#include "decode_record/base/nan.h"
#include "decode_record/schema/trace_meta.h"
#include "probe/policies/exact_policy.h"
#include "probe/study/study.h"
#include "probe/verify/free_run.h"

namespace blockscope {
namespace {

/// What is taken away from a single head. `name` is the column `what` of the CSV.
struct HeadKnockout {
  const char* name;
  const char* intervention;  // with {} for the layer and {} for the head
  const char* title;
};
constexpr std::array<HeadKnockout, 3> kOfHeads{
    {{"external", "drop_external,layers={},heads={}", "a head sees only the block"},
     {"head", "drop_head,layers={},heads={}", "a head gives 0"},
     {"frozen", "freeze_external,layers={},heads={}", "a head keeps the external pair of step 1"}}};
constexpr const char* kFrozen = "frozen";

struct Knockout {
  std::string what;  // of kOfHeads; "region" or "sinks"
  int64_t layer = -1, head = -1;
  std::string region;
  PolicyOptions policy;
};

/// One knockout on one prompt.
struct Effect {
  double kl = 0.0;  // sum over masked positions, nats
  int64_t positions = 0;
  int64_t same = 0;  // positions with the same most probable token
};

/// Logits of the masked positions of every pass: kept in the exact run, and compared
/// with it in the others.
class MaskedPredictions : public DecodeObserver {
 public:
  explicit MaskedPredictions(const MaskedPredictions* exact = nullptr) : exact_(exact) {}

  bool looks_inside(const PassContext&) const override { return false; }
  bool wants_every_prediction() const override { return false; }
  bool wants_logits() const override { return true; }
  void on_masked_logits(const PassContext&, const std::vector<int64_t>&,
                        const std::vector<std::vector<bool>>&, const at::Tensor& logits) override {
    take(logits);
  }
  /// From an LM head that can't leave decided positions out.
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits) override {
    const std::vector<bool>& masked = context.sequences[static_cast<size_t>(slots.at(0))].masked;
    std::vector<int64_t> rows;
    for (size_t p = 0; p < masked.size(); ++p) {
      if (masked[p]) rows.push_back(static_cast<int64_t>(p));
    }
    take(logits[0].index_select(0, at::tensor(rows, at::kLong).to(logits.device())));
  }
  Effect effect() const { return effect_; }

 private:
  /// In double: the rounding of float32 logarithms is as large as the smallest effects.
  void take(const at::Tensor& logits) {
    if (exact_ == nullptr) {
      passes_.push_back(logits.to(at::kFloat));
      return;
    }
    const auto log_p = [](const at::Tensor& x) { return at::log_softmax(x.to(at::kDouble), -1); };
    const at::Tensor reference = log_p(exact_->passes_.at(pass_++));
    const at::Tensor now = log_p(logits);
    const at::Tensor predicted = reference.isfinite().any(-1);  // NaN: the pass predicts nothing
    const at::Tensor p = reference.exp();
    const at::Tensor terms = at::where(p > 0.0, p * (reference - now), 0.0).sum(-1);
    effect_.kl += at::where(predicted, terms, 0.0).sum().item<double>();
    effect_.positions += predicted.sum().item<int64_t>();
    effect_.same +=
        reference.argmax(-1).eq(now.argmax(-1)).logical_and(predicted).sum().item<int64_t>();
  }

  const MaskedPredictions* exact_;
  std::vector<at::Tensor> passes_;
  size_t pass_ = 0;
  Effect effect_;
};

class KnockoutStudy : public PromptStudy {
 public:
  explicit KnockoutStudy(const StudyInput& input) : PromptStudy(input) {
    const ModelConfig& config = input.model.config;
    check_policy_fits(read_policy("exact", {"drop_head"}), policy_site(input.decode),
                      "study knockout:");
    for (const HeadKnockout& of_head : kOfHeads) {
      for (int64_t layer = 0; layer < config.num_layers; ++layer) {
        for (int64_t head = 0; head < config.num_heads; ++head) {
          add(of_head.name, fmt::format(fmt::runtime(of_head.intervention), layer, head), layer,
              head);
        }
      }
    }
    for (const std::string_view region : kRegionNames) {
      if (region == "after" && !input.decode.bidirectional) continue;
      add("region", fmt::format("hide_keys,region={}", region), -1, -1, std::string(region));
    }
    add("sinks", "hide_keys,sinks=3", -1, -1);
  }

  nlohmann::json measure(size_t cell) override;
  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  /// Means over the prompts.
  struct Total {
    RunningMean kl, accuracy, lost;  // lost: exact's score minus this one
    int64_t positions = 0, same = 0, tokens = 0, equal = 0;
    double share(int64_t of, int64_t all) const {
      return all == 0 ? kNaN : static_cast<double>(of) / static_cast<double>(all);
    }
  };

  void add(const char* what, const std::string& intervention, int64_t layer, int64_t head,
           std::string region = "") {
    knockouts_.push_back(
        {what, layer, head, std::move(region), read_policy("exact", {intervention})});
  }
  std::vector<Total> totals(const std::vector<nlohmann::json>& values) const;
  Figure map_of(const HeadKnockout& of_head, const std::vector<Total>& totals) const;

  std::vector<Knockout> knockouts_;
};

nlohmann::json KnockoutStudy::measure(size_t cell) {
  const auto interrupted = [] { return InterruptGuard::signal() != 0; };
  const ModelConfig& config = input_.model.config;
  StudyPrompt prompt = prompts_[cell];
  DecodeRequest& request = prompt.prompt.request;
  request.sequence = 0;
  if (!input_.decode.bidirectional) {
    request.prefix = std::make_shared<const CommittedPrefix>(
        prefill_prompt(*input_.model.model, input_.decode, request, interrupted));
    InterruptGuard::check();
  }
  const auto decode = [&](AttentionPolicy& policy, const DecodeRequest& one,
                          DecodeObserver& observer) {
    DecodeCallbacks callbacks;
    callbacks.observer = &observer;
    callbacks.interrupted = interrupted;
    int64_t next_pass = 0;
    decode_batch(*input_.model.model, policy, input_.decode, {one}, next_pass, callbacks);
    InterruptGuard::check();
  };
  const auto exact = make_exact_policy();
  FreeRunObserver run(input_.decode, layer_sizes(config));
  decode(*exact, request, run);
  DecodeRequest replay = request;
  replay_of(run.sequences.at(0), replay);
  MaskedPredictions reference;
  decode(*make_exact_policy(), replay, reference);

  std::vector<StudyMethod> methods{{"exact", {}, 0}};
  for (const Knockout& one : knockouts_) methods.push_back({one.what, one.policy, 0});
  const std::vector<MethodRun> runs =
      run_methods(input_.model, input_.tokenizer, input_.decode, prompt, methods, 1, false);
  const auto score = [](const MethodRun& one) {
    return std::isnan(one.score) ? nlohmann::json() : nlohmann::json(one.score);
  };
  nlohmann::json json = nlohmann::json::array();
  for (size_t i = 0; i < knockouts_.size(); ++i) {
    MaskedPredictions observer(&reference);
    decode(*choose_policy(knockouts_[i].policy, policy_model(input_.model)).policy, replay,
           observer);
    const Effect effect = observer.effect();
    json.push_back({{"kl", effect.kl},
                    {"positions", effect.positions},
                    {"same", effect.same},
                    {"score", score(runs[i + 1])},
                    {"exact_score", score(runs.front())},
                    {"tokens", runs[i + 1].tokens},
                    {"equal", runs[i + 1].equal}});
  }
  return json;
}

std::vector<KnockoutStudy::Total> KnockoutStudy::totals(
    const std::vector<nlohmann::json>& values) const {
  std::vector<Total> totals(knockouts_.size());
  for (const nlohmann::json& cell : values) {
    for (size_t i = 0; i < totals.size(); ++i) {
      const nlohmann::json& one = cell.at(i);
      Total& total = totals[i];
      const auto positions = one.at("positions").get<int64_t>();
      if (positions > 0) total.kl.add(one.at("kl").get<double>() / static_cast<double>(positions));
      total.positions += positions;
      total.same += one.at("same").get<int64_t>();
      total.tokens += one.at("tokens").get<int64_t>();
      total.equal += one.at("equal").get<int64_t>();
      if (one.at("score").is_null()) continue;
      total.accuracy.add(one.at("score").get<double>());
      total.lost.add(one.at("exact_score").get<double>() - one.at("score").get<double>());
    }
  }
  return totals;
}

Figure KnockoutStudy::map_of(const HeadKnockout& of_head, const std::vector<Total>& totals) const {
  const auto numbers = [](const char* name, int64_t count) {
    ResultAxis axis{name, {}, {}};
    for (int64_t i = 0; i < count; ++i) axis.index.push_back(static_cast<double>(i));
    return axis;
  };
  const ModelConfig& config = input_.model.config;
  ResultArray kl{"kl", "nats",
                 "",   {numbers("layer", config.num_layers), numbers("head", config.num_heads)},
                 {},   {}};
  for (size_t i = 0; i < knockouts_.size(); ++i) {
    if (knockouts_[i].what != of_head.name) continue;
    kl.values.push_back(totals[i].kl.mean());
    kl.terms.push_back(totals[i].positions);
  }
  // Cells show two decimals, so small effects get a smaller unit.
  const double largest = range_of(kl).greatest;
  int exponent = 0;
  while (largest > 0.0 && largest * std::pow(10.0, exponent) < 0.5 && exponent < 12) exponent += 3;
  const double factor = std::pow(10.0, exponent);
  for (double& value : kl.values) value *= factor;
  return head_map(
             kl,
             {.name = fmt::format("knockout-{}", of_head.name),
              .title = fmt::format("KL of the predictions if {}", of_head.title),
              .caption = "Mean KL(exact || changed) of a masked position under replay, for one "
                         "head at a time{}.",
              .value = exponent == 0 ? "KL (nats)" : fmt::format("KL (1e-{} nats)", exponent),
              .upper = round_up_to(factor * largest)},
             "")
      .value()
      .figure;
}

StudyReport KnockoutStudy::report(const std::vector<nlohmann::json>& values) const {
  const std::vector<Total> all = totals(values);
  StudyReport report;
  const auto cells_of = [&](size_t i) {
    const Knockout& one = knockouts_[i];
    const Total& total = all[i];
    const NumberText five = [](double value) { return report_number(value, 5); };
    const auto index = [](int64_t value) { return value < 0 ? "" : std::to_string(value); };
    return std::vector<TableCell>{
        {"taken away", "what", one.what},
        {"layer", "layer", index(one.layer)},
        {"head", "head", index(one.head)},
        {"region", "region", one.region},
        {"KL", "kl", total.kl.mean(), five},
        {"standard error", "kl_standard_error", total.kl.standard_error(), five},
        {"same top-1", "same_top1", total.share(total.same, total.positions), percent_number},
        {"accuracy", "accuracy", total.accuracy.mean(), percent_number},
        {"equal tokens", "equal_to_exact", total.share(total.equal, total.tokens), percent_number},
        {"", "accuracy_lost", total.lost.mean()},
        {"", "accuracy_lost_standard_error", total.lost.standard_error()},
        {"", "prompts", total.kl.values()}};
  };
  for (size_t i = 0; i < knockouts_.size(); ++i) report.csv.add_csv(cells_of(i));
  constexpr size_t kShown = 8;
  const auto add_table = [&](const std::string& name, const std::string& title,
                             const std::string& caption, std::vector<size_t> rows, bool sorted) {
    if (sorted) {
      std::ranges::sort(rows,
                        [&](size_t a, size_t b) { return all[a].kl.mean() > all[b].kl.mean(); });
      rows.resize(std::min(rows.size(), kShown));
    }
    ReportTable table{name, title, caption, {}};
    for (const size_t i : rows) table.table.add_text(cells_of(i));
    report.tables.push_back(std::move(table));
  };
  const auto rows_of = [&](auto wanted) {
    std::vector<size_t> rows;
    for (size_t i = 0; i < knockouts_.size(); ++i) {
      if (wanted(knockouts_[i])) rows.push_back(i);
    }
    return rows;
  };
  for (const HeadKnockout& of_head : kOfHeads) {
    add_table(
        fmt::format("knockout-{}", of_head.name),
        fmt::format("The heads with the largest effect if {}", of_head.title),
        fmt::format("KL(exact || changed) in nats a masked position under replay, mean over {} "
                    "prompts; accuracy and equal tokens of free runs.",
                    prompts_.size()),
        rows_of([&](const Knockout& one) { return one.what == of_head.name; }), true);
    report.figures.push_back(map_of(of_head, all));
  }
  add_table("knockout-keys", "Keys that no head sees",
            "Regions by position; sinks: prefix keys with more than 3 times the mean weight.",
            rows_of([](const Knockout& one) { return one.layer < 0; }), false);
  report.notes = {fmt::format(
      "`blockscope calibrate TRACE --by-effect CSV` orders heads by the rows \"{}\".", kFrozen)};
  return report;
}

}  // namespace

std::unique_ptr<Study> make_knockout_study(const StudyInput& input) {
  return std::make_unique<KnockoutStudy>(input);
}

}  // namespace blockscope
