#include "probe/run/capture_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "command_line/interrupt.h"
#include "command_line/progress.h"
#include "probe/draft/draft_decoder.h"
#include "probe/record/late_recorder.h"

namespace blockscope {
namespace {

using Identity = std::pair<std::string, PromptHash>;

std::set<Identity> identities(const ResumeState& state) {
  std::set<Identity> done;
  for (size_t i = 0; i < state.finished.size(); ++i) {
    done.emplace(state.finished_names[i], state.finished[i]);
  }
  return done;
}

class CaptureLoop {
 public:
  CaptureLoop(const CaptureRun& run, const RecorderOptions& recorder_options,
              const std::vector<RunPrompt>& prompts, const ResumeState& resumed,
              TraceWriter& writer, const std::function<void(const CaptureOutcome&)>& on_outcome)
      : run_(run),
        prompts_(prompts),
        done_(identities(resumed)),
        writer_(writer),
        has_parts_(recorder_options.meta.regions.size() > kRegionNames.size()),
        recorder_(recorder_options, writer),
        on_outcome_(on_outcome),
        progress_(run.quiet),
        next_pass_(resumed.next_pass),
        begin_(std::chrono::steady_clock::now()) {
    totals_.passes = -next_pass_;
    if (records_late(run.model.device)) late_.emplace(recorder_, run.model.device);
    for (const RunPrompt& prompt : prompts) {
      if (!is_done(prompt)) positions_due_ += positions(prompt);
    }
  }

  CaptureTotals run() {
    const size_t batch = static_cast<size_t>(run_.batch_size);
    for (size_t first = 0; first < prompts_.size() && !totals_.interrupted; first += batch) {
      decode_from(first);
    }
    drain();
    progress_.clear();
    totals_.passes += next_pass_;
    totals_.seconds = seconds();
    return totals_;
  }

 private:
  bool is_done(const RunPrompt& prompt) const {
    return done_.count({prompt.name, hash_prompt(prompt.request.prompt)}) > 0;
  }

  int64_t positions(const RunPrompt& prompt) const {
    return generated_positions(static_cast<int64_t>(prompt.request.prompt.size()),
                               prompt.request.gen_length, run_.decode);
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  /// Gives this thread the recorder and the writer, until decoding continues.
  void drain() {
    if (late_) late_->drain();
  }

  void decode_from(size_t first) {
    drain();
    const std::vector<DecodeRequest> requests = batch_requests(prompts_, first, run_.batch_size);
    bool anything_left = false;
    for (size_t i = first; i < first + requests.size(); ++i) {
      const RunPrompt& prompt = prompts_[i];
      if (is_done(prompt)) continue;
      anything_left = true;
      SequenceStart start;
      start.name = prompt.name;
      start.prompt = prompt.request.prompt;
      if (has_parts_) start.prompt_regions = prompt.request.regions.of_token;
      start.gen_length = positions(prompt);
      if (!prompt.answers.empty()) start.answer = prompt.answers.front();
      if (prompt.metric.has_value()) start.metric = std::string(metric_name(*prompt.metric));
      trace_sequence_[prompt.request.sequence] = writer_.begin_sequence(std::move(start));
      recorder_.begin_sequence(prompt.request.sequence, trace_sequence_[prompt.request.sequence],
                               static_cast<int64_t>(prompt.request.prompt.size()),
                               prompt.request.regions.of_token);
    }
    if (!anything_left) return;
    DecodeObserver* const observer = late_ ? static_cast<DecodeObserver*>(&*late_) : &recorder_;
    const DecodeCallbacks callbacks{observer, [this] { return tick(); },
                                    [this](const DecodeOutcome& outcome) { finish(outcome); }};
    if (run_.draft != nullptr) {
      decode_drafted(
          {*run_.model.model, *run_.draft, run_.decode.block_length(), run_.decode.sampling,
           run_.decode.stop_ids, run_.decode.prefill_chunk, run_.recorded},
          requests, next_pass_, callbacks);
      return;
    }
    decode_batch(*run_.model.model, run_.policy, run_.decode, requests, next_pass_, callbacks);
  }

  bool tick() {
    const Recorder::Counters counters = late_ ? late_->counters() : recorder_.counters();
    const double elapsed = std::max(seconds(), 1e-9);
    const int64_t current = counters.tokens - tokens_of_finished_;
    progress_.update(
        static_cast<double>(positions_done_ + current) /
            static_cast<double>(std::max<int64_t>(positions_due_, 1)),
        fmt::format("{}/{} prompts · {:.1f} tokens/s · {} steps · {} written", totals_.sequences,
                    prompts_.size(), static_cast<double>(counters.tokens) / elapsed,
                    counters.denoising_rows,
                    format_bytes(static_cast<double>(writer_.bytes_appended()))));
    totals_.interrupted = InterruptGuard::signal() != 0;
    return totals_.interrupted;
  }

  void finish(const DecodeOutcome& outcome) {
    const auto found = trace_sequence_.find(outcome.sequence);
    // The trace gets no end of this sequence, so a resume marks it aborted and decodes it again.
    if (found == trace_sequence_.end() || outcome.reason == FinishReason::interrupted) return;
    drain();
    const RunPrompt& prompt = prompts_[static_cast<size_t>(outcome.sequence)];
    CaptureOutcome result{prompt, outcome,
                          generated_text(outcome.generated, run_.decode, run_.tokenizer),
                          std::numeric_limits<double>::quiet_NaN()};
    SequenceEnd end;
    end.reason = outcome.reason;
    end.text = result.text;
    if (prompt.metric.has_value()) {
      result.score = score(*prompt.metric, result.text, prompt.answers);
      end.score = static_cast<float>(result.score);
      totals_.score_sum += result.score;
      ++totals_.scored;
    }
    writer_.end_sequence(found->second, std::move(end));
    ++totals_.sequences;
    positions_done_ += positions(prompt);
    tokens_of_finished_ +=
        static_cast<int64_t>(outcome.generated.size()) -
        std::count(outcome.generated.begin(), outcome.generated.end(), run_.decode.mask_token_id);
    totals_.tokens = recorder_.counters().tokens;
    totals_.denoising_rows = recorder_.counters().denoising_rows;
    progress_.clear();
    on_outcome_(result);
  }

  const CaptureRun& run_;
  const std::vector<RunPrompt>& prompts_;
  const std::set<Identity> done_;
  TraceWriter& writer_;
  bool has_parts_;  // the trace names parts of prompts
  Recorder recorder_;
  std::optional<LateRecorder> late_;  // if records_late(); calls the recorder
  const std::function<void(const CaptureOutcome&)>& on_outcome_;
  Progress progress_;
  int64_t next_pass_;
  std::map<int64_t, int64_t> trace_sequence_;  // by sequence of the run
  CaptureTotals totals_;
  int64_t positions_due_ = 0;   // positions of all prompts that this run decodes
  int64_t positions_done_ = 0;  // positions of finished prompts, including masks and early stops
  int64_t tokens_of_finished_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

CaptureTotals run_capture(const CaptureRun& run, const RecorderOptions& recorder_options,
                          const std::vector<RunPrompt>& prompts, const ResumeState& finished,
                          TraceWriter& writer,
                          const std::function<void(const CaptureOutcome&)>& on_outcome) {
  return CaptureLoop(run, recorder_options, prompts, finished, writer, on_outcome).run();
}

}  // namespace blockscope
