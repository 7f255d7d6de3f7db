// What the viewer remembers, and paths being typed.
#include "viewer/model/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "decode_record/base/error.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Settings, ComeBackAsTheyWereSaved) {
  fixture::TempDir folder;
  Settings settings;
  settings.appearance = {false, "magma_r", true, -0.25F, 0.75F};
  settings.cache_mib = 512;
  settings.add_recent("/a/run.h5");
  settings.add_recent("/b/run.h5");
  settings.add_recent("/a/run.h5");
  save_settings(settings, folder.file("new/folder"));
  const Settings read = load_settings(folder.file("new/folder"));
  EXPECT_FALSE(read.appearance.dark);
  EXPECT_EQ(read.appearance.map, "magma_r");
  EXPECT_TRUE(read.appearance.lock_range);
  EXPECT_FLOAT_EQ(read.appearance.low, -0.25F);
  EXPECT_FLOAT_EQ(read.appearance.high, 0.75F);
  EXPECT_EQ(read.cache_mib, 512U);
  EXPECT_THAT(read.recent, ElementsAre("/a/run.h5", "/b/run.h5"));
}

TEST(Settings, DamageKeepsDefaults) {
  fixture::TempDir folder;
  for (const char* text :
       {"", "not json", "[1]", R"({"colormap":"jet","cache_mib":1,"dark":"yes","recent":7})",
        R"({"low":2,"high":1})"}) {
    std::ofstream(folder.file("settings.json")) << text;
    const Settings read = load_settings(folder.file(""));
    EXPECT_EQ(read.appearance.map, "viridis") << text;
    EXPECT_TRUE(read.appearance.dark) << text;
    EXPECT_LT(read.appearance.low, read.appearance.high) << text;
    EXPECT_EQ(read.cache_mib, kDefaultCacheMiB) << text;
    EXPECT_THAT(read.recent, IsEmpty()) << text;
  }
}

TEST(Settings, ListOfRecentFilesIsShort) {
  Settings settings;
  for (int i = 0; i < 40; ++i) settings.add_recent("/run" + std::to_string(i) + ".h5");
  EXPECT_EQ(settings.recent.size(), kMostRecentFiles);
  EXPECT_EQ(settings.recent.front(), "/run39.h5");
}

TEST(CompletePath, OffersFoldersAndTraces) {
  fixture::TempDir folder;
  std::filesystem::create_directory(folder.file("runs"));
  for (const char* name : {"run.h5", "run2.h5.partial", "run.txt", "other.h5"}) {
    std::ofstream(folder.file(name)) << "x";
  }
  EXPECT_THAT(complete_path(folder.file("run")),
              ElementsAre(folder.file("run.h5"), folder.file("run2.h5.partial"),
                          folder.file("runs") + "/"));
  EXPECT_THAT(complete_path(folder.file("nowhere/x")), IsEmpty());
  EXPECT_EQ(complete_path(folder.file("run"), 1).size(), 1U);
}

}  // namespace
}  // namespace blockscope
