#include "probe/policies/select_worker.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace blockscope {
namespace {

TEST(SelectWorker, RunsTasksInOrderOnAnotherThreadAndWaitsForAll) {
  SelectWorker worker;
  worker.wait();  // nothing to wait for
  std::vector<int> order;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 50; ++i) {
      worker.submit([&order, i] {
        order.push_back(i);
        if (i == 0) std::this_thread::yield();
      });
    }
    std::thread::id other;
    worker.submit([&other] { other = std::this_thread::get_id(); });
    worker.wait();
    EXPECT_NE(other, std::this_thread::get_id());
    ASSERT_EQ(order.size(), 50u);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
    order.clear();
  }
}

TEST(SelectWorker, AFailureReachesWaitAndLaterTasksAreLeftOut) {
  SelectWorker worker;
  int ran = 0;
  worker.submit([] { throw std::runtime_error("the set"); });
  worker.submit([&ran] { ++ran; });
  EXPECT_THROW(worker.wait(), std::runtime_error);
  EXPECT_EQ(ran, 0);
  worker.submit([&ran] { ++ran; });
  worker.wait();
  EXPECT_EQ(ran, 1);
}

TEST(SelectWorker, LeavingWithoutWaitingEndsWhatWasSubmitted) {
  int ran = 0;
  {
    SelectWorker worker;
    for (int i = 0; i < 10; ++i) worker.submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 10);
}

}  // namespace
}  // namespace blockscope
