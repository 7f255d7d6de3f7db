// What a study measured is on disk cell by cell, and goes on only as the same study.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "decode_record/base/error.h"
#include "probe/study/study_store.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;

const nlohmann::json kSettings = {{"k", {8, 16}}, {"study", "needle"}};

class StudyStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ifstream stream(path_);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  void append(const std::string& text) const {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  void measure_one() const {
    StudyStore store(path_, kSettings, false, false);
    store.put("a", {{"score", 1.0}});
  }
  template <class E>
  std::string error_of(const nlohmann::json& settings, bool resume = true) const {
    try {
      StudyStore store(path_, settings, resume, false);
    } catch (const E& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / "blockscope-study-store-test";
  std::string path_ = (folder_ / "needle.cells.jsonl").string();
};

TEST_F(StudyStoreTest, ResumingFindsWhatWasMeasured) {
  measure_one();
  StudyStore store(path_, kSettings, true, false);
  EXPECT_TRUE(store.has("a"));
  EXPECT_FALSE(store.has("b"));
  EXPECT_EQ(store.value("a"), (nlohmann::json{{"score", 1.0}}));
}

TEST_F(StudyStoreTest, ALineThatAKillCutIsMeasuredAgainAndNothingElse) {
  measure_one();
  const std::string whole = content();
  append(R"({"cell": "b", "val)");
  {
    StudyStore store(path_, kSettings, true, false);
    EXPECT_TRUE(store.has("a"));
    EXPECT_FALSE(store.has("b"));
    EXPECT_EQ(content(), whole);
    store.put("b", 2);
  }
  StudyStore store(path_, kSettings, true, false);
  EXPECT_EQ(store.value("b"), nlohmann::json(2));
}

TEST_F(StudyStoreTest, BeginningAgainChangesNoFileOfAnotherName) {
  measure_one();
  const std::string before = content();
  const std::string kept = (folder_ / "kept").string();
  std::filesystem::create_hard_link(path_, kept);
  { StudyStore store(path_, {{"k", {4}}}, false, true); }
  std::filesystem::remove(path_);
  std::filesystem::rename(kept, path_);
  EXPECT_EQ(content(), before);
}

TEST_F(StudyStoreTest, ALinkIsNotFollowed) {
  const std::filesystem::path elsewhere = folder_ / "elsewhere";
  std::filesystem::create_symlink(elsewhere, path_);
  EXPECT_THROW(StudyStore(path_, kSettings, false, false), UsageError);
  EXPECT_THAT(error_of<Error>(kSettings), HasSubstr("it is a link, which is not followed"));
  { StudyStore store(path_, kSettings, false, true); }
  EXPECT_FALSE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::is_symlink(path_));
}

TEST_F(StudyStoreTest, AMeasurementIsNotLostWithItsFile) {
  StudyStore store(path_, kSettings, false, false);
  std::filesystem::remove(path_);
  EXPECT_THROW(store.put("a", 1), Error);
}

TEST_F(StudyStoreTest, OtherSettingsAreRefusedByName) {
  measure_one();
  nlohmann::json other = kSettings;
  other["k"] = {8};
  EXPECT_THAT(error_of<UsageError>(other), HasSubstr("k: expected [8,16], got [8]"));
  other = kSettings;
  other["pages"] = {4};
  EXPECT_THAT(error_of<UsageError>(other), HasSubstr("pages: expected none, got [4]"));
  EXPECT_THAT(error_of<UsageError>({{"study", "needle"}}), HasSubstr("k: expected [8,16]"));
  EXPECT_THAT(content(), HasSubstr("\"a\""));
}

TEST_F(StudyStoreTest, AFileThatIsThereIsKeptUnlessAskedFor) {
  measure_one();
  EXPECT_THAT(error_of<UsageError>(kSettings, false), HasSubstr("--resume"));
  EXPECT_THAT(content(), HasSubstr("\"a\""));
  const StudyStore anew(path_, kSettings, false, true);
  EXPECT_FALSE(anew.has("a"));
}

TEST_F(StudyStoreTest, WhatStudyDidNotWriteIsRefusedAndStays) {
  append("not json\n");
  EXPECT_THAT(error_of<Error>(kSettings), HasSubstr("line 1"));
  EXPECT_EQ(content(), "not json\n");
  std::filesystem::remove(path_);
  measure_one();
  append("[1]\n");
  EXPECT_THAT(error_of<Error>(kSettings), HasSubstr("line 3"));
}

TEST_F(StudyStoreTest, TwoProcessesNeverMeasureIntoOneFile) {
  const StudyStore first(path_, kSettings, false, false);
  EXPECT_THAT(error_of<Error>(kSettings), HasSubstr("another process"));
}

}  // namespace
}  // namespace blockscope
