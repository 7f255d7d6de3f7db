// info, diff and export as a user runs them, on traces whose every value is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/cli/trace_files.h"

namespace blockscope::test {
namespace {

using fixture::expected_value;
using fixture::TempDir;
using nlohmann::json;
using ::testing::HasSubstr;

json run_json(const std::vector<std::string>& arguments) {
  const auto result = run_blockscope(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json value = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << result.out;
  return value;
}

TEST(Info, CountsRowsBlocksAndTokens) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  const json info = run_json({"info", folder.file("a.h5"), "--json"});
  EXPECT_EQ(info["sequences"], 2);
  EXPECT_EQ(info["blocks"], 4);
  EXPECT_EQ(info["rows"]["committed"], 14);
  EXPECT_EQ(info["rows"]["prefill"], 2);
  EXPECT_EQ(info["rows"]["denoise"], 8);
  EXPECT_EQ(info["rows"]["commit"], 4);
  EXPECT_EQ(info["tokens_decided"], 16);
  EXPECT_EQ(info["tokens_per_step"], 2.0);
  EXPECT_EQ(info["complete"], true);
  EXPECT_EQ(info["model"]["name"], "fixture");
  const auto& datasets = info["datasets"];
  const auto external = std::find_if(datasets.begin(), datasets.end(), [](const json& item) {
    return item["path"] == "/attention/external";
  });
  ASSERT_NE(external, datasets.end());
  EXPECT_EQ((*external)["shape"], json({14, 2, 3, 4, 8}));
  EXPECT_EQ((*external)["type"], "bf16");
  EXPECT_EQ((*external)["bytes"], 14 * 2 * 3 * 4 * 8 * 2);
}

TEST(Info, LayerMeansAreWeightedByTheValidPositionsOfLaterSteps) {
  const TempDir folder;
  RunShape shape;
  shape.sequences = 1;
  // Block 0 has 1 valid position of 4, so its values weigh a quarter of block 1's.
  shape.change = [](TraceRow& row) {
    if (row.block == 0) row.valid = {1, 0, 0, 0};
  };
  write_run(folder.file("a.h5"), shape);
  const json info = run_json({"info", folder.file("a.h5"), "--json"});
  // Rows: 0 prefill, 1 and 2 denoise, 3 commit, 4 and 5 denoise, 6 commit; step 2 is row 2 and 5.
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    double sum = 0.0;
    for (std::int64_t head = 0; head < 3; ++head) {
      sum += 1.0 * expected_value(Field::similarity_external, 2, layer, head) +
             4.0 * expected_value(Field::similarity_external, 5, layer, head);
    }
    const json& mean = info["layers"][static_cast<std::size_t>(layer)]["similarity_external"];
    EXPECT_NEAR(mean["mean"].get<double>(), sum / 15.0, 1e-9);
    EXPECT_EQ(mean["terms"], 15);
  }
  EXPECT_EQ(info["layers"][1]["layer"], 2) << "the model's layer, not its index";
}

TEST(Info, StepsWithoutAPrefixAreCountedApart) {
  const TempDir folder;
  RunShape shape;
  shape.sequences = 1;
  shape.change = [](TraceRow& row) {
    if (row.block == 0) row.context_length = 0;
  };
  write_run(folder.file("a.h5"), shape);
  const json info = run_json({"info", folder.file("a.h5"), "--json"});
  EXPECT_EQ(info["rows"]["denoise_without_prefix"], 2);
  EXPECT_EQ(info["layers"][0]["external_mass"]["terms"], 12);
}

TEST(Info, TableSaysWhetherARunWasCutOff) {
  const TempDir folder;
  RunShape shape;
  shape.finish = false;
  write_run(folder.file("a.h5"), shape);
  const auto cut = run_blockscope({"info", folder.file("a.h5")});
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_THAT(cut.out, HasSubstr("unfinished"));
  EXPECT_THAT(cut.out, HasSubstr("14 committed"));
}

TEST(Info, WhatIsNoTraceFailsWithOneLine) {
  const TempDir folder;
  std::ofstream(folder.file("text.h5")) << "no trace";
  for (const char* name : {"text.h5", "absent.h5"}) {
    const auto result = run_blockscope({"info", folder.file(name)});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(name));
  }
}

class Diff : public ::testing::Test {
 protected:
  void SetUp() override { write_run(folder_.file("a.h5")); }
  CommandResult diff(const RunShape& shape, std::vector<std::string> flags = {}) {
    write_run(folder_.file("b.h5"), shape);
    flags.insert(flags.begin(), {"diff", folder_.file("a.h5"), folder_.file("b.h5")});
    return run_blockscope(flags);
  }
  TempDir folder_;
};

TEST_F(Diff, EqualTracesGiveZero) {
  const auto result = diff({});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("the traces are equal"));
}

TEST_F(Diff, OneTokenGivesOneWhateverTheTolerance) {
  RunShape shape;
  shape.change = [](TraceRow& row) {
    if (row.block == 1 && row.step == 2) row.delta->rows[0].decoded_tokens[0] += 1;
  };
  const auto result = diff(shape, {"--tol", "100"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("/frames/token"));
  EXPECT_THAT(result.out, HasSubstr("2 of 16 differ, first at [6]"));
}

/// Changes one external mass of every row.
std::function<void(TraceRow&)> mass_changed_by(float (*change)(float)) {
  return [change](TraceRow& row) {
    for (ArraySlice& slice : row.arrays) {
      if (slice.field != Field::external_mass) continue;
      std::vector<float> values(slice.data.size / sizeof(float));
      std::memcpy(values.data(), slice.data.data, slice.data.size);
      values[1] = change(values[1]);
      slice.data = make_buffer(std::move(values));
    }
  };
}

TEST_F(Diff, AFloatIsComparedWithinTheTolerance) {
  RunShape shape;
  shape.change = mass_changed_by([](float mass) { return mass + 0.25F; });
  const auto strict = diff(shape);
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_THAT(strict.out, HasSubstr("/summary/external_mass"));
  EXPECT_THAT(strict.out, HasSubstr("first at [1, 0, 1]"));
  std::filesystem::remove(folder_.file("b.h5"));
  const auto loose = diff(shape, {"--tol", "0.25"});
  EXPECT_EQ(loose.exit_code, 0) << loose.out;
  EXPECT_THAT(loose.out, HasSubstr("equal within the tolerance"));
  std::filesystem::remove(folder_.file("b.h5"));
  EXPECT_EQ(diff(shape, {"--tol", "0.24"}).exit_code, 1);
}

TEST_F(Diff, TheRelativeToleranceIsOfTheSecondTrace) {
  RunShape shape;
  // The difference is 3 |a| = 0.75 |b|.
  shape.change = mass_changed_by([](float mass) { return 4.0F * mass; });
  EXPECT_EQ(diff(shape, {"--rtol", "0.74"}).exit_code, 1);
  std::filesystem::remove(folder_.file("b.h5"));
  const auto loose = diff(shape, {"--rtol", "0.75"});
  EXPECT_EQ(loose.exit_code, 0) << loose.out;
}

TEST_F(Diff, TimingCanBeLeftOut) {
  RunShape shape;
  shape.change = [](TraceRow& row) { row.pass_time_ns += 5; };
  EXPECT_EQ(diff(shape).exit_code, 1);
  std::filesystem::remove(folder_.file("b.h5"));
  EXPECT_EQ(diff(shape, {"--ignore-timing"}).exit_code, 0);
}

TEST_F(Diff, OtherLevelsAndLengthsAreDifferencesAndAMissingArgumentIsUsage) {
  RunShape shape;
  shape.level = RecordLevel::summary;
  const auto level = diff(shape);
  EXPECT_EQ(level.exit_code, 1);
  EXPECT_THAT(level.out, HasSubstr("only in the first trace"));
  std::filesystem::remove(folder_.file("b.h5"));
  shape = {};
  shape.blocks = 3;
  EXPECT_THAT(diff(shape).out, HasSubstr("against"));
  EXPECT_EQ(run_blockscope({"diff", folder_.file("a.h5")}).exit_code, 2);
}

TEST(Export, FramesReplayWithTheRulesOfD2Cache) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  const json root = run_json({"export", folder.file("a.h5"), "--format", "frames"});
  const TraceReader reader(folder.file("a.h5"));
  ASSERT_EQ(root["sequences"].size(), 2u);
  for (std::size_t s = 0; s < 2; ++s) {
    const json& item = root["sequences"][s];
    auto tokens = item["initial_frame"]["generated_tokens"].get<std::vector<std::int64_t>>();
    EXPECT_EQ(tokens, std::vector<std::int64_t>(8, 99));
    EXPECT_EQ(item["initial_frame"]["confidence"][0], nullptr) << "-inf has no JSON number";
    for (const json& delta : item["deltas"]) {
      EXPECT_EQ(delta["transfer_src_index"], nullptr) << "the source is the position itself";
      EXPECT_EQ(delta["insert_index"], nullptr);
      EXPECT_EQ(delta["decoded_tokens"].size(), tokens.size());
      for (const auto& index : delta["transfer_index"]) {
        const auto at = index.get<std::size_t>();
        tokens.at(at) = delta["decoded_tokens"].at(at).get<std::int64_t>();
      }
    }
    const Frame last = reader.decode_record(static_cast<std::int64_t>(s)).last_frame();
    EXPECT_EQ(tokens, last.generated_tokens);
    EXPECT_EQ(item["deltas"].size(), 4u);
  }
}

TEST(Export, StepMapHasOneStepPerGeneratedToken) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  const json root = run_json({"export", folder.file("a.h5"), "--format", "step_map"});
  // Two tokens a step, left to right; steps count from 1.
  EXPECT_EQ(root["sequences"][1]["step_map"], json({1, 1, 2, 2, 3, 3, 4, 4}));
  EXPECT_EQ(root["sequences"][1]["token_ids"].size(), 8u);
  EXPECT_EQ(root["sequences"][0]["text"], "text, \"of\" 0");
}

TEST(Export, CsvAndJsonListEveryDecision) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  const auto csv = run_blockscope({"export", folder.file("a.h5")});
  EXPECT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 1 + 16);
  EXPECT_THAT(csv.out, HasSubstr("\n0,task-0,1,1,0,1,transfer,0,1,"));
  const json root = run_json({"export", folder.file("a.h5"), "--format", "json"});
  ASSERT_EQ(root["sequences"][0]["rows"].size(), 7u);
  EXPECT_EQ(root["sequences"][0]["rows"][1]["delta"]["decoded_tokens"], json({1, 2}));
  EXPECT_EQ(root["sequences"][0]["answer"], "answer 0");
}

TEST(Export, AnExistingFileIsKeptUnlessForced) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  std::ofstream(folder.file("out.csv")) << "mine";
  const std::vector<std::string> arguments = {"export", folder.file("a.h5"), "-o",
                                              folder.file("out.csv")};
  const auto refused = run_blockscope(arguments);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  auto forced = arguments;
  forced.push_back("--force");
  EXPECT_EQ(run_blockscope(forced).exit_code, 0);
  std::ifstream file(folder.file("out.csv"));
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line.substr(0, 9), "sequence,");
  EXPECT_FALSE(std::filesystem::exists(folder.file("out.csv.tmp")));
}

}  // namespace
}  // namespace blockscope::test
