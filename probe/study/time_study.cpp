// MAGE (seed 001), Figs. 5-7: time per output block by method, context length and steps per block,
// and the parts of a step: attention, choosing keys, and the rest. The prefix is random
// (random_prefix): the cost of a step does not depend on the values of the keys, and 32k positions
// then need no prefill. On a device the parts of a step are unknown: the host sees when a step's
// tokens arrive, but for its parts only when they are launched.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/line_chart.h"
#include "decode_record/base/error.h"
#include "probe/checkpoint/rope.h"
#include "probe/decode/sampling.h"
#include "probe/study/study.h"
#include "probe/verify/agreement.h"

namespace blockscope {
namespace {

constexpr double kMega = 1e6;

class TimeStudy : public Study {
 public:
  explicit TimeStudy(const StudyInput& input) : input_(input) {
    const StudyOptions& options = input.options;
    if (input.decode.fuses_commits()) {
      throw UsageError(
          "study time: --cache blockd: steps are timed apart from commits, and a fused pass is "
          "both. HINT: leave the option out");
    }
    if (options.set_sizes.size() != 1) {
      throw UsageError(
          fmt::format("study time: --k: expected one set size, got {}", options.set_sizes.size()));
    }
    add_methods();
    for (const int64_t context : options.prompts.contexts) add_cells(context);
  }

  std::vector<std::string> cells() const override {
    std::vector<std::string> names;
    for (const Cell& cell : cells_) {
      names.push_back(fmt::format("{} tokens, {} steps", cell.context, cell.steps));
    }
    return names;
  }

  nlohmann::json measure(size_t index) override;
  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  struct Cell {
    int64_t context, steps;
  };
  /// Medians over the turns, per output block or per step.
  struct Summary {
    Spread block_ms, speedup;  // speedup: exact / this, turn by turn
    double step = 0.0, attention = 0.0, choosing = 0.0, rest = 0.0;  // ms a denoising step
    double estimating = 0.0, other = 0.0;  // ms of a step that chooses, of one that does not
    double estimating_share = 0.0;         // of the denoising steps
    double beside = 0.0, waited = 0.0;     // ms per estimating step on the second thread
    double attention_bytes = 0.0, choosing_bytes = 0.0, flops = 0.0;  // per denoising step
  };

  void add_methods();
  void add_cells(int64_t context);
  int64_t block_length() const { return input_.decode.block_length(); }
  bool on_device() const { return !input_.model.device.is_cpu(); }
  std::vector<int64_t> steps_per_block() const {
    if (!input_.options.steps.empty()) return input_.options.steps;
    return {input_.decode.unmasking.denoising_steps};
  }
  std::vector<Summary> summaries(const nlohmann::json& turns) const;
  double weight_bytes() const { return static_cast<double>(input_.model.checkpoint_bytes); }
  using Cells = std::vector<TableCell>;
  Cells block_cells(const Summary& s, const Summary& exact) const;
  static Cells step_cells(const Summary& s);
  void add_rows(size_t cell, const std::vector<Summary>& summaries, StudyReport& report) const;
  Figure speedups(const std::vector<std::vector<Summary>>& all) const;
  Figure breakdown(const std::vector<Summary>& summaries, const Cell& cell) const;

  StudyInput input_;
  std::vector<StudyMethod> methods_;
  std::vector<Cell> cells_;
};

void TimeStudy::add_methods() {
  const StudyOptions& options = input_.options;
  const int64_t k = options.set_sizes.front();
  methods_.push_back({"exact", {}, 0});
  const auto add = [&](std::string label, const char* name, auto change) {
    PolicyOptions policy;
    policy.policy = name;
    change(policy);
    methods_.push_back({std::move(label), policy, 0});
  };
  const auto sparse = [&](PolicyOptions& policy) {
    policy.k = k;
    policy.exact_layers = options.exact_layers;
  };
  add("mage", "mage", sparse);
  add("mage, one thread", "mage", [&](PolicyOptions& policy) {
    sparse(policy);
    policy.no_overlap = true;
  });
  add("mage+flashblock", "mage+flashblock", sparse);
  add("sparsed", "sparsed", sparse);
  for (const int64_t page : options.pages) {
    add(fmt::format("quest p={}", page), "quest", [&](PolicyOptions& policy) {
      sparse(policy);
      policy.page = page;
    });
  }
  for (const int64_t tau : options.taus) {
    add(fmt::format("flashblock tau={}", tau), "flashblock",
        [&](PolicyOptions& policy) { policy.tau = tau; });
  }
  for (StudyMethod& named : named_methods(options, {k}, methods_)) {
    named.k = 0;
    methods_.push_back(std::move(named));
  }
}

void TimeStudy::add_cells(int64_t context) {
  const int64_t whole = context / block_length() * block_length();
  for (const int64_t steps : steps_per_block()) {
    if (steps > block_length()) {
      throw UsageError(
          fmt::format("study time: --steps: expected at most the block length {}, got {}. "
                      "HINT: a block has "
                      "no more positions to decide; --block-length makes it longer",
                      block_length(), steps));
    }
    cells_.push_back({whole, steps});
  }
  const int64_t end = whole + input_.options.blocks * block_length();
  if (end > largest_position_count(input_.model.config)) {
    throw UsageError(
        fmt::format("study time: --contexts: expected at most the {} positions of this model "
                    "with {} blocks, "
                    "got {}",
                    largest_position_count(input_.model.config), input_.options.blocks, context));
  }
}

nlohmann::json TimeStudy::measure(size_t index) {
  const Cell& cell = cells_[index];
  DecodeOptions decode = input_.decode;
  decode.unmasking.denoising_steps = cell.steps;
  decode.stop_ids.clear();  // every method decodes all blocks
  StudyPrompt prompt;
  DecodeRequest& request = prompt.prompt.request;
  request.gen_length = input_.options.blocks * block_length();
  request.prompt_hash = 1;
  const ModelConfig& config = input_.model.config;
  for (int64_t i = 0; i < cell.context; ++i) {
    const double u = uniform_draw(input_.options.policy_seed, {1, 0, 0}, i);
    const auto id = static_cast<int64_t>(u * static_cast<double>(config.vocab_size));
    request.prompt.push_back(id == decode.mask_token_id ? std::max<int64_t>(id - 1, 0) : id);
  }
  request.prefix = std::make_shared<const CommittedPrefix>(
      random_prefix(config, cell.context, input_.model.dtype, input_.options.policy_seed));
  const auto run = [&](bool counts_reads) {
    return run_methods(input_.model, nullptr, decode, prompt, methods_, input_.options.batch_size,
                       counts_reads);
  };
  // On a device an unobserved step is one launch. So the reads are counted in an earlier run.
  std::vector<MethodRun> counted;
  if (on_device()) counted = run(true);
  nlohmann::json turns = nlohmann::json::array();
  for (int64_t r = 0; r < input_.options.repeats; ++r) {
    nlohmann::json turn = nlohmann::json::array();
    std::vector<MethodRun> runs = run(counted.empty());
    for (size_t m = 0; m < runs.size(); ++m) {
      if (!counted.empty()) {
        runs[m].rows = counted[m].rows;
        runs[m].rows_read = counted[m].rows_read;
        runs[m].rows_scored = counted[m].rows_scored;
      }
      turn.push_back(to_json(runs[m]));
    }
    turns.push_back(std::move(turn));
  }
  return turns;
}

std::vector<TimeStudy::Summary> TimeStudy::summaries(const nlohmann::json& turns) const {
  const ModelConfig& config = input_.model.config;
  const auto element = static_cast<double>(c10::elementSize(input_.model.dtype));
  const auto head_dim = static_cast<double>(config.head_dim);
  const double queries = static_cast<double>(config.num_heads) /
                         static_cast<double>(config.num_kv_heads) *
                         static_cast<double>(block_length());
  std::vector<Summary> result;
  for (size_t m = 0; m < methods_.size(); ++m) {
    Summary summary;
    std::vector<double> blocks, speedups;
    MethodTotals total;
    for (const nlohmann::json& turn : turns) {
      const MethodRun run = method_run_from_json(turn.at(m));
      const MethodRun exact = method_run_from_json(turn.at(0));
      blocks.push_back((run.step_ms + run.commit_ms) / static_cast<double>(run.commits));
      speedups.push_back((exact.step_ms + exact.commit_ms) / (run.step_ms + run.commit_ms));
      total.add(run);
    }
    summary.block_ms = spread_of(blocks);
    summary.speedup = spread_of(speedups);
    const MethodRun& sum = total.sum;
    const auto steps = static_cast<double>(sum.denoising_steps);
    const auto estimating = static_cast<double>(sum.estimating_steps);
    summary.step = sum.step_ms / steps;
    summary.choosing = (sum.choosing_ms + sum.waited_ms) / steps;
    summary.attention = (sum.attention_ms - sum.choosing_ms - sum.waited_ms) / steps;
    summary.rest = summary.step - summary.attention - summary.choosing;
    summary.estimating_share = estimating / steps;
    const double nan = std::nan("");
    if (on_device()) summary.attention = summary.choosing = summary.rest = nan;
    summary.estimating = estimating > 0.0 ? sum.estimating_ms / estimating : nan;
    summary.other =
        steps > estimating ? (sum.step_ms - sum.estimating_ms) / (steps - estimating) : nan;
    const bool beside = estimating > 0.0 && !on_device();
    summary.beside = beside ? sum.beside_ms / estimating : nan;
    summary.waited = beside ? sum.waited_ms / estimating : nan;
    const double read = static_cast<double>(sum.rows_read) / steps;
    const double scored = static_cast<double>(sum.rows_scored) / steps;
    summary.attention_bytes = read * 2.0 * head_dim * element;
    summary.choosing_bytes = scored * head_dim * element;
    // QK^T and PV of all queries; choosing: QK^T again, or Quest's one mean query on page bounds.
    const double per_scored = policy_entry(methods_[m].policy).scoring_flops(queries);
    summary.flops = head_dim * (4.0 * queries * read + per_scored * scored);
    result.push_back(summary);
  }
  return result;
}

TimeStudy::Cells TimeStudy::block_cells(const Summary& s, const Summary& exact) const {
  const double bytes = s.attention_bytes + s.choosing_bytes;
  return {{"ms a block", "block_ms", s.block_ms.median, decimals<1>},
          {"", "block_ms_least", s.block_ms.low},
          {"", "block_ms_most", s.block_ms.high},
          {"speedup", "",
           fmt::format("{:.2f} [{:.2f}, {:.2f}]", s.speedup.median, s.speedup.low, s.speedup.high)},
          {"", "speedup", s.speedup.median},
          {"", "speedup_least", s.speedup.low},
          {"", "speedup_most", s.speedup.high},
          {"bytes", "", exact.attention_bytes / bytes},
          {"with weights", "", (exact.attention_bytes + weight_bytes()) / (bytes + weight_bytes())},
          {"FLOPs", "", exact.flops / s.flops}};
}

TimeStudy::Cells TimeStudy::step_cells(const Summary& s) {
  const NumberText ms = [](double value) {
    return std::isfinite(value) ? decimals<2>(value) : std::string("-");
  };
  return {{"step", "step_ms", s.step, ms},
          {"attention", "attention_ms", s.attention, ms},
          {"choosing", "choosing_ms", s.choosing, ms},
          {"rest", "rest_ms", s.rest, ms},
          {"share choosing", "choosing_share", s.estimating_share, percent_number},
          {"a choosing step", "choosing_step_ms", s.estimating, ms},
          {"another step", "other_step_ms", s.other, ms},
          {"2nd thread", "beside_ms", s.beside, ms},
          {"waited", "waited_ms", s.waited, ms},
          {"", "attention_bytes", s.attention_bytes},
          {"", "choosing_bytes", s.choosing_bytes},
          {"", "attention_flops", s.flops}};
}

void TimeStudy::add_rows(size_t cell, const std::vector<Summary>& summaries,
                         StudyReport& report) const {
  const auto joined = [](Cells a, const Cells& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  for (size_t m = 0; m < methods_.size(); ++m) {
    const Cells head{{"context", "context", cells_[cell].context},
                     {"steps", "steps", cells_[cell].steps},
                     {"method", "method", methods_[m].name}};
    const Cells block = joined(head, block_cells(summaries[m], summaries.front()));
    const Cells step = step_cells(summaries[m]);
    report.tables[0].table.add_text(block);
    report.tables[1].table.add_text(joined(head, step));
    report.csv.add_csv(joined(block, step), [](double value) {
      return std::isfinite(value) ? six_digits(value) : std::string();
    });
  }
}

StudyReport TimeStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<std::vector<Summary>> all;
  for (const nlohmann::json& turns : values) all.push_back(summaries(turns));
  StudyReport report;
  report.tables = {
      {"time",
       "Time per output block, milliseconds, and how many times faster than exact",
       fmt::format(
           "{} blocks of {} positions, batch {}, k = {}, random prefix; all denoising steps "
           "and the commit pass, without prefill; median of {} turns [least, most]. \"bytes\": "
           "key and value bytes per step, exact over method, with what choosing reads. "
           "\"with weights\": the same with the {:.0f} MB of weights that every step reads. "
           "FLOPs: of attention and choosing. As MAGE, Figs. 5 and 7.",
           input_.options.blocks, block_length(), input_.options.batch_size,
           input_.options.set_sizes.front(), input_.options.repeats, weight_bytes() / kMega),
       {}},
      {"time-steps",
       "One denoising step, milliseconds: attention, choosing keys, the rest; steps that choose "
       "apart",
       "Means over steps. Choosing: on the decoding thread, with waiting for the second thread. "
       "\"2nd thread\": choosing on it, per step that chooses. \"waited\": the part of "
       "it that decoding waited for. On a device the parts are unknown. As MAGE, Fig. 6.",
       {}}};
  for (size_t c = 0; c < cells_.size(); ++c) add_rows(c, all[c], report);
  report.figures = {speedups(all)};
  if (!on_device()) report.figures.push_back(breakdown(all.back(), cells_.back()));
  return report;
}

Figure TimeStudy::speedups(const std::vector<std::vector<Summary>>& all) const {
  BarChart bars{.x_label = "context, steps per block", .y_label = "times faster than exact"};
  double largest = 1.0;
  for (size_t m = 1; m < methods_.size(); ++m) {
    BarSeries series{methods_[m].name, {}};
    for (const std::vector<Summary>& cell : all) {
      series.values.push_back(cell[m].speedup.median);
      largest = std::max(largest, series.values.back());
    }
    bars.series.push_back(std::move(series));
  }
  for (const Cell& cell : cells_) {
    bars.groups.push_back(fmt::format("{}, {}", cell.context, cell.steps));
  }
  bars.y_upper = round_up_to(largest);
  look_like_methods(bars.series);
  Figure figure;
  figure.name = "time";
  figure.title = "Time per output block against exact attention";
  figure.caption = fmt::format(
      "k = {}, median of {} turns; 1: as fast as exact. As MAGE, Figs. 5 "
      "and 7.",
      input_.options.set_sizes.front(), input_.options.repeats);
  draw_bars(bars, figure);
  figure.width = 900;
  return figure;
}

Figure TimeStudy::breakdown(const std::vector<Summary>& summaries, const Cell& cell) const {
  BarChart bars{.x_label = "", .y_label = "ms a denoising step"};
  bars.series = {{"attention", {}}, {"choosing keys", {}}, {"the rest", {}}};
  double largest = 0.0;
  for (size_t m = 0; m < methods_.size(); ++m) {
    bars.groups.push_back(methods_[m].name);
    const Summary& s = summaries[m];
    bars.series[0].values.push_back(s.attention);
    bars.series[1].values.push_back(s.choosing);
    bars.series[2].values.push_back(s.rest);
    largest = std::max({largest, s.attention, s.choosing, s.rest});
  }
  bars.y_upper = round_up_to(largest);
  Figure figure;
  figure.name = "time-steps";
  figure.title = fmt::format("Parts of a denoising step at {} tokens", cell.context);
  figure.caption =
      fmt::format("{} steps a block, mean over all steps. As MAGE, Fig. 6.", cell.steps);
  draw_bars(bars, figure);
  figure.script = "set xtics rotate by -15\n" + figure.script;
  figure.width = 900;
  return figure;
}

}  // namespace

std::unique_ptr<Study> make_time_study(const StudyInput& input) {
  return std::make_unique<TimeStudy>(input);
}

}  // namespace blockscope
