// Recording while a device runs, on the emulated cuda:0: nothing is computed before somebody waits,
// and copies hold NaN until then. And on the host, while decoding goes on.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "decode_record/base/cores.h"
#include "decode_record/base/error.h"
#include "tests/probe/record/late_recorder_fixture.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

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
  whole_pass();
  late_->drain();
  {
    Gate gate;
    const std::jthread opens = open_when_decoding_waits(gate, *late_);
    whole_pass();  // it has a gap, for which the thread waits
    const PassContext context = next_context();
    for (int64_t i = 0; i < kMostLateBytes / kLatePieceBytes; ++i) {
      EXPECT_EQ(late_->waits(), 0) << i;
      late_->on_hidden(context, 0, at::zeros({1, kTinyBlock, piece}, at::kCUDA));
    }
    EXPECT_EQ(late_->waits(), 1);
    end_pass(context);
  }
  late_->drain();
  EXPECT_EQ(finish().info().num_rows, 3);
}

TEST_F(LateRecorderTest, MemoryIsGivenOutAgain) {
  begin();
  const auto bytes_after = [&](int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      whole_pass();
      late_->drain();
    }
    run_decoding_stream();  // which gives back what was let go of
    return emulated_cuda::allocated_bytes();
  };
  const size_t bytes = bytes_after(3);
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(bytes_after(20), bytes);
  check_hidden(finish(), 23);
}

TEST_F(LateRecorderTest, ItIsAskedWhilePassesAreRecorded) {
  begin();
  int64_t rows = 0;
  for (int pass = 0; pass < 20; ++pass) {
    whole_pass();
    EXPECT_GE(late_->counters().denoising_rows, rows);
    rows = late_->counters().denoising_rows;
  }
  late_->drain();
  EXPECT_EQ(late_->counters().denoising_rows, 20);
  check_hidden(finish(), 20);
}

TEST_F(LateRecorderTest, WhatTheWriterRefusesReachesTheCaller) {
  for (const at::DeviceType device : {at::kCUDA, at::kCPU}) {
    begin(device);
    writer_->end_sequence(0, {FinishReason::unfinished, "", {}});
    whole_pass();
    EXPECT_THROW(late_->drain(), UsageError);
    EXPECT_THROW(whole_pass(), UsageError);
    late_.reset();
    writer_->finish();
    EXPECT_EQ(TraceReader(path_).info().num_rows, 0);
    std::filesystem::remove(path_);
  }
}

TEST_F(LateRecorderTest, OnTheHostTensorsAreKept) {
  begin(at::kCPU);
  for (int pass = 0; pass < 60; ++pass) whole_pass();
  late_->drain();
  EXPECT_EQ(late_->counters().denoising_rows, 60);
  check_hidden(finish(), 60);
}

/// Whether recording has its own thread, in a process that may use only `cores`.
bool records_late_with(int threads, int cores) {
  cpu_set_t before, fewer;
  EXPECT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&fewer);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&fewer) < cores; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &fewer);
  }
  const int threads_before = at::get_num_threads();
  at::set_num_threads(threads);
  EXPECT_EQ(sched_setaffinity(0, sizeof fewer, &fewer), 0);
  const bool late = records_late(at::kCPU);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  at::set_num_threads(threads_before);
  return late;
}

TEST(RecordsLate, OnTheHostOnlyIfDecodingLeavesACoreFree) {
  if (available_cores() < 2) GTEST_SKIP() << "one core";
  EXPECT_TRUE(records_late_with(1, 2));
  EXPECT_FALSE(records_late_with(2, 2));
  EXPECT_FALSE(records_late_with(1, 1));
  EXPECT_TRUE(records_late(at::kCUDA));
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
    late_->on_hidden(context, 0, at::zeros({1, kTinyBlock, kLateHidden}, at::kCUDA));
  }
  check_hidden(finish(), 2);
}

}  // namespace
}  // namespace blockscope
