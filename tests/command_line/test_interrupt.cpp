// Signals: noted once, fatal the second time Ctrl-C is pressed, default again afterwards.
#include "command_line/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace blockscope {
namespace {

TEST(InterruptGuard, NotesEachOfItsSignalsAndForgetsThemWithTheNextRun) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    const InterruptGuard guard;
    EXPECT_EQ(InterruptGuard::signal(), 0);
    std::raise(number);
    EXPECT_EQ(InterruptGuard::signal(), number);
  }
}

TEST(InterruptGuardDeathTest, ASecondInterruptEndsTheProcessAtOnce) {
  const auto press_twice = [] {
    const InterruptGuard guard;
    std::raise(SIGINT);
    if (InterruptGuard::signal() != SIGINT) std::_Exit(3);
    std::raise(SIGINT);
    std::_Exit(0);
  };
  EXPECT_EXIT(press_twice(), ::testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptGuardDeathTest, RepeatedWarningsOfASchedulerDoNotEndTheProcess) {
  const auto warn_twice = [] {
    const InterruptGuard guard;
    std::raise(SIGUSR1);
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    std::_Exit(InterruptGuard::signal() == SIGTERM ? 0 : 3);
  };
  EXPECT_EXIT(warn_twice(), ::testing::ExitedWithCode(0), "");
}

TEST(InterruptGuardDeathTest, UnderNohupTheTerminalMayGo) {
  const auto under_nohup = [] {
    std::signal(SIGHUP, SIG_IGN);
    {
      const InterruptGuard guard;
      std::raise(SIGHUP);
      if (InterruptGuard::signal() != 0) std::_Exit(3);
    }
    std::raise(SIGHUP);
    std::_Exit(0);
  };
  EXPECT_EXIT(under_nohup(), ::testing::ExitedWithCode(0), "");
}

TEST(InterruptGuardDeathTest, BeforeACommandHasOutputsASignalIsToldAndEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    const auto signalled = [number] {
      end_on_signals();
      std::raise(number);
      std::_Exit(0);
    };
    EXPECT_EXIT(signalled(), ::testing::ExitedWithCode(128 + number),
                "^blockscope: stopped by a signal: nothing was written\n$");
  }
}

TEST(InterruptGuardDeathTest, AfterItsOutputsASignalEndsTheProcessWithoutThatClaim) {
  const auto signalled = [] {
    end_on_signals();
    { const InterruptGuard guard; }
    std::raise(SIGTERM);
    std::_Exit(0);
  };
  EXPECT_EXIT(signalled(), ::testing::ExitedWithCode(128 + SIGTERM),
              "^blockscope: stopped by a signal\n$");
}

TEST(InterruptGuardDeathTest, SignalsEndTheProcessAgainWithoutAGuard) {
  const auto after_the_run = [] {
    { const InterruptGuard guard; }
    std::raise(SIGTERM);
    std::_Exit(0);
  };
  EXPECT_EXIT(after_the_run(), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace blockscope
