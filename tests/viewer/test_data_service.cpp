// The background thread's promises: answers at once, never queues stale work, keeps to its budget.
#include "viewer/model/data_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

namespace blockscope {
namespace {

struct Number : Payload {
  explicit Number(int number, std::size_t number_of_bytes = 8)
      : value(number), size(number_of_bytes) {}
  std::size_t bytes() const override { return size; }
  int value;
  std::size_t size;
};

DataService::Job make(int value, std::size_t size = 8) {
  return [value, size](OpenTraces&, JobControl&) { return std::make_shared<Number>(value, size); };
}

/// Requests the value until it has arrived.
Data<Number> wait_for(DataService& data, const std::string& slot, const std::string& key,
                      const DataService::Job& job) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Data<Number> answer = data.request<Number>(slot, key, job);
  while (answer.state == DataState::loading && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    answer = data.request<Number>(slot, key, job);
  }
  return answer;
}

TEST(DataService, ComputesOnceAndRemembers) {
  DataService data(1000);
  std::atomic<int> calls = 0;
  const DataService::Job job = [&](OpenTraces&, JobControl&) {
    ++calls;
    return std::make_shared<Number>(7);
  };
  EXPECT_EQ(wait_for(data, "slot", "key", job).value->value, 7);
  EXPECT_EQ(wait_for(data, "other slot", "key", job).value->value, 7);
  EXPECT_EQ(calls, 1);
}

TEST(DataService, NeverWaitsAndNeverQueuesStaleWork) {
  DataService data(1000);
  std::promise<void> started;
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  const DataService::Job slow = [&, gate](OpenTraces&, JobControl&) {
    started.set_value();
    gate.wait();
    return std::make_shared<Number>(0);
  };
  EXPECT_EQ(data.request<Number>("blocker", "blocker", slow).state, DataState::loading);
  started.get_future().wait();
  std::atomic<int> calls = 0;
  const DataService::Job counted = [&](OpenTraces&, JobControl&) {
    ++calls;
    return std::make_shared<Number>(1);
  };
  // Scrubbing: a hundred keys of one slot while the thread is busy; only the last may run.
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(data.request<Number>("scrub", std::to_string(i), counted).state, DataState::loading);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  go.set_value();
  EXPECT_EQ(wait_for(data, "scrub", "99", counted).value->value, 1);
  EXPECT_EQ(calls, 1);
}

TEST(DataService, CancelsARunningJobWhenItsSlotWantsSomethingElse) {
  DataService data(1000);
  std::promise<void> started;
  std::atomic<bool> cancelled = false;
  const DataService::Job endless = [&](OpenTraces&,
                                       JobControl& control) -> std::shared_ptr<const Payload> {
    started.set_value();
    try {
      for (;;) {
        control.report(1, 2);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const JobControl::Cancelled&) {
      cancelled = true;
      throw;
    }
  };
  data.request<Number>("slot", "endless", endless);
  started.get_future().wait();
  EXPECT_EQ(wait_for(data, "slot", "next", make(3)).value->value, 3);
  EXPECT_TRUE(cancelled);
}

TEST(DataService, FailuresAreAnswersWithAMessage) {
  DataService data(1000);
  const auto answer =
      wait_for(data, "slot", "key", [](OpenTraces&, JobControl&) -> std::shared_ptr<const Payload> {
        throw std::runtime_error("no such row");
      });
  EXPECT_EQ(answer.state, DataState::failed);
  EXPECT_EQ(answer.message, "no such row");
  data.forget("key");
  EXPECT_EQ(wait_for(data, "slot", "key", make(5)).value->value, 5);
}

TEST(DataService, KeepsToItsBudgetAndDropsTheLeastRecentlyAskedFor) {
  DataService data(100);
  wait_for(data, "slot", "a", make(1, 40));
  wait_for(data, "slot", "b", make(2, 40));
  data.request<Number>("slot", "a", make(1, 40));  // a is now the more recent one
  wait_for(data, "slot", "c", make(3, 40));
  EXPECT_LE(data.cached_bytes(), 100U);
  std::atomic<int> calls = 0;
  const DataService::Job again = [&](OpenTraces&, JobControl&) {
    ++calls;
    return std::make_shared<Number>(2, 40);
  };
  EXPECT_EQ(data.request<Number>("slot", "a", again).state, DataState::ready);
  EXPECT_EQ(data.request<Number>("slot", "b", again).state, DataState::loading);
  wait_for(data, "slot", "b", again);
  EXPECT_EQ(calls, 1);
}

TEST(DataService, AValueLargerThanTheBudgetIsStillShown) {
  DataService data(10);
  EXPECT_EQ(wait_for(data, "slot", "big", make(9, 1000)).value->value, 9);
}

}  // namespace
}  // namespace blockscope
