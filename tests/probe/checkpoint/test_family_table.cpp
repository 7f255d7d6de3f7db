// The table of model families: complete entries, and no second place that knows a family by its
// name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "probe/checkpoint/family_table.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using test::checkpoint_error;
using testing::HasSubstr;

TEST(FamilyTable, EveryEntryIsCompleteAndUnique) {
  std::set<std::string> names;
  for (const Family& family : family_table()) {
    SCOPED_TRACE(family.name);
    EXPECT_TRUE(names.insert(family.name).second);
    for (const std::string& architecture : family.architectures) {
      EXPECT_TRUE(names.insert(architecture).second) << architecture;
    }
    EXPECT_FALSE(family.meaning.empty());
    EXPECT_FALSE(family.source.empty());
    EXPECT_FALSE(family_facts(family).empty());
    if (!family.refusal.empty()) continue;
    EXPECT_FALSE(family.architectures.empty());
    EXPECT_FALSE(family.example.empty());
    EXPECT_EQ(family.draft, !family.training.target.empty());
    const bool canvas = family.attention == FamilyAttention::canvas;
    const bool own_mask = !family.draft && !canvas && family.attention != FamilyAttention::causal;
    EXPECT_EQ(own_mask, family.default_mask_token_id.has_value());
    // The files of dLLM's models don't say whether they have blocks.
    const bool own_blocks = own_mask && !family.name.starts_with("a2d-");
    EXPECT_EQ(own_blocks, family.default_block_length.has_value());
    EXPECT_EQ(own_mask, !family.mask_token.empty());
    EXPECT_TRUE(!family.training.by_name || family.training.config_json != nullptr);
  }
}

TEST(FamilyTable, AnUnknownNameIsRefusedWithTheNames) {
  EXPECT_EQ(family_named("llada").name, "llada");
  EXPECT_THAT(checkpoint_error([] { family_named("gpt2"); }), HasSubstr("\"sdar\""));
}

TEST(FamilyTable, ABackboneLeadsToWhatIsTrainedFromIt) {
  EXPECT_EQ(trained_from(family_named("qwen3")).name, "sdar");
  EXPECT_EQ(trained_from(family_named("llada")).name, "llada");
}

// What a family decides belongs into its entry. The trainer may name what it makes.
TEST(FamilyTable, OnlyItsOwnFileNamesAFamily) {
  const std::multimap<std::string, std::string> allowed = {
      {"probe/train/train_run.h", "sdar"},            // the default of --family
      {"probe/train/train_run.cpp", "sdar"},          // the family of the shipped model
      {"probe/train/draft_objective.cpp", "dflash"},  // what the draft stage makes
      {"probe/study/prediction.cpp", "sdar"}};        // the config.json of a published model
  const fs::path root = BLOCKSCOPE_SOURCE_DIR;
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root / "probe")) {
    const std::string file = fs::relative(entry.path(), root).string();
    if (!entry.is_regular_file() || file.ends_with("_family.cpp")) continue;
    const std::string text = test::read_text(entry.path());
    ++files;
    for (const Family& family : family_table()) {
      const auto [first, last] = allowed.equal_range(file);
      if (std::any_of(first, last, [&](const auto& one) { return one.second == family.name; })) {
        continue;
      }
      EXPECT_EQ(text.find("\"" + family.name + "\""), std::string::npos)
          << file << " names " << family.name;
    }
  }
  EXPECT_GT(files, 100u);
}

}  // namespace
}  // namespace blockscope
