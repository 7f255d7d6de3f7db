// Choosing sets on a second stream of the emulated cuda:0, which computes nothing before somebody
// waits, and gives NaN to who reads without an event.
#include "probe/policies/select_stream.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

c10::Stream current_stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream({c10::kCUDA, 0});
}

at::Tensor fifties() { return at::ones({50}, at::kCUDA) * 50; }

TEST(SelectStream, TasksRunOnAStreamOfTheirOwnAndNobodyWaits) {
  SelectStream select;
  const int64_t before = emulated_cuda::waits_of_this_thread();
  std::vector<c10::Stream> seen;
  at::Tensor sum;
  const at::Tensor x = fifties();
  for (int i = 0; i < 2; ++i) {
    select.submit({x}, [&] {
      seen.push_back(current_stream());
      sum = x.sum();
      return std::vector{sum, at::Tensor()};
    });
  }
  EXPECT_NE(seen.front(), current_stream());
  EXPECT_EQ(seen.front(), seen.back());
  select.wait();
  const at::Tensor behind = sum + 1;
  EXPECT_EQ(emulated_cuda::waits_of_this_thread(), before);
  EXPECT_EQ(behind.item<float>(), 2501);
}

TEST(SelectStream, ATaskFindsWhatTheCallerComputed) {
  SelectStream select;
  std::optional<c10::Stream> beside;
  at::Tensor sum;
  const at::Tensor x = fifties();
  select.submit({x}, [&] {
    beside = current_stream();
    sum = x.sum();
    return std::vector{sum};
  });
  beside->synchronize();  // before anybody waited for the caller's stream
  select.wait();
  EXPECT_EQ(sum.item<float>(), 2500);
}

TEST(SelectStream, WhatATaskReadsStaysUntilItWasRead) {
  SelectStream select;
  at::Tensor sum;
  {
    const at::Tensor x = fifties();
    (void)x.sum().item<float>();
    select.submit({x}, [&] {
      sum = x.sum();
      return std::vector{sum};
    });
  }
  (void)fifties().sum().item<float>();  // the caller's stream goes on, and frees
  select.wait();
  EXPECT_EQ(sum.item<float>(), 2500);
}

TEST(SelectStream, WhatATaskMadeStaysUntilTheCallerReadIt) {
  SelectStream select;
  std::optional<c10::Stream> beside;
  at::Tensor sum;
  const at::Tensor x = fifties();
  select.submit({x}, [&] {
    beside = current_stream();
    sum = x.sum();
    return std::vector{sum};
  });
  select.wait();
  const at::Tensor behind = sum + 1;
  sum.reset();
  beside->synchronize();  // the second stream goes on, and frees
  EXPECT_EQ(behind.item<float>(), 2501);
}

}  // namespace
}  // namespace blockscope
