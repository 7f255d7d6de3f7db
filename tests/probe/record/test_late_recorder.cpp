// Recording behind a device's back, on the emulated cuda:0: copies hold NaN until their event was
// waited for, and nothing is computed before somebody waits.
#include "probe/record/late_recorder.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "decode_record/error.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr int64_t kPrompt = 2;
constexpr int64_t kHidden = 24;  // of tiny_config()

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
std::jthread open_when_decoding_waits(Gate& gate, const LateRecorder& late) {
  return std::jthread([&] {
    for (int i = 0; i < 20000 && late.waits() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gate.open();
  });
}

/// The decoding stream runs to this point, other streams where it waits for them.
void run_decoding_stream() { (void)at::zeros({1}, at::kCUDA).item<float>(); }

class LateRecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = recorder_options(tiny_config(), RecordLevel::full);
    options_.meta.set_size = 0;
  }

  /// One sequence whose passes the case makes up.
  void begin() {
    writer_.emplace(path_, options_.meta);
    recorder_ = std::make_unique<Recorder>(options_, *writer_);
    SequenceStart start;
    start.prompt.assign(kPrompt, 1);
    start.gen_length = 100;
    recorder_->begin_sequence(7, writer_->begin_sequence(std::move(start)), kPrompt);
    late_ = std::make_unique<LateRecorder>(*recorder_, at::kCUDA);
  }

  PassContext next_context(PassKind kind = PassKind::denoise) {
    PassContext context;
    context.pass = pass_++;
    SequencePass& pass = context.sequences.emplace_back();
    pass.sequence = 7;
    pass.kind = kind;
    pass.block_start = kPrompt;
    pass.step = kind == PassKind::denoise ? ++step_ : 0;
    return context;
  }

  void end_pass(const PassContext& context) {
    StepDecision decision;
    decision.prediction.token.assign(kTinyBlock, 10);
    decision.prediction.top1 = decision.prediction.token;
    decision.prediction.confidence.assign(kTinyBlock, 0.5F);
    decision.prediction.top1_confidence = decision.prediction.confidence;
    late_->on_pass({context, kTinyBlock, kPrompt, 0.0, 0, 0, {decision}});
  }

  /// A pass whose hidden states are its step.
  void whole_pass() {
    const PassContext context = next_context();
    const auto step = static_cast<double>(context.sequences.front().step);
    late_->on_hidden(context, 0, at::full({1, kTinyBlock, kHidden}, step, at::kCUDA));
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
  int64_t pass_ = 0;
  int64_t step_ = 0;
};

TEST_F(LateRecorderTest, ReadsWhatWasComputedAndCopiedWithoutTheCallerWaiting) {
  begin();
  const int64_t before = emulated_cuda::waits_of_this_thread();
  for (int pass = 0; pass < 6; ++pass) whole_pass();
  EXPECT_EQ(emulated_cuda::waits_of_this_thread(), before);
  late_->drain();
  EXPECT_EQ(late_->counters().denoising_rows, 6);
  check_hidden(finish(), 6);
}

TEST_F(LateRecorderTest, TensorsThatDecodingLetGoOfAreStillThere) {
  begin();
  Gate gate;
  whole_pass();
  run_decoding_stream();  // which frees what was computed
  gate.open();
  late_->drain();
  check_hidden(finish(), 1);
}

TEST_F(LateRecorderTest, CommittedKeysAreThoseOfTheCallWhateverTheCacheHoldsLater) {
  begin();
  Gate gate;
  const at::Tensor cache = at::full({2, 4, 10}, 3.0, at::kCUDA);
  const at::Tensor keys = cache.narrow(1, 0, 2);
  const PassContext context = next_context(PassKind::commit);
  for (const int64_t layer : {0, 1}) late_->on_committed_keys({7, layer, 0, keys, keys});
  end_pass(context);
  PassContext reader = next_context();
  reader.sequences.front().context_length = 2;
  end_pass(reader);
  cache.fill_(8.0);
  run_decoding_stream();
  gate.open();
  const TraceReader trace = finish();
  const std::vector<float> values = trace.prefix(Field::prefix_key, 1, 1).values;
  EXPECT_EQ(values, std::vector<float>(values.size(), 3.0F));
  EXPECT_EQ(values.size(), 2 * 2 * 10);
}

TEST_F(LateRecorderTest, KeysOfTheBlockAreThoseOfTheCallToo) {
  begin();
  Gate gate;
  const at::Tensor cache = at::full({1, 2, kTinyBlock, 10}, 3.0, at::kCUDA);
  const PassContext context = next_context();
  const at::Tensor q = at::zeros({1, 4, kTinyBlock, 10}, at::kCUDA);
  AttentionParts parts;
  parts.out = parts.external = parts.internal = q;
  parts.lse_external = parts.lse_internal = at::zeros({1, 4, kTinyBlock}, at::kCUDA);
  late_->on_attention({context, {0, q, cache, cache, 1.0}, {}, parts, &parts});
  end_pass(context);
  cache.fill_(8.0);
  run_decoding_stream();
  gate.open();
  const TraceReader trace = finish();
  for (const Field field : {Field::block_key, Field::block_value}) {
    for (const float value : trace.read_floats_at(field, 0, 0)) ASSERT_EQ(value, 3.0F);
  }
}

TEST_F(LateRecorderTest, DecodingWaitsWhereTwoPassesAreNotRecordedYet) {
  begin();
  {
    Gate gate;
    whole_pass();
    whole_pass();
    EXPECT_EQ(late_->waits(), 0);
    const std::jthread opens = open_when_decoding_waits(gate, *late_);
    whole_pass();
    EXPECT_EQ(late_->waits(), 1);
  }
  late_->drain();
  check_hidden(finish(), 3);
}

TEST_F(LateRecorderTest, APassIsRecordedInPiecesAndItsBytesAreBounded) {
  options_ = recorder_options(tiny_config(), RecordLevel::summary);
  begin();
  const auto piece = kLatePieceBytes / static_cast<int64_t>(sizeof(float)) / kTinyBlock;
  {
    Gate gate;
    const std::jthread opens = open_when_decoding_waits(gate, *late_);
    const PassContext context = next_context();
    for (int64_t i = 0; i <= kMostLateBytes / kLatePieceBytes; ++i) {
      EXPECT_EQ(late_->waits(), 0) << i;
      late_->on_hidden(context, 0, at::zeros({1, kTinyBlock, piece}, at::kCUDA));
    }
    EXPECT_EQ(late_->waits(), 1);
    end_pass(context);
  }
  late_->drain();
  EXPECT_LE(late_->pinned_bytes(), kMostLateBytes + 2 * kLatePieceBytes);
  EXPECT_EQ(finish().info().num_rows, 1);
}

TEST_F(LateRecorderTest, MemoryIsGivenOutAgain) {
  begin();
  for (int pass = 0; pass < 3; ++pass) {
    whole_pass();
    late_->drain();
  }
  const int64_t bytes = late_->pinned_bytes();
  EXPECT_GT(bytes, 0);
  for (int pass = 0; pass < 20; ++pass) {
    whole_pass();
    late_->drain();
  }
  EXPECT_EQ(late_->pinned_bytes(), bytes);
  check_hidden(finish(), 23);
}

TEST_F(LateRecorderTest, WhatTheWriterRefusesReachesTheCaller) {
  begin();
  writer_->end_sequence(0, {FinishReason::unfinished, "", {}});
  whole_pass();
  EXPECT_THROW(late_->drain(), UsageError);
  EXPECT_THROW(whole_pass(), UsageError);
  late_.reset();
  writer_->finish();
  EXPECT_EQ(TraceReader(path_).info().num_rows, 0);
}

TEST_F(LateRecorderTest, RowsBeforeADeviceWasLostAreKept) {
  begin();
  whole_pass();
  late_->drain();
  {
    Gate gate;
    whole_pass();
    whole_pass();
    emulated_cuda::lose_device_at(1);
  }
  EXPECT_THROW(late_->drain(), c10::AcceleratorError);
  EXPECT_THROW(whole_pass(), c10::AcceleratorError);
  late_.reset();
  emulated_cuda::lose_device_at(0);
  check_hidden(finish(), 1);
}

TEST_F(LateRecorderTest, PassesThatEndedAreRecordedWhenDecodingIsCutShort) {
  begin();
  {
    Gate gate;
    whole_pass();
    whole_pass();
    const PassContext context = next_context();
    late_->on_hidden(context, 0, at::zeros({1, kTinyBlock, kHidden}, at::kCUDA));
  }
  check_hidden(finish(), 2);
}

}  // namespace
}  // namespace blockscope
