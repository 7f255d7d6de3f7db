// Graphs of the emulated device: what a CUDA graph keeps, and the mistakes with it that a GPU would
// punish by chance, each giving NaN or an error every time.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

using at::Tensor;
using emulated_cuda::Graph;

const c10::impl::VirtualGuardImpl& streams() {
  static const c10::impl::VirtualGuardImpl made(c10::kCUDA);
  return made;
}

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override {
    streams().synchronizeDevice(0);
    emulated_cuda::reset_counters();
  }
};

TEST_F(Graphs, KeepWorkAndDoItAtEveryLaunch) {
  const Tensor x = at::ones({50}, at::kCUDA);
  Tensor y;
  const Graph graph([&] { y = (x * 2 + 1).relu(); });
  EXPECT_TRUE(at::isnan(y).all().item<bool>()) << "it ran while it was captured";
  graph.launch();
  EXPECT_EQ(y.sum().item<float>(), 150);
  x.fill_(3);
  EXPECT_EQ(y.sum().item<float>(), 150);
  graph.launch();
  x.fill_(5);  // after the launch, which has not run yet
  EXPECT_EQ(y.sum().item<float>(), 350);
  EXPECT_EQ(emulated_cuda::counters().captures, 1);
  EXPECT_EQ(emulated_cuda::counters().graphs, 2);
}

TEST_F(Graphs, RunInTheStreamThatLaunchesThem) {
  const Tensor x = at::ones({50}, at::kCUDA);
  Tensor y;
  const Graph graph([&] { y = x + 1; });
  streams().synchronizeDevice(0);
  const c10::Stream beside = streams().getStreamFromGlobalPool({c10::kCUDA, 0});
  {
    const c10::StreamGuard guard(beside);
    graph.launch();
  }
  EXPECT_TRUE(at::isnan(y).all().item<bool>()) << "nobody waited for that stream";
  beside.synchronize();
  EXPECT_EQ(y.sum().item<float>(), 100);
}

TEST_F(Graphs, TakeMemoryThatNobodyElseIsGiven) {
  const Tensor x = at::ones({5000}, at::kCUDA);
  Tensor y;
  const Graph graph([&] { y = ((x + 1) * 2).sqrt(); });
  std::vector<Tensor> others;
  for (int i = 0; i < 20; ++i) others.push_back(at::full({5000}, -7.0, at::kCUDA));
  graph.launch();
  for (const Tensor& other : others) EXPECT_EQ(other.sum().item<float>(), -35000);
  EXPECT_EQ(y.sum().item<float>(), 10000);
}

TEST_F(Graphs, ReadNanWhereOthersGaveMemoryBack) {
  std::optional<Tensor> gone = at::ones({50}, at::kCUDA);
  Tensor y;
  const Graph graph([&] { y = *gone + 1; });
  graph.launch();
  EXPECT_EQ(y.sum().item<float>(), 100);
  gone.reset();  // the mistake
  graph.launch();
  EXPECT_TRUE(at::isnan(y).all().item<bool>());
}

TEST_F(Graphs, KeepTheirMemoryWhenResultsAreLetGo) {
  const Tensor x = at::ones({50}, at::kCUDA);
  const Tensor sum = at::zeros({50}, at::kCUDA);
  std::optional<Tensor> y;
  const Graph graph([&] {
    y = x + 1;
    sum.add_(*y);
  });
  graph.launch();
  y.reset();
  const Tensor other = at::full({50}, -7.0, at::kCUDA);
  graph.launch();
  EXPECT_EQ(sum.sum().item<float>(), 200);
  EXPECT_EQ(other.sum().item<float>(), -350);
}

TEST_F(Graphs, OutliveTheTensorsThatCapturedThem) {
  const Tensor x = at::ones({50}, at::kCUDA);
  Tensor y;
  {
    std::optional<Graph> graph(std::in_place, [&] { y = x + 1; });
    graph->launch();
  }  // gone before its launch has run
  EXPECT_EQ(y.sum().item<float>(), 100);
}

TEST_F(Graphs, RefuseWhatACaptureCanNotKeep) {
  const Tensor x = at::ones({50}, at::kCUDA);
  const Tensor host = at::ones({50});
  c10::Event event(c10::kCUDA);
  const Tensor target = at::empty({50}, at::TensorOptions().pinned_memory(true));
  const std::vector<std::function<void()>> mistakes{
      [&] { (void)x.sum().item<float>(); },
      [&] { (void)x.cpu(); },
      [&] { target.copy_(x, /*non_blocking=*/true); },
      [&] { x.copy_(host); },
      [&] { x.copy_(target, /*non_blocking=*/true); },
      [&] { (void)host.pin_memory(); },
      [&] { (void)x.nonzero(); },
      [&] { streams().synchronizeDevice(0); },
      [&] {
        event.record(streams().getStream({c10::kCUDA, 0}));
      },
      [&] {
        const c10::StreamGuard guard(streams().getStreamFromGlobalPool({c10::kCUDA, 0}));
        (void)(x + 1);
      },
      [&] { const Graph another([] {}); },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_THROW(Graph([&] {
                   (void)(x + 1);
                   mistakes[i]();
                 }),
                 c10::AcceleratorError);
    EXPECT_EQ((x + 1).sum().item<float>(), 100) << "the stream did not come back";
  }
  EXPECT_EQ(emulated_cuda::counters().captures, 0);
}

TEST_F(Graphs, GiveTheirMemoryBackWhenTheyGo) {
  const Tensor x = at::ones({1000}, at::kCUDA);
  streams().synchronizeDevice(0);
  const size_t before = emulated_cuda::allocated_bytes();
  for (int i = 0; i < 3; ++i) {
    Tensor y;
    const Graph graph([&] { y = (x + 1) * 2; });
    graph.launch();
    EXPECT_EQ(y.sum().item<float>(), 4000);
    EXPECT_GT(emulated_cuda::allocated_bytes(), before);
  }
  streams().synchronizeDevice(0);
  EXPECT_EQ(emulated_cuda::allocated_bytes(), before);
}

}  // namespace
}  // namespace blockscope
