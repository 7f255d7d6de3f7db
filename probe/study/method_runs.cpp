#include "probe/study/method_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "command_line/interrupt.h"
#include "probe/policies/exact_policy.h"
#include "probe/verify/external_reads.h"
#include "probe/verify/free_run.h"
#include "probe/verify/lockstep.h"

namespace blockscope {
namespace {

bool interrupted() { return InterruptGuard::signal() != 0; }

/// Counts and times of one run of one prompt.
class RunWatch : public DecodeObserver {
 public:
  RunWatch(const LayerSizes& shape, const AttentionPolicy& policy, bool counts_reads,
           MethodRun& run)
      : reads_(shape), policy_(policy), counts_reads_(counts_reads), run_(run) {}

  bool wants_every_prediction() const override { return false; }
  bool looks_inside(const PassContext& /*context*/) const override { return counts_reads_; }
  void on_attention(const AttentionView& view) override { pass_reads_.add(view); }
  void on_pass(const PassResult& result) override {
    pass_reads_.move_to(reads_, result.context);
    const SequencePass& pass = result.context.sequences.front();
    if (pass.kind == PassKind::commit) {
      ++run_.commits;
      run_.commit_ms += static_cast<double>(result.pass_ns) * 1e-6;
    }
    if (pass.kind != PassKind::denoise) return;
    if (run_.denoising_steps == 0) run_.context_length = pass.context_length;
    ++run_.denoising_steps;
    run_.attention_ms += static_cast<double>(result.attention_ns) * 1e-6;
    run_.step_ms += static_cast<double>(result.pass_ns) * 1e-6;
    const ChoosingTime time = policy_.choosing_time();
    if (time.inline_ns + time.beside_ns > chosen_ns_) {
      ++run_.estimating_steps;
      run_.estimating_ms += static_cast<double>(result.pass_ns) * 1e-6;
      chosen_ns_ = time.inline_ns + time.beside_ns;
    }
    run_.rows = reads_.total_rows();
    run_.rows_read = reads_.total_read();
    run_.rows_scored = reads_.total_choice();
    run_.products = reads_.total_products();
    run_.products_skipped = reads_.total_products_skipped();
  }

 private:
  ExternalReads reads_;
  PassReads pass_reads_;
  const AttentionPolicy& policy_;
  bool counts_reads_;
  MethodRun& run_;
  int64_t chosen_ns_ = 0;
};

}  // namespace

nlohmann::json to_json(const MethodRun& run) {
  // JSON has no NaN.
  const nlohmann::json score = std::isnan(run.score) ? nlohmann::json() : nlohmann::json(run.score);
  return {{"score", score},
          {"tokens", run.tokens},
          {"equal", run.equal},
          {"denoising_steps", run.denoising_steps},
          {"commits", run.commits},
          {"context_length", run.context_length},
          {"rows", run.rows},
          {"rows_read", run.rows_read},
          {"rows_scored", run.rows_scored},
          {"products", run.products},
          {"products_skipped", run.products_skipped},
          {"kl", run.kl},
          {"kl_positions", run.kl_positions},
          {"estimating_steps", run.estimating_steps},
          {"estimating_ms", run.estimating_ms},
          {"attention_ms", run.attention_ms},
          {"step_ms", run.step_ms},
          {"commit_ms", run.commit_ms},
          {"choosing_ms", run.choosing_ms},
          {"beside_ms", run.beside_ms},
          {"waited_ms", run.waited_ms}};
}

MethodRun method_run_from_json(const nlohmann::json& json) {
  MethodRun run;
  const nlohmann::json& score = json.at("score");
  run.score = score.is_null() ? std::numeric_limits<double>::quiet_NaN() : score.get<double>();
  json.at("tokens").get_to(run.tokens);
  json.at("equal").get_to(run.equal);
  json.at("denoising_steps").get_to(run.denoising_steps);
  json.at("commits").get_to(run.commits);
  json.at("context_length").get_to(run.context_length);
  json.at("rows").get_to(run.rows);
  json.at("rows_read").get_to(run.rows_read);
  json.at("rows_scored").get_to(run.rows_scored);
  // Cells of older builds lack these.
  run.products = json.value("products", run.products);
  run.products_skipped = json.value("products_skipped", run.products_skipped);
  run.kl = json.value("kl", run.kl);
  run.kl_positions = json.value("kl_positions", run.kl_positions);
  json.at("estimating_steps").get_to(run.estimating_steps);
  json.at("estimating_ms").get_to(run.estimating_ms);
  json.at("commit_ms").get_to(run.commit_ms);
  json.at("attention_ms").get_to(run.attention_ms);
  json.at("step_ms").get_to(run.step_ms);
  json.at("choosing_ms").get_to(run.choosing_ms);
  json.at("beside_ms").get_to(run.beside_ms);
  json.at("waited_ms").get_to(run.waited_ms);
  return run;
}

std::vector<MethodRun> run_methods(const LoadedModel& model, const Tokenizer* tokenizer,
                                   const DecodeOptions& options, const StudyPrompt& prompt,
                                   const std::vector<StudyMethod>& methods, int64_t batch_size,
                                   bool counts_reads) {
  const ModelConfig& config = model.config;
  DecodeRequest request = prompt.prompt.request;
  if (request.prefix == nullptr && !options.bidirectional) {
    request.prefix = std::make_shared<const CommittedPrefix>(
        prefill_prompt(*model.model, options, request, interrupted));
    InterruptGuard::check();
  }
  std::vector<DecodeRequest> requests(static_cast<size_t>(batch_size), request);
  for (int64_t s = 0; s < batch_size; ++s) requests[static_cast<size_t>(s)].sequence = s;
  std::vector<MethodRun> runs;
  std::vector<int64_t> first;  // tokens of the first method
  for (const StudyMethod& method : methods) {
    MethodRun run;
    const ChosenPolicy policy = choose_policy(method.policy, policy_model(model));
    RunWatch watch(layer_sizes(config), *policy.policy, counts_reads, run);
    DecodeCallbacks callbacks;
    callbacks.observer = &watch;
    callbacks.interrupted = interrupted;
    int64_t next_pass = 0;
    const std::vector<DecodeOutcome> outcomes =
        decode_batch(*model.model, *policy.policy, options, requests, next_pass, callbacks);
    InterruptGuard::check();
    const ChoosingTime choosing = policy.policy->choosing_time();
    run.choosing_ms = static_cast<double>(choosing.inline_ns) * 1e-6;
    run.beside_ms = static_cast<double>(choosing.beside_ns) * 1e-6;
    run.waited_ms = static_cast<double>(choosing.waited_ns) * 1e-6;
    const std::vector<int64_t>& tokens = outcomes.front().generated;
    if (runs.empty()) first = tokens;
    // If one run stopped earlier, the other run's further positions count as different.
    run.tokens = std::ssize(tokens);
    for (size_t i = 0; i < std::min(tokens.size(), first.size()); ++i) {
      run.equal += tokens[i] == first[i] ? 1 : 0;
    }
    run.score = prompt.prompt.metric.has_value()
                    ? score(*prompt.prompt.metric, generated_text(tokens, options, tokenizer),
                            prompt.prompt.answers)
                    : std::numeric_limits<double>::quiet_NaN();
    runs.push_back(run);
  }
  return runs;
}

ExactReplay::ExactReplay(const LoadedModel& exact_model, const DecodeOptions& options,
                         const StudyPrompt& prompt)
    : exact_model_(exact_model), options_(options), request_(prompt.prompt.request) {
  request_.sequence = 0;
  if (request_.prefix == nullptr && !options.bidirectional) {
    request_.prefix = std::make_shared<const CommittedPrefix>(
        prefill_prompt(*exact_model.model, options, request_, interrupted));
    InterruptGuard::check();
  }
  const ModelConfig& config = exact_model.config;
  FreeRunObserver exact(options, layer_sizes(config));
  DecodeCallbacks callbacks;
  callbacks.observer = &exact;
  callbacks.interrupted = interrupted;
  const auto policy = make_exact_policy();
  int64_t next_pass = 0;
  decode_batch(*exact_model.model, *policy, options, {request_}, next_pass, callbacks);
  InterruptGuard::check();
  replay_of(exact.sequences.at(0), request_);
}

Fidelity ExactReplay::compare(const LoadedModel& model, const PolicyOptions& policy) const {
  const ModelConfig& config = model.config;
  FidelityMeter meter(layer_sizes(config));
  DecodeRequest request = request_;
  if (&model != &exact_model_) request.prefix = nullptr;  // each model has its own
  const ChosenPolicy chosen = choose_policy(policy, policy_model(model));
  replay_in_lockstep(*exact_model_.model, *model.model, *chosen.policy, options_, {request}, meter,
                     interrupted);
  InterruptGuard::check();
  return meter.result();
}

void MethodTotals::add(const MethodRun& run) {
  ++prompts;
  if (!std::isnan(run.score)) {
    ++scored;
    score += run.score;
  }
  sum.tokens += run.tokens;
  sum.equal += run.equal;
  sum.denoising_steps += run.denoising_steps;
  sum.commits += run.commits;
  sum.rows += run.rows;
  sum.rows_read += run.rows_read;
  sum.rows_scored += run.rows_scored;
  sum.products += run.products;
  sum.products_skipped += run.products_skipped;
  sum.kl += run.kl;
  sum.kl_positions += run.kl_positions;
  sum.estimating_steps += run.estimating_steps;
  sum.estimating_ms += run.estimating_ms;
  sum.commit_ms += run.commit_ms;
  sum.attention_ms += run.attention_ms;
  sum.step_ms += run.step_ms;
  sum.choosing_ms += run.choosing_ms;
  sum.beside_ms += run.beside_ms;
  sum.waited_ms += run.waited_ms;
}

double MethodTotals::accuracy() const {
  return scored == 0 ? std::numeric_limits<double>::quiet_NaN()
                     : score / static_cast<double>(scored);
}

double MethodTotals::share_equal() const {
  return sum.tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                         : static_cast<double>(sum.equal) / static_cast<double>(sum.tokens);
}

double MethodTotals::products_saving() const {
  return sum.products == 0
             ? 0.0
             : static_cast<double>(sum.products_skipped) / static_cast<double>(sum.products);
}

double MethodTotals::mean_kl() const {
  return sum.kl_positions == 0 ? std::numeric_limits<double>::quiet_NaN()
                               : sum.kl / static_cast<double>(sum.kl_positions);
}

double MethodTotals::saving() const {
  return sum.rows == 0 ? 0.0
                       : 1.0 - static_cast<double>(sum.rows_read) / static_cast<double>(sum.rows);
}

}  // namespace blockscope
