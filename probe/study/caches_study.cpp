// Every cache with every strategy on one set of prompts: accuracy, forward passes, rows computed,
// tokens per second and agreement with the reference (bidirectional models: no cache). As d2Cache's
// Table 1 and Fast-dLLM's Table 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/line_chart.h"
#include "command_line/interrupt.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"
#include "probe/policies/exact_policy.h"
#include "probe/strategies/strategy_table.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

struct CacheMethod {
  std::string cache, strategy;
  DecodeOptions decode;
};

/// One run, and sums of them.
struct CacheRun {
  int64_t prompts = 0, scored = 0;
  double score = 0.0;
  int64_t tokens = 0;     // decided
  int64_t positions = 0;  // compared with the reference
  int64_t equal = 0;      // decided as by the reference
  int64_t passes = 0;
  double rows = 0.0;     // computed, mean over layers
  double whole = 0.0;    // that the same passes would compute without any cache
  double seconds = 0.0;  // of all passes

  void add(const nlohmann::json& run) {
    ++prompts;
    if (!run.at("score").is_null()) {
      ++scored;
      score += run.at("score").get<double>();
    }
    tokens += run.at("tokens").get<int64_t>();
    positions += run.at("positions").get<int64_t>();
    equal += run.at("equal").get<int64_t>();
    passes += run.at("passes").get<int64_t>();
    rows += run.at("rows").get<double>();
    whole += run.at("whole").get<double>();
    seconds += run.at("seconds").get<double>();
  }
  double accuracy() const { return scored == 0 ? kNaN : score / static_cast<double>(scored); }
  double tokens_per_pass() const {
    return static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(passes, 1));
  }
  double saved() const { return whole > 0.0 ? 1.0 - rows / whole : 0.0; }
  double speed() const { return static_cast<double>(tokens) / std::max(seconds, 1e-9); }
  double agreement() const {
    return static_cast<double>(equal) / static_cast<double>(std::max<int64_t>(positions, 1));
  }
};

/// Replaces underscores, which gnuplot's enhanced text would show as subscripts.
std::string plain(std::string text) {
  std::ranges::replace(text, '_', ' ');
  return text;
}

/// Counts the passes of one run of one sequence.
class PassCounter : public DecodeObserver {
 public:
  PassCounter(bool bidirectional, int64_t length) : whole_(bidirectional ? length : 0) {}

  bool wants_every_prediction() const override { return false; }
  bool looks_inside(const PassContext& /*context*/) const override { return false; }
  void on_pass(const PassResult& result) override {
    ++passes;
    rows += result.computed_rows;
    // In block-causal models a pass without a cache would end with the block.
    const int64_t end = result.context.sequences.front().block_start + result.length;
    whole += static_cast<double>(whole_ > 0 ? whole_ : end);
    seconds += static_cast<double>(result.pass_ns) * 1e-9;
  }

  int64_t passes = 0;
  double rows = 0.0, whole = 0.0, seconds = 0.0;

 private:
  int64_t whole_;
};

/// The caches asked for, or all that the model allows. `block` is only included if it is asked for.
std::vector<std::string> caches_of(const StudyInput& input) {
  if (!input.options.caches.empty()) return input.options.caches;
  std::vector<std::string> names;
  for (const CacheEntry& entry : cache_table()) {
    const bool bidirectional = entry.model == CacheModel::bidirectional;
    const bool fuses = entry.fuses_commits && input.decode.sub_blocks();
    if (bidirectional != input.decode.bidirectional || fuses || entry.keeps_sub_blocks) continue;
    names.push_back(entry.name);
  }
  return names;
}

class CachesStudy : public PromptStudy {
 public:
  explicit CachesStudy(const StudyInput& input) : PromptStudy(input) {
    for (const std::string& strategy : input.options.strategies) {
      for (const std::string& cache : caches_of(input)) {
        CacheMethod method{cache, strategy, input.decode};
        method.decode.cache = read_cache(cache);
        const UnmaskingOptions& of_run = input.decode.unmasking;
        UnmaskingOptions& unmasking = method.decode.unmasking;
        unmasking = read_strategy(strategy);
        load_frequencies(unmasking, input.model);
        unmasking.block_length = of_run.block_length;
        unmasking.denoising_steps = of_run.denoising_steps;
        try {
          check_decode_options(method.decode, input.model.config);
        } catch (const UsageError&) {
          // An error for a cache asked for by name. Else the report says that it is left out.
          if (!input.options.caches.empty() || cache == caches_of(input).front()) throw;
          left_out_ += (left_out_.empty() ? "" : ", ") + plain(strategy) + " with " + cache;
          continue;
        }
        methods_.push_back(std::move(method));
      }
    }
  }

  nlohmann::json measure(size_t cell) override {
    nlohmann::json runs = nlohmann::json::array();
    std::vector<int64_t> reference;  // of the strategy's first cache
    for (size_t m = 0; m < methods_.size(); ++m) {
      if (m == 0 || methods_[m].strategy != methods_[m - 1].strategy) reference.clear();
      runs.push_back(run(prompts_[cell].prompt, methods_[m].decode, reference));
    }
    return runs;
  }

  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  nlohmann::json run(const RunPrompt& prompt, const DecodeOptions& decode,
                     std::vector<int64_t>& reference) const {
    const auto policy = make_exact_policy();
    const int64_t length = cache_positions(static_cast<int64_t>(prompt.request.prompt.size()),
                                           prompt.request.gen_length, decode);
    PassCounter counter(decode.bidirectional, length);
    DecodeCallbacks callbacks;
    callbacks.observer = &counter;
    callbacks.interrupted = [] { return InterruptGuard::signal() != 0; };
    int64_t next_pass = 0;
    const DecodeOutcome outcome =
        decode_batch(*input_.model.model, *policy, decode, {prompt.request}, next_pass, callbacks)
            .front();
    InterruptGuard::check();
    const std::vector<int64_t>& tokens = outcome.generated;
    if (reference.empty()) reference = tokens;
    int64_t equal = 0;
    for (size_t i = 0; i < std::min(tokens.size(), reference.size()); ++i) {
      equal += tokens[i] == reference[i] ? 1 : 0;
    }
    nlohmann::json score;
    if (prompt.metric.has_value()) {
      score = blockscope::score(*prompt.metric, generated_text(tokens, decode, input_.tokenizer),
                                prompt.answers);
    }
    const int64_t masks = std::count(tokens.begin(), tokens.end(), decode.mask_token_id);
    return {{"score", score},
            {"tokens", std::ssize(tokens) - masks},
            {"positions", std::ssize(reference)},
            {"equal", equal},
            {"passes", counter.passes},
            {"rows", counter.rows},
            {"whole", counter.whole},
            {"seconds", counter.seconds}};
  }

  static std::vector<TableCell> cells_of(const CacheMethod& method, const CacheRun& total);
  /// `totals`: by method.
  Figure bars(const std::vector<CacheRun>& totals, const char* y_label,
              double (*value)(const CacheRun&)) const;

  std::vector<CacheMethod> methods_;
  std::string left_out_;  // pairs of strategy and cache that can't be combined
};

std::vector<TableCell> CachesStudy::cells_of(const CacheMethod& method, const CacheRun& total) {
  const auto n = static_cast<double>(std::max<int64_t>(total.prompts, 1));
  return {{"strategy", "strategy", method.strategy},
          {"cache", "cache", method.cache},
          {"", "prompts", total.prompts},
          {"accuracy", "accuracy", total.accuracy(), percent_number},
          {"passes", "", static_cast<double>(total.passes) / n, decimals<1>},
          {"", "passes", total.passes},
          {"", "tokens", total.tokens},
          {"", "rows", total.rows},
          {"", "rows_uncached", total.whole},
          {"", "seconds", total.seconds},
          {"tokens/pass", "tokens_per_pass", total.tokens_per_pass()},
          {"rows", "", total.rows / n, decimals<0>},
          {"saved", "saved", total.saved(), percent_number},
          {"tokens/s", "tokens_per_s", total.speed(), decimals<1>},
          {"equal", "equal", total.agreement(), percent_number}};
}

/// `value`: the length of a run's bar.
Figure CachesStudy::bars(const std::vector<CacheRun>& totals, const char* y_label,
                         double (*value)(const CacheRun&)) const {
  BarChart chart{.x_label = "cache", .y_label = y_label, .groups = caches_of(input_)};
  double most = 0.0;
  std::vector<std::string> strategies;
  for (size_t m = 0; m < methods_.size(); ++m) {
    if (m == 0 || methods_[m].strategy != methods_[m - 1].strategy) {
      chart.series.push_back(
          {plain(methods_[m].strategy), std::vector<double>(chart.groups.size(), kNaN)});
      strategies.push_back(methods_[m].strategy);
    }
    const auto group = std::ranges::find(chart.groups, methods_[m].cache) - chart.groups.begin();
    chart.series.back().values[static_cast<size_t>(group)] = value(totals[m]);
    most = std::max(most, value(totals[m]));
  }
  chart.y_upper = round_up_to(most);
  look_like_methods(chart.series, strategies);
  Figure figure;
  figure.caption = fmt::format("{} prompts, one at a time.", prompts_.size());
  draw_bars(chart, figure);
  return figure;
}

StudyReport CachesStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<CacheRun> totals(methods_.size());
  for (const nlohmann::json& runs : values) {
    for (size_t m = 0; m < methods_.size(); ++m) totals[m].add(runs.at(m));
  }
  StudyReport report;
  report.tables = {
      {"caches",
       "Caches by strategy",
       fmt::format("n = {} prompts. Passes and rows: means over prompts; a row is a "
                   "position whose attention and FFN a pass computed, mean over "
                   "layers. Saved: of the rows that these passes would compute "
                   "without any cache. Equal: tokens as with the strategy's first "
                   "cache. Tokens/s: decided tokens over the time of the passes, one "
                   "prompt at a time.{}",
                   prompts_.size(), left_out_.empty() ? "" : " Refused: " + left_out_ + "."),
       {}}};
  for (size_t m = 0; m < methods_.size(); ++m) {
    const std::vector<TableCell> cells = cells_of(methods_[m], totals[m]);
    report.tables.front().table.add_text(cells);
    report.csv.add_csv(cells);
  }
  Figure speed = bars(totals, "tokens/s", [](const CacheRun& run) { return run.speed(); });
  speed.name = "caches-speed";
  speed.title = "Decoded tokens a second by cache and strategy";
  Figure rows = bars(totals, "rows computed (%)",
                     [](const CacheRun& run) { return 100.0 * (1.0 - run.saved()); });
  rows.name = "caches-rows";
  rows.title = "Rows computed, of those that the passes would compute without a cache";
  report.figures = {std::move(speed), std::move(rows)};
  return report;
}

}  // namespace

std::unique_ptr<Study> make_caches_study(const StudyInput& input) {
  return std::make_unique<CachesStudy>(input);
}

}  // namespace blockscope
