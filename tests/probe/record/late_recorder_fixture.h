// Passes that a case makes up, recorded while the emulated cuda:0 runs, and a gate that holds the
// recorder's thread up.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "probe/record/late_recorder.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/recorded_run.h"

namespace blockscope::testing {

inline constexpr int64_t kLatePrompt = 2;
inline constexpr int64_t kLateHidden = 24;  // of tiny_config()

/// Holds threads up before they wait for an event, until it opens.
class Gate {
 public:
  Gate() {
    emulated_cuda::before_event_waits([state = state_] {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->open; });
    });
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    open();
    emulated_cuda::before_event_waits({});
  }
  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // a thread may be in it
};

/// Opens the gate when decoding waits for the recorder, or after some seconds in which it does not.
inline std::jthread open_when_decoding_waits(Gate& gate, const LateRecorder& late) {
  return std::jthread([&] {
    for (int i = 0; i < 20000 && late.waits() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.open();
  });
}

/// The decoding stream runs to this point, other streams where it waits for them.
inline void run_decoding_stream() { (void)at::zeros({1}, at::kCUDA).item<float>(); }

class LateRecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = recorder_options(tiny_config(), RecordLevel::full);
    options_.meta.set_size = 0;
  }

  /// One sequence whose passes the case makes up.
  void begin(at::DeviceType device = at::kCUDA) {
    device_ = device;
    writer_.emplace(path_, options_.meta);
    recorder_ = std::make_unique<Recorder>(options_, *writer_);
    SequenceStart start;
    start.prompt.assign(kLatePrompt, 1);
    start.gen_length = 100;
    recorder_->begin_sequence(7, writer_->begin_sequence(std::move(start)), kLatePrompt);
    late_ = std::make_unique<LateRecorder>(*recorder_, device_);
  }

  PassContext next_context(PassKind kind = PassKind::denoise) {
    PassContext context;
    context.pass = pass_++;
    SequencePass& pass = context.sequences.emplace_back();
    pass.sequence = 7;
    pass.kind = kind;
    pass.block_start = kLatePrompt;
    pass.step = kind == PassKind::denoise ? ++step_ : 0;
    return context;
  }

  void end_pass(const PassContext& context) {
    StepDecision decision;
    decision.prediction.token.assign(kTinyBlock, 10);
    decision.prediction.top1 = decision.prediction.token;
    decision.prediction.confidence.assign(kTinyBlock, 0.5F);
    decision.prediction.top1_confidence = decision.prediction.confidence;
    late_->on_pass({context, kTinyBlock, kLatePrompt, 0.0, 0, 0, {decision}});
  }

  /// A pass whose hidden states are its step.
  void whole_pass() {
    const PassContext context = next_context();
    const auto step = static_cast<double>(context.sequences.front().step);
    late_->on_hidden(context, 0, at::full({1, kTinyBlock, kLateHidden}, step, device_));
    end_pass(context);
  }

  TraceReader finish() {
    late_.reset();
    writer_->end_sequence(0, {FinishReason::unfinished, "", {}});
    writer_->finish();
    return TraceReader(path_);
  }

  /// Rows whose hidden states are their steps.
  static void check_hidden(const TraceReader& trace, int64_t rows) {
    ASSERT_EQ(trace.info().num_rows, rows);
    for (int64_t row = 0; row < rows; ++row) {
      for (const float value : trace.read_floats_at(Field::hidden, row, 0)) {
        ASSERT_EQ(value, static_cast<float>(row + 1)) << row;
      }
    }
  }

  fixture::TempDir folder_;
  const std::string path_ = folder_.file("late.h5");
  RecorderOptions options_;
  std::optional<TraceWriter> writer_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<LateRecorder> late_;
  at::DeviceType device_ = at::kCUDA;
  int64_t pass_ = 0;
  int64_t step_ = 0;
};

}  // namespace blockscope::testing
