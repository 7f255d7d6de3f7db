// Descriptors 0 to 2 are taken before a file can get them; lost output is reported.
#include "command_line/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace blockscope {
namespace {

TEST(StandardStreamsDeathTest, AClosedDescriptorIsTakenBeforeAFileCanHaveIt) {
  const auto with_all_closed = [] {
    for (const int descriptor : {0, 1, 2}) ::close(descriptor);
    take_standard_descriptors();
    if (::open("/dev/null", O_RDWR) <= 2) std::_Exit(4);
    char byte = 0;
    if (::read(0, &byte, 1) != -1 || ::write(1, &byte, 1) != -1) std::_Exit(5);
    if (::write(2, &byte, 1) != 1) std::_Exit(6);
    note("nobody hears {}\n", "this");
    say("nor this\n");
    std::_Exit(flush_standard_output().whole ? 7 : 0);
  };
  EXPECT_EXIT(with_all_closed(), ::testing::ExitedWithCode(0), "");
}

TEST(StandardStreamsDeathTest, OpenDescriptorsStayAsTheyAre) {
  const auto with_all_open = [] {
    take_standard_descriptors();
    note("still there");
    std::_Exit(0);
  };
  EXPECT_EXIT(with_all_open(), ::testing::ExitedWithCode(0), "still there");
}

TEST(StandardStreamsDeathTest, ABrokenPipeIsToldApart) {
  const auto into_a_broken_pipe = [] {
    take_standard_descriptors();
    int ends[2];
    if (::pipe(ends) != 0) std::_Exit(3);
    ::close(ends[0]);
    ::dup2(ends[1], 1);
    say("lost\n");
    const PrintedState state = flush_standard_output();
    std::_Exit(!state.whole && state.nobody_reads ? 0 : 4);
  };
  EXPECT_EXIT(into_a_broken_pipe(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace blockscope
