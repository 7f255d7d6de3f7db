// The calibration file: what fits is read, what is malformed, contradicts itself or was made for
// another model is refused by its place in the file; what is written is read back.
#include "decode_record/interchange/reuse_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "tests/decode_record/reuse_file_cases.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using namespace reuse_file_cases;

TEST(ReuseFileTest, AFileMadeByHandNeedsOnlyTheModelAndTheMask) {
  const ReuseFile file = parse_reuse_file(by_hand().dump(), "r.json", kModel);
  EXPECT_EQ(file.reuse.ranges.size(), 1U);
  EXPECT_EQ(file.reuse.at(7),
            (HeadMatrix<bool>{{true, false, true, true}, {false, false, true, false}}));
  EXPECT_FALSE(file.tau || file.predicted);
  EXPECT_TRUE(file.gamma.empty());
  EXPECT_TRUE(file.similarity.empty() && file.traces.empty() && file.curves.empty());
}

TEST(ReuseFileTest, NamesTheFieldThatDiffersFromThisModel) {
  Json good = by_hand();
  good["model"]["kv_heads"] = 2;
  expect_refusals(good,
                  {{"model.layers", [](Json& j) { j["model"]["layers"] = 3; }},
                   {"model.heads", [](Json& j) { j["model"]["heads"] = 5; }},
                   {"model.kv_heads", [](Json& j) { j["model"]["kv_heads"] = 4; }},
                   {"model.digest", [](Json& j) { j["model"]["digest"] = kOther; }}},
                  kModel);
  good["model"]["digest"] = kOther;
  EXPECT_THAT(refusal(good.dump(), kModel),
              testing::AllOf(HasSubstr(kDigest), HasSubstr("got \"" + kOther + "\"")));
  EXPECT_EQ(refusal(good.dump()), "accepted");  // some model's file is a good file
}

TEST(ReuseFileTest, RefusesWhatIsMalformedByItsPlace) {
  expect_refusals(by_hand(), {{"format", [](Json& j) { j["format"] = "other"; }},
                              {"format", [](Json& j) { j.erase("format"); }},
                              {"format_version", [](Json& j) { j["format_version"] = 3; }},
                              {"format_version", [](Json& j) { j["format_version"] = "1"; }},
                              {"model", [](Json& j) { j.erase("model"); }},
                              {"model", [](Json& j) { j["model"] = 5; }},
                              {"model.layers", [](Json& j) { j["model"]["layers"] = 0; }},
                              {"model.heads", [](Json& j) { j["model"]["heads"] = 1e300; }},
                              {"model.heads", [](Json& j) { j["model"]["heads"] = UINT64_MAX; }},
                              {"model.kv_heads", [](Json& j) { j["model"]["kv_heads"] = 3; }},
                              {"model.digest", [](Json& j) { j["model"].erase("digest"); }},
                              {"model.digest", [](Json& j) { j["model"]["digest"] = "abc"; }},
                              {"reuse", [](Json& j) { j.erase("reuse"); }},
                              {"reuse", [](Json& j) { j["reuse"] = Json::array(); }},
                              {"reuse[1]", [](Json& j) { j["reuse"][1].push_back(true); }},
                              {"reuse[1]", [](Json& j) { j["reuse"][1] = "all"; }},
                              {"reuse[0][2]", [](Json& j) { j["reuse"][0][2] = 1; }}});
}

TEST(ReuseFileTest, RefusesMeasurementsThatAreOutOfRangeOrContradictTheMask) {
  const auto set = [](const char* pointer, const Json& value) {
    return [=](Json& json) { json[Json::json_pointer(pointer)] = value; };
  };
  expect_refusals(
      Json::parse(to_json(calibrated())),
      {{"gamma", set("/gamma", 1.5)},
       {"gamma", set("/gamma", nullptr)},
       {"tau", set("/tau", 0)},
       {"tau", set("/tau", 1.5)},
       {"granularity", set("/granularity", "layer")},
       {"similarity[0][1]", set("/similarity/0/1", 1.01)},
       {"similarity[0][1]", set("/similarity/0/1", "high")},
       {"similarity[1]", [](Json& j) { j["similarity"][1].erase(0); }},
       {"standard_error[0][0]", set("/standard_error/0/0", -1)},
       {"count[0][0]", set("/count/0/0", -1)},
       {"traces[0].rows", set("/traces/0/rows", -1)},
       {"traces[0].prompts", set("/traces/0/prompts", "x")},
       {"predictions.chosen.byte_saving", set("/predictions/chosen/byte_saving", 1.5)},
       {"predictions.chosen.relative_l2_reused", set("/predictions/chosen/relative_l2_reused", -1)},
       {"predictions.chosen.terms_reused", set("/predictions/chosen/terms_reused", 78)},
       {"predictions.chosen.reusing_steps", set("/predictions/chosen/reusing_steps", 13)},
       {"predictions.curves[1].points[1].gamma", set("/predictions/curves/1/points/0/gamma", 0.9)},
       {"predictions.curves[1].tau", set("/predictions/curves/1/tau", 1)},
       // The mask must be what gamma and the similarities say, strictly greater.
       {"reuse[0][2]", set("/reuse/0/2", false)},
       {"reuse[0][1]", set("/reuse/0/1", true)},
       {"reuse[1][1]", set("/reuse/1/1", true)},
       {"reuse[0][2]", set("/gamma", 0.95)},
       {"reuse[1][2]", set("/similarity/1/2", 0.5)}});
  Json group = Json::parse(to_json(calibrated()));
  group["granularity"] = "kv-group";
  EXPECT_EQ(refusal(group.dump()), "accepted");  // both of head 2, 3 are above in both layers
  group["model"].erase("kv_heads");
  EXPECT_THAT(refusal(group.dump()), HasSubstr("r.json: model.kv_heads: expected a value"));
}

TEST(ReuseFileTest, RefusesTextsThatAreNoJsonOrNoNumbers) {
  EXPECT_THAT(refusal("{\"format\": "), HasSubstr("r.json"));
  EXPECT_THAT(refusal(""), HasSubstr("r.json"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("r.json"));
  std::string text = to_json(calibrated());
  text.replace(text.find("0.95"), 4, "NaN");
  EXPECT_THAT(refusal(text), HasSubstr("does not parse"));
  text = to_json(calibrated());
  text.replace(text.find("0.95"), 4, "1e999");
  EXPECT_NE(refusal(text), "accepted");
}

TEST(ReuseFileTest, TheMaskIsStrictAndAGroupReusesAsAWhole) {
  const HeadMatrix<double> similarity{{0.9, 0.91, 0.95, 0.99}, {kNotMeasured, 1.0, 1.0, -1.0}};
  EXPECT_EQ(reuse_mask(similarity, 0.9, ReuseGranularity::head, {1, 4, 2, ""}),
            (HeadMatrix<bool>{{false, true, true, true}, {false, true, true, false}}));
  EXPECT_EQ(reuse_mask(similarity, 0.9, ReuseGranularity::kv_group, {1, 4, 2, ""}),
            (HeadMatrix<bool>{{false, false, true, true}, {false, false, false, false}}));
  EXPECT_EQ(reuse_mask(similarity, -1.0, ReuseGranularity::kv_group, {1, 4, 1, ""}),
            (HeadMatrix<bool>{{true, true, true, true}, {false, false, false, false}}));
}

TEST(ReuseFileTest, AGroupIsThatOfItsLayer) {
  const HeadMatrix<double> similarity{{0.9, 0.95, 0.95, 0.95}, {0.9, 0.95, 0.95, 0.95}};
  EXPECT_EQ(reuse_mask(similarity, 0.9, ReuseGranularity::kv_group, {2, 4, 2, "", {2, 1}}),
            (HeadMatrix<bool>{{false, false, true, true}, {false, false, false, false}}));
  ReuseFile file = calibrated();
  file.model.layer_kv_heads = {2, 1};
  EXPECT_EQ(parse_reuse_file(to_json(file), "r.json").model.layer_kv_heads,
            file.model.layer_kv_heads);
  file.model.layer_kv_heads = {2, 3};
  EXPECT_THAT(refusal(to_json(file)), HasSubstr("a divisor of 4 heads"));
  file.model.layer_kv_heads = {1, 1};
  EXPECT_THAT(refusal(to_json(file)), HasSubstr("a largest value of 2"));
  file.model.layer_kv_heads = {2};
  EXPECT_THAT(refusal(to_json(file)), HasSubstr("2 values, one for each layer"));
}

TEST(ReuseFileTest, APinDecidesItsHeadWhateverGammaSays) {
  ReuseFile file = calibrated();
  file.pins = {{0, 1, true}, {1, 1, false}, {1, 2, false}};
  file.reuse = reuse_masks(file, file.gamma);
  EXPECT_TRUE(file.reuse.heads[0][0][1]);
  EXPECT_FALSE(file.reuse.heads[0][1][2]);
  EXPECT_EQ(parse_reuse_file(to_json(file), "r.json", kModel).pins, file.pins);
  const auto set = [](const char* pointer, const Json& value) {
    return [=](Json& json) { json[Json::json_pointer(pointer)] = value; };
  };
  expect_refusals(
      Json::parse(to_json(file)),
      {{"pins[0].layer", set("/pins/0/layer", 2)},
       {"pins[0].head", set("/pins/0/head", 4)},
       {"pins[0].head", set("/pins/0/head", -1)},
       {"pins[0].reuse", set("/pins/0/reuse", 1)},
       {"pins[0].reuse", set("/pins/0/reuse", false)},
       {"pins[1]", set("/pins/1", {{"layer", 0}, {"head", 1}, {"reuse", true}})},
       {"pins", set("/pins", 5)},
       {"pins[2].head", [](Json& j) { j["pins"][2].erase("head"); }},
       // Without its pin a head is what gamma says.
       {"reuse[0][1]", [](Json& j) { j["pins"].erase(0); }},
       {"pins[1].reuse", [](Json& j) { j["reuse"][1][1] = j["pins"][1]["reuse"] = true; }}});
  Json unmeasured = by_hand();
  unmeasured["pins"] = {{{"layer", 0}, {"head", 0}, {"reuse", true}}};
  EXPECT_EQ(refusal(unmeasured.dump()), "accepted");
}

TEST(ReuseFileTest, ReadsBackEveryBitOfWhatItWrote) {
  const fixture::TempDir folder;
  const std::string path = folder.file("reuse.json");
  const ReuseFile file = calibrated();
  write_reuse_file(path, file);
  const ReuseFile back = read_reuse_file(path, kModel);
  EXPECT_EQ(to_json(back), to_json(file));
  EXPECT_EQ(back.similarity[0][0][0], 0.1 + 0.2);
  EXPECT_TRUE(std::isnan(back.similarity[0][1][1]));
  EXPECT_EQ(back.reuse, file.reuse);
  EXPECT_EQ(back.predicted->point.relative_l2, 1.0 / 3.0);
  EXPECT_EQ(back.predicted->point.relative_l2_reused, 2.0 / 3.0);
  EXPECT_EQ(back.predicted->point.terms_reused, 33);
  EXPECT_EQ(back.predicted->external_keys_read, 750'000'000'000);
  EXPECT_EQ(back.curves[1].points[1].terms, 77);
  EXPECT_EQ(back.traces[1].model_digest, "");
  EXPECT_EQ(back.count, file.count);
}

TEST(ReuseFileTest, ReadsFilesFromBeforeTheErrorWhereReused) {
  Json old = Json::parse(to_json(calibrated()));
  const auto age = [](Json& point) {
    for (const char* name : {"relative_l2_reused", "mean_l1_reused", "terms_reused"}) {
      EXPECT_EQ(point.erase(name), 1U) << name;
    }
  };
  age(old["predictions"]["chosen"]);
  for (Json& curve : old["predictions"]["curves"]) {
    for (Json& point : curve["points"]) age(point);
  }
  const ReuseFile file = parse_reuse_file(old.dump(), "old.json", kModel);
  EXPECT_EQ(file.predicted->point.relative_l2, 1.0 / 3.0);
  EXPECT_TRUE(std::isnan(file.predicted->point.relative_l2_reused));
  EXPECT_EQ(file.curves[1].points[0].terms_reused, 0);
}

TEST(ReuseFileTest, WritesWholeFilesOrNone) {
  const fixture::TempDir folder;
  const std::string path = folder.file("reuse.json");
  std::ofstream(path) << "mine";
  EXPECT_THROW(write_reuse_file(path, calibrated()), UsageError);
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
  ReuseFile bad = calibrated();
  bad.similarity[0][0][0] = 2.0;
  EXPECT_THROW(write_reuse_file(path, bad, true), CalibrationError);
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
  write_reuse_file(path, calibrated(), true);
  EXPECT_EQ(to_json(read_reuse_file(path)), to_json(calibrated()));
  EXPECT_THROW(write_reuse_file(folder.file("none/reuse.json"), calibrated()), Error);
  EXPECT_THROW(write_reuse_file(folder.path(), calibrated(), true), Error);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().filename(), "reuse.json");
    ++files;
  }
  EXPECT_EQ(files, 1U);
  EXPECT_THROW(read_reuse_file(folder.file("none.json")), CalibrationError);
  EXPECT_THROW(read_reuse_file(folder.path()), CalibrationError);
}

}  // namespace
}  // namespace blockscope
