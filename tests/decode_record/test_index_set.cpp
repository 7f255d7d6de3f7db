// Index lists of the command line.
#include "decode_record/base/index_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(IndexSet, HoldsRangesAndNumbersAscendingAndOnce) {
  EXPECT_THAT(parse_index_set("0-3,7", "--layers", 0, 10), ElementsAre(0, 1, 2, 3, 7));
  EXPECT_THAT(parse_index_set("7,1-2,2-3,7", "--layers", 0, 10), ElementsAre(1, 2, 3, 7));
  EXPECT_THAT(parse_index_set("4", "--steps", 1), ElementsAre(4));
  EXPECT_THAT(parse_index_set("", "--steps", 1), IsEmpty());
}

TEST(IndexSet, ARangeHasBothEndsWhetherOrNotTheLastIsKnown) {
  for (const std::int64_t end : {std::int64_t{9}, std::int64_t{-1}}) {
    try {
      parse_index_set("6-", "--layers", 0, end);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--layers: expected a range with both ends, got '6-'"));
    }
  }
}

TEST(IndexSet, NamesTheFlagAndThePartItRefuses) {
  for (const char* text : {"10", "0-10", "-1", "3-1", "x", "1,,2", "1-2-3", "1 2", "0x1", ",",
                           "99999999999999999999", "1.5", "9-"}) {
    SCOPED_TRACE(text);
    try {
      parse_index_set(text, "--layers", 0, 9);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--layers"));
    }
  }
  EXPECT_THROW(parse_index_set("0", "--steps", 1), UsageError);
}

TEST(IndexSet, RefusesARangeThatWouldFillTheMemory) {
  EXPECT_THROW(parse_index_set("1-9000000000000000000", "--steps", 1), UsageError);
}

}  // namespace
}  // namespace blockscope
