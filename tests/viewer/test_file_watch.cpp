// What the file system says about an open file, and which of its bytes are looked at.
#include "viewer/model/file_watch.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

TEST(FileWatch, AGrowingFileIsTheSameFile) {
  const FileMark before{1, 2, 100, 5, 5};
  EXPECT_EQ(fault_since(before, FileMark{1, 2, 200, 6, 6}, true), FileFault::none);
  EXPECT_EQ(fault_since(before, FileMark{1, 2, 100, 6, 6}, true), FileFault::none);
  EXPECT_EQ(fault_since(before, FileMark{1, 2, 200, 6, 6}, false), FileFault::overwritten);
  EXPECT_EQ(fault_since(before, FileMark{1, 2, 100, 6, 6}, false), FileFault::overwritten);
  EXPECT_EQ(fault_since(before, FileMark{1, 2, 100, 5, 6}, false), FileFault::none);
  for (const bool being_written : {false, true}) {
    EXPECT_EQ(fault_since(before, FileMark{1, 2, 99, 5, 5}, being_written), FileFault::truncated);
    EXPECT_EQ(fault_since(before, FileMark{1, 3, 200, 5, 5}, being_written), FileFault::replaced);
    EXPECT_EQ(fault_since(before, std::nullopt, being_written), FileFault::removed);
  }
}

TEST(FileWatch, TheSampleHasTheFirstAndTheLastByte) {
  fixture::TempDir folder;
  const std::string path = folder.file("any");
  for (const std::size_t size : {0UL, 1UL, 4095UL, 4096UL, 4097UL, 70000UL, 196615UL}) {
    std::ofstream(path, std::ios::binary) << std::string(size, 'x');
    const auto before = sample_content(path);
    ASSERT_TRUE(before.has_value());
    EXPECT_EQ(sample_content(path), before);
    for (const std::size_t at : {std::size_t{0}, size - 1}) {
      if (size == 0) continue;
      std::string bytes(size, 'x');
      bytes[at] = 'y';
      std::ofstream(path, std::ios::binary) << bytes;
      EXPECT_NE(sample_content(path), before) << size << ", byte " << at;
    }
  }
  EXPECT_FALSE(sample_content(folder.file("none")).has_value());
}

}  // namespace
}  // namespace blockscope
