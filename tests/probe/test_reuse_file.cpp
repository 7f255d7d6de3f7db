// The calibration file: what fits is read, what was made for another model is refused by field.
#include "probe/reuse_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/error.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

ModelConfig two_layers() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 3;
  return config;
}

Json good_file() {
  return {{"format", "blockscope-reuse"},
          {"format_version", 1},
          {"model", {{"layers", 2}, {"heads", 3}, {"digest", "abc"}}},
          {"reuse", {{true, false, true}, {false, false, true}}}};
}

class ReuseFileTest : public ::testing::Test {
 protected:
  ReuseFileTest() {
    std::string name = ::testing::TempDir() + "reuse.XXXXXX";
    const int fd = mkstemp(name.data());
    if (fd >= 0) close(fd);
    path_ = name;
  }
  ~ReuseFileTest() override { std::remove(path_.c_str()); }

  ReuseFile read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_reuse_file(path_, two_layers(), "abc");
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string path_;
};

TEST_F(ReuseFileTest, GivesTheHeadsOfEachLayer) {
  const ReuseFile file = read(good_file().dump());
  EXPECT_EQ(file.reuse,
            (std::vector<std::vector<bool>>{{true, false, true}, {false, false, true}}));
}

TEST_F(ReuseFileTest, NamesTheFieldThatDiffersFromThisModel) {
  const std::vector<std::pair<std::string, std::function<void(Json&)>>> cases{
      {"model.layers", [](Json& j) { j["model"]["layers"] = 3; }},
      {"model.heads", [](Json& j) { j["model"]["heads"] = 4; }},
      {"model.digest", [](Json& j) { j["model"]["digest"] = "abd"; }},
      {"format", [](Json& j) { j["format"] = "other"; }},
      {"format_version", [](Json& j) { j["format_version"] = 2; }},
      {"model", [](Json& j) { j.erase("model"); }},
      {"digest", [](Json& j) { j["model"].erase("digest"); }},
      {"reuse", [](Json& j) { j.erase("reuse"); }},
      {"reuse",
       [](Json& j) {
         j["reuse"].push_back({true, true, true});
       }},
      {"reuse[1]", [](Json& j) { j["reuse"][1].push_back(true); }},
      {"reuse[0][2]", [](Json& j) { j["reuse"][0][2] = 1; }},
      {"reuse[1]", [](Json& j) { j["reuse"][1] = "all"; }},
      {"model", [](Json& j) { j["model"] = 5; }}};
  for (const auto& [field, change] : cases) {
    SCOPED_TRACE(field);
    Json json = good_file();
    change(json);
    EXPECT_THAT(refusal(json.dump()), HasSubstr(field));
    EXPECT_THAT(refusal(json.dump()), HasSubstr(path_));
  }
}

TEST_F(ReuseFileTest, SaysWhatTheOtherModelWasAndWhatThisOneIs) {
  Json json = good_file();
  json["model"]["digest"] = "abd";
  EXPECT_THAT(refusal(json.dump()), HasSubstr("expected \"abc\", got \"abd\""));
}

TEST_F(ReuseFileTest, RefusesWhatIsNoJsonOrNoFile) {
  EXPECT_THAT(refusal("{\"format\": "), HasSubstr(path_));
  EXPECT_THAT(refusal(""), HasSubstr(path_));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("format"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr(path_));
  EXPECT_THROW(read_reuse_file(path_ + ".none", two_layers(), "abc"), CheckpointError);
  EXPECT_THROW(read_reuse_file(::testing::TempDir(), two_layers(), "abc"), CheckpointError);
}

}  // namespace
}  // namespace blockscope
