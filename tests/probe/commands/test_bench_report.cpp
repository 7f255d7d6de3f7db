// The lines that `bench` prints: nothing is divided by a count of zero.
#include "probe/commands/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchReport, WhatWasNotDecidedHasNoSpeed) {
  Timing timing;
  timing.blocks = 0.5;
  const std::string none = timing_line("off", timing, {}, 1);
  EXPECT_THAT(none, HasSubstr("n/a         n/a         n/a"));
  timing.block_passes = 4;
  EXPECT_THAT(timing_line("off", timing, {}, 1), HasSubstr("n/a         n/a     125.000"));
  timing.tokens = 10;
  timing.denoising_passes = 2;
  const std::string some = timing_line("off", timing, {}, 1);
  EXPECT_THAT(some, HasSubstr("20.0     250.000     125.000"));
  EXPECT_THAT(some, Not(HasSubstr("n/a")));
}

TEST(BenchReport, AnOverheadIsOfRunsBesideEachOther) {
  const auto run = [](double seconds) {
    Timing timing;
    timing.blocks = seconds;
    return timing;
  };
  // The machine was slower in the second run, for both.
  const Overhead overhead = overhead_of({run(1.1), run(2.4), run(1.3)}, {run(1), run(2), run(1)});
  EXPECT_NEAR(overhead.least, 0.1, 1e-12);
  EXPECT_NEAR(overhead.median, 0.2, 1e-12);
  EXPECT_NEAR(overhead.most, 0.3, 1e-12);
}

}  // namespace
}  // namespace blockscope
