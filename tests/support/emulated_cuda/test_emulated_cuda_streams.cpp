// Streams, events and pinned memory of the emulated device: each mistake with them gives a wrong
// result every time.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

using at::Tensor;

c10::Stream side_stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA)
      .getStreamFromGlobalPool(c10::Device(c10::kCUDA, 0));
}

Tensor pinned(std::vector<int64_t> shape) {
  return at::empty(shape, at::TensorOptions().pinned_memory(true));
}

void synchronise() { c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0); }

bool all_nan(const Tensor& tensor) { return at::isnan(tensor).all().item<bool>(); }

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    synchronise();
    emulated_cuda::reset_counters();
  }
};

TEST_F(Streams, NothingRunsBeforeSomebodyWaits) {
  const Tensor x = at::ones({50}, at::kCUDA);
  const Tensor y = x * 2 + 1;
  EXPECT_GE(emulated_cuda::pending_tasks(), 3);
  EXPECT_EQ(emulated_cuda::counters().host_waits(), 0);
  EXPECT_EQ(y.sum().item<float>(), 150);
  EXPECT_EQ(emulated_cuda::counters().waits.at("item"), 1);
}

TEST_F(Streams, PinnedMemoryIsNanUntilTheHostWaited) {
  const Tensor x = at::ones({50}, at::kCUDA);
  const Tensor target = pinned({50});
  ASSERT_TRUE(target.is_pinned());
  target.copy_(x, /*non_blocking=*/true);
  c10::Event copied(c10::kCUDA);
  copied.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0}));
  (void)(x + 1);  // more work of the stream is no wait
  EXPECT_TRUE(all_nan(target));
  copied.synchronize();
  EXPECT_TRUE(at::equal(target, at::ones({50})));
}

TEST_F(Streams, PageableMemoryMakesTheHostWait) {
  const Tensor x = at::ones({50}, at::kCUDA);
  const Tensor target = at::empty({50});
  target.copy_(x, /*non_blocking=*/true);
  EXPECT_TRUE(at::equal(target, at::ones({50})));
  EXPECT_EQ(emulated_cuda::counters().waits.at("copy to the host"), 1);
}

TEST_F(Streams, PinnedMemoryOverwrittenTooEarlyShows) {
  const Tensor source = pinned({50});
  source.fill_(1);
  const Tensor early = at::empty({50}, at::kCUDA);
  early.copy_(source, /*non_blocking=*/true);
  source.fill_(2);
  EXPECT_EQ(early.sum().item<float>(), 100);  // the mistake: 2s where 1s were meant
  const Tensor late = at::empty({50}, at::kCUDA);
  late.copy_(source, /*non_blocking=*/true);
  synchronise();
  source.fill_(3);
  EXPECT_EQ(late.sum().item<float>(), 100);
}

TEST_F(Streams, PageableMemoryMayBeOverwritten) {
  const Tensor source = at::ones({50});
  const Tensor target = at::empty({50}, at::kCUDA);
  target.copy_(source, /*non_blocking=*/true);
  source.fill_(2);
  EXPECT_EQ(target.sum().item<float>(), 50);
}

TEST_F(Streams, SideStreamsWorkIsUnseenWithoutAnEvent) {
  const Tensor x = at::ones({50}, at::kCUDA);
  synchronise();
  const c10::Stream side = side_stream();
  Tensor made;
  c10::Event ready(c10::kCUDA);
  {
    const c10::StreamGuard guard(side);
    made = x + 1;
    ready.record(side);
  }
  EXPECT_TRUE(all_nan(made.clone()));  // the mistake
  ready.block(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0}));
  EXPECT_EQ(made.clone().sum().item<float>(), 100);
}

TEST_F(Streams, SideStreamMustWaitForItsInput) {
  const c10::Stream side = side_stream();
  const c10::Stream main = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0});
  const auto sum_on_side = [&](bool waits) {
    const Tensor x = at::ones({50}, at::kCUDA);
    c10::Event ready(c10::kCUDA);
    ready.record(main);
    const c10::StreamGuard guard(side);
    if (waits) ready.block(side);
    const Tensor sum = x.sum();
    x.record_stream(side);
    return sum.item<float>();
  };
  EXPECT_TRUE(std::isnan(sum_on_side(false)));
  EXPECT_EQ(sum_on_side(true), 50);
}

TEST_F(Streams, FreesFollowTheOrderOfTheirStream) {
  Tensor sum;
  {
    const Tensor x = at::ones({50}, at::kCUDA);
    sum = x.sum();
  }  // freed before anything ran: the stream reads it first
  EXPECT_EQ(sum.item<float>(), 50);
}

TEST_F(Streams, MemoryFreedUnderAnotherStreamsHandsShows) {
  const c10::Stream side = side_stream();
  const auto sum_on_side = [&](bool recorded) {
    Tensor sum;
    {
      const Tensor x = at::ones({50}, at::kCUDA);
      synchronise();
      const c10::StreamGuard guard(side);
      sum = x.sum();
      if (recorded) x.record_stream(side);
    }
    (void)at::zeros({1}, at::kCUDA).item();  // the main stream goes on
    const c10::StreamGuard guard(side);
    return sum.item<float>();
  };
  EXPECT_TRUE(std::isnan(sum_on_side(false)));  // the mistake: no record_stream
  EXPECT_EQ(sum_on_side(true), 50);
}

TEST_F(Streams, EmulatedKernelsRunInStreamOrder) {
  const Tensor x = at::ones({50}, at::kCUDA);
  emulated_cuda::launch_on_current_stream([p = x.data_ptr<float>()] {
    for (int i = 0; i < 50; ++i) p[i] += 1;
  });
  const Tensor y = x * 10;
  EXPECT_EQ(y.sum().item<float>(), 1000);
  EXPECT_EQ(emulated_cuda::counters().launches, 1);
}

TEST_F(Streams, AnEventIsReachedLate) {
  const Tensor x = at::ones({50}, at::kCUDA) + 1;
  c10::Event event(c10::kCUDA);
  EXPECT_TRUE(event.query());  // never recorded
  event.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0}));
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(event.query());
}

TEST_F(Streams, MistakesOfAKernelComeWhereTheHostWaits) {
  const Tensor index = at::full({3}, 99, at::dtype(at::kLong).device(at::kCUDA));
  const Tensor bad = at::ones({5}, at::kCUDA).index_select(0, index);
  EXPECT_THROW(synchronise(), c10::Error);
  synchronise();
}

// The recorder's writer reads on a thread of its own what the decoder's thread computes.
TEST_F(Streams, ThreadsHaveCurrentStreamsOfTheirOwnAndShareTheDevice) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::vector<double> sums(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &sums] {
      const c10::StreamGuard guard(side_stream());
      for (int i = 0; i < 50; ++i) {
        Tensor x = at::full({64}, t, at::kCUDA);
        const Tensor target = pinned({64});
        target.copy_(x + i, true);
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0}).synchronize();
        sums[static_cast<size_t>(t)] += target.sum().item<double>();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (int t = 0; t < kThreads; ++t)
    EXPECT_EQ(sums[static_cast<size_t>(t)], 64.0 * (50 * t + 1225));
}

}  // namespace
}  // namespace blockscope
