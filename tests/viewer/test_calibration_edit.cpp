// The Calibration panel without its window: the saved file is the one `blockscope calibrate`
// writes, pins and undo do what they say, files of other models and traces without exact values are
// refused.
#include "viewer/model/calibration_edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "decode_record/base/error.h"
#include "tests/analysis/trace_maker.h"
#include "tests/cli/command.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/viewer/view_model_test.h"

namespace blockscope {
namespace {

using testing::wait_until;

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kDigest(64, 'a');

testing::TraceMakerOptions small_trace(std::uint64_t seed) {
  testing::TraceMakerOptions options;
  options.level = RecordLevel::outputs;
  options.sequences = 3;
  options.blocks = 3;
  options.steps = 6;
  options.unequal = true;
  options.correlation = 0.8;
  options.seed = seed;
  options.digest = kDigest;
  return options;
}

std::string file_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class CalibrationOfTraces : public ::testing::Test {
 protected:
  void open(const testing::TraceMakerOptions& options, const std::string& name) {
    testing::make_trace(folder_.file(name), options);
    paths_.push_back(folder_.file(name));
    model_.open(paths_.back());
    ASSERT_TRUE(wait_until(model_, [&] {
      return model_.documents().back().state == OpenState::open;
    })) << model_.documents().back().problem;
  }

  CalibrationEdit edit() {
    return CalibrationEdit(reuse_model_of(model_.overview()->info.meta).value());
  }

  /// As the panel does in every frame, until the sums are there.
  void measure(CalibrationEdit& edit) {
    Data<CalibrationPayload> data;
    ASSERT_TRUE(wait_until(model_, [&] {
      data = request_calibration(model_, calibration_sources(model_), edit.choice(), false);
      return data.state != DataState::loading;
    }));
    ASSERT_EQ(data.state, DataState::ready) << data.message;
    edit.set_sums(data.value->sums);
    ASSERT_NE(edit.result(), nullptr) << edit.problem();
  }

  /// What the command writes over the same traces.
  std::string command_writes(const std::vector<std::string>& flags) {
    const std::string output = folder_.file("command.json");
    std::vector<std::string> arguments{"calibrate"};
    arguments.insert(arguments.end(), paths_.begin(), paths_.end());
    arguments.insert(arguments.end(), {"-o", output, "--force", "--quiet"});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const test::CommandResult done = test::run_blockscope(arguments);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return file_bytes(output);
  }

  std::string saved(CalibrationEdit& edit) {
    save_calibration(model_, edit, folder_.file("saved.json"), true);
    return file_bytes(folder_.file("saved.json"));
  }

  fixture::TempDir folder_;
  std::vector<std::string> paths_;
  ViewModel model_;
};

TEST_F(CalibrationOfTraces, SaveByteForByteWhatCalibrateWrites) {
  open(small_trace(1), "one.h5");
  open(small_trace(2), "two.h5");
  CalibrationEdit edit = this->edit();
  struct Case {
    double gamma;
    std::int64_t tau;
    ReuseGranularity granularity;
  };
  for (const Case& wanted :
       {Case{0.75, 2, ReuseGranularity::head}, Case{0.37, 4, ReuseGranularity::kv_group},
        Case{0.81234, 6, ReuseGranularity::head}}) {
    edit.change({wanted.gamma, wanted.tau, wanted.granularity, {}});
    measure(edit);
    const std::string file = saved(edit);
    EXPECT_EQ(file, command_writes({"--gamma", std::to_string(wanted.gamma), "--tau",
                                    std::to_string(wanted.tau), "--granularity",
                                    std::string(to_string(wanted.granularity))}));
    EXPECT_GT(file.size(), 1000U);
    EXPECT_FALSE(edit.dirty());
  }
  CalibrationChoice by_step{0.6, 3, ReuseGranularity::head, {}};
  by_step.ranges.first = {1, 4};
  by_step.reference = ReuseReference::kept;
  by_step.lse_bound = 0.3;
  edit.change(by_step);
  measure(edit);
  EXPECT_EQ(saved(edit), command_writes({"--gamma", "0.6", "--tau", "3", "--reference", "kept",
                                         "--lse-bound", "0.3", "--by-step=2-3,4-6"}));
  edit.change({0.5, 4, ReuseGranularity::head, {}});
  measure(edit);
  const std::string error = std::to_string(edit.result()->predicted.point.relative_l2_reused);
  edit.aim_at_saving(0.05);
  EXPECT_EQ(saved(edit), command_writes({"--saving", "0.05", "--tau", "4"}));
  edit.aim_at_error(std::stod(error));
  EXPECT_EQ(saved(edit), command_writes({"--max-error", error, "--tau", "4"}));
  EXPECT_THROW(edit.aim_at_saving(0.999), UsageError);
  EXPECT_THROW(save_calibration(model_, edit, paths_[0], true), UsageError);
}

TEST_F(CalibrationOfTraces, APinDecidesAHeadAndTheFileSaysSo) {
  open(small_trace(3), "one.h5");
  CalibrationEdit edit = this->edit();
  measure(edit);
  edit.change({1.0, 2, ReuseGranularity::head, {}});
  edit.toggle_pin(1, 2);
  EXPECT_EQ(edit.pin_of(1, 2), true);
  EXPECT_EQ(edit.result()->predicted.point.heads, 1);
  // Gamma moves, the pin stays; one more click takes it away.
  edit.change({-1.0, 2, ReuseGranularity::head, edit.choice().pins});
  edit.toggle_pin(0, 0);
  EXPECT_EQ(edit.pin_of(0, 0), false);
  EXPECT_EQ(edit.result()->predicted.point.heads, 3 * 4 - 1);
  const std::string path = folder_.file("pinned.json");
  edit.save(path, false);
  EXPECT_THROW(edit.save(path, false), UsageError);  // is there
  const ReuseFile file = read_reuse_file(path, edit.model());
  EXPECT_EQ(file.pins, (std::vector<ReusePin>{{0, 0, false}, {1, 2, true}}));
  EXPECT_FALSE(file.reuse.heads[0][0][0]);
  EXPECT_EQ(file.predicted->point.heads, 3 * 4 - 1);
  edit.toggle_pin(1, 2);
  EXPECT_EQ(edit.pin_of(1, 2), std::nullopt);
  edit.clear_pins();
  EXPECT_EQ(edit.result()->predicted.point.heads, 3 * 4);
  // With whole KV heads a click decides both heads of the group.
  edit.change({1.0, 2, ReuseGranularity::kv_group, {}});
  edit.toggle_pin(2, 3);
  EXPECT_EQ(edit.choice().pins.size(), 2U);
  EXPECT_EQ(edit.pin_of(2, 2), true);
  EXPECT_LT(edit.result()->predicted.external_keys_read, edit.result()->predicted.external_keys);
  edit.toggle_pin(2, 2);
  EXPECT_THAT(edit.choice().pins, IsEmpty());
}

TEST_F(CalibrationOfTraces, ADragIsOneStepBackAndEverythingComesBackWithUndo) {
  open(small_trace(3), "one.h5");
  CalibrationEdit edit = this->edit();
  measure(edit);
  const CalibrationChoice start = edit.choice();
  EXPECT_FALSE(edit.can_undo() || edit.can_redo() || edit.dirty());
  for (int i = 0; i < 50; ++i) {
    edit.preview({0.5 + 0.005 * i, 2, ReuseGranularity::head, {}});
    EXPECT_EQ(edit.result()->gamma.front(), edit.choice().gamma);
  }
  edit.commit();
  edit.commit();
  const CalibrationChoice dragged = edit.choice();
  edit.toggle_pin(0, 1);
  const CalibrationChoice pinned = edit.choice();
  EXPECT_TRUE(edit.dirty());
  edit.undo();
  EXPECT_EQ(edit.choice(), dragged);
  edit.undo();
  EXPECT_EQ(edit.choice(), start);
  EXPECT_EQ(edit.result()->gamma.front(), start.gamma);
  EXPECT_FALSE(edit.can_undo());
  edit.redo();
  edit.redo();
  EXPECT_EQ(edit.choice(), pinned);
  EXPECT_FALSE(edit.can_redo());
  edit.undo();
  edit.preview({0.1, 3, ReuseGranularity::head, {}});
  edit.undo();  // a drag that was not let go yet
  EXPECT_EQ(edit.choice(), dragged);
  edit.change({0.2, 2, ReuseGranularity::head, {}});
  EXPECT_FALSE(edit.can_redo());
}

TEST_F(CalibrationOfTraces, StepsOfGammaMeetEverySetOfHeads) {
  open(small_trace(4), "one.h5");
  CalibrationEdit edit = this->edit();
  measure(edit);
  edit.change({-1.0, 2, ReuseGranularity::head, {{{0, 0}, false}}});
  std::vector<std::int64_t> heads{edit.result()->predicted.point.heads};
  for (int i = 0; i < 20; ++i) {
    edit.step_gamma(1);
    if (edit.result()->predicted.point.heads == heads.back()) break;
    heads.push_back(edit.result()->predicted.point.heads);
  }
  // Similarities of random attention differ: one head a step, from all but the pinned to none.
  ASSERT_EQ(heads.size(), 12U);
  for (std::size_t i = 0; i < heads.size(); ++i) EXPECT_EQ(heads[i], 11 - static_cast<int>(i));
  edit.step_gamma(-1);
  EXPECT_EQ(edit.result()->predicted.point.heads, 1);
}

TEST_F(CalibrationOfTraces, ARangeOfStepsHasItsOwnGammaAndAPinHoldsInAll) {
  open(small_trace(6), "one.h5");
  CalibrationEdit edit = this->edit();
  CalibrationChoice choice{-1.0, 2, ReuseGranularity::head, {}};
  choice.ranges.first = {1, 3, 5};
  edit.change(choice);
  measure(edit);
  EXPECT_EQ(edit.result()->predicted.point.heads, 3 * 12);
  choice.set_gamma(1, 1.0);
  edit.change(choice);
  EXPECT_EQ(edit.result()->gamma, (std::vector<double>{-1.0, 1.0, -1.0}));
  EXPECT_EQ(edit.result()->predicted.point.heads, 2 * 12);
  edit.step_gamma(-1, 1);
  EXPECT_EQ(edit.result()->predicted.point.heads, 2 * 12 + 1);
  edit.undo();
  edit.toggle_pin(1, 2);  // reuses in two of three ranges: the click makes it reuse in all
  EXPECT_EQ(edit.pin_of(1, 2), true);
  EXPECT_EQ(edit.result()->predicted.point.heads, 2 * 12 + 1);
  const std::string path = folder_.file("by_step.json");
  edit.save(path, false);
  const ReuseFile file = read_reuse_file(path, edit.model());
  EXPECT_EQ(file.reuse, edit.result()->reuse);
  EXPECT_EQ(file.gamma, (std::vector<double>{-1.0, 1.0, -1.0}));
  const CalibrationChoice saved = edit.choice();
  edit.change({0.5, 2, ReuseGranularity::head, {}});
  edit.load(path);
  EXPECT_EQ(edit.choice(), saved);
  edit.step_gamma(1);  // all ranges: one gamma again
  EXPECT_TRUE(edit.choice().gammas.empty());
}

TEST_F(CalibrationOfTraces, LoadTakesTheChoiceOverAndTellsWhatDiffers) {
  open(small_trace(5), "one.h5");
  CalibrationEdit edit = this->edit();
  measure(edit);
  edit.change({0.8, 3, ReuseGranularity::kv_group, {{{0, 1}, true}, {{2, 2}, false}}});
  const CalibrationChoice wanted = edit.choice();
  const std::string path = folder_.file("reuse.json");
  edit.save(path, false);
  edit.change({0.1, 2, ReuseGranularity::head, {}});
  edit.load(path);
  EXPECT_EQ(edit.choice(), wanted);
  EXPECT_FALSE(edit.dirty());
  EXPECT_EQ(edit.heads_unlike_loaded(), 0);
  edit.undo();
  EXPECT_EQ(edit.choice().gamma, 0.1);

  // Over other traces the same gamma chooses other heads.
  ReuseFile other = read_reuse_file(path);
  other.pins.clear();
  other.granularity = ReuseGranularity::head;
  for (auto& row : other.similarity[0]) row.assign(row.size(), 0.79);
  other.similarity[0][1][1] = 0.81;
  other.reuse = reuse_masks(other, {0.8});
  write_reuse_file(path, other, true);
  edit.load(path);
  std::int64_t unlike = 0;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (std::size_t head = 0; head < 4; ++head) {
      unlike +=
          edit.result()->reuse.heads[0][layer][head] != other.reuse.heads[0][layer][head] ? 1 : 0;
    }
  }
  EXPECT_GT(unlike, 0);
  EXPECT_EQ(edit.heads_unlike_loaded(), unlike);

  // A mask made by hand: its heads are pinned.
  ReuseFile by_hand;
  by_hand.model = edit.model();
  by_hand.reuse.heads = {
      {{true, false, false, true}, {false, false, false, false}, {true, true, true, true}}};
  write_reuse_file(path, by_hand, true);
  edit.load(path);
  EXPECT_EQ(edit.result()->reuse, by_hand.reuse);
  EXPECT_EQ(edit.choice().pins.size(), 6U);
}

TEST_F(CalibrationOfTraces, AFileOfAnotherModelIsRefusedByItsField) {
  open(small_trace(5), "one.h5");
  CalibrationEdit edit = this->edit();
  const CalibrationChoice before = edit.choice();
  ReuseFile other;
  other.model = edit.model();
  other.model.digest = std::string(64, 'b');
  other.reuse.heads = {HeadMatrix<bool>(3, std::vector<bool>(4, true))};
  const std::string path = folder_.file("other.json");
  write_reuse_file(path, other);
  try {
    edit.load(path);
    FAIL();
  } catch (const CalibrationError& error) {
    EXPECT_THAT(error.what(), HasSubstr("other.json: model.digest"));
  }
  EXPECT_THROW(edit.load(folder_.file("none.json")), CalibrationError);
  EXPECT_EQ(edit.choice(), before);
  EXPECT_FALSE(edit.can_undo());
}

TEST_F(CalibrationOfTraces, SourcesSayWhatATraceLacks) {
  open(small_trace(1), "one.h5");
  auto options = small_trace(2);
  options.level = RecordLevel::trajectory;
  open(options, "tokens.h5");
  options = small_trace(2);
  options.policy = "flashblock";
  open(options, "policy.h5");
  options.shadow = true;
  open(options, "shadow.h5");
  options = small_trace(2);
  options.digest = std::string(64, 'c');
  open(options, "other.h5");
  options.digest = "";
  open(options, "nameless.h5");
  const auto sources = calibration_sources(model_);
  ASSERT_EQ(sources.size(), 6U);
  EXPECT_THAT(sources[0].missing, IsEmpty());
  EXPECT_THAT(sources[1].missing, HasSubstr("--record summary"));
  EXPECT_THAT(sources[2].missing, HasSubstr("--policy exact"));
  EXPECT_THAT(sources[3].missing, IsEmpty());
  EXPECT_THAT(sources[4].missing, HasSubstr("checkpoint digest"));
  EXPECT_THAT(sources[5].missing, HasSubstr("which checkpoint"));
  CalibrationEdit edit = this->edit();
  measure(edit);
  EXPECT_EQ(edit.sums()->traces.size(), 2U);
  // The active trace is the measure of the others.
  model_.select({4, 0, 0, 0, 0, {}});
  EXPECT_THAT(calibration_sources(model_)[0].missing, HasSubstr("checkpoint digest"));
  EXPECT_THAT(calibration_sources(model_)[4].missing, IsEmpty());
}

TEST_F(CalibrationOfTraces, WithoutSumsThereIsNothingToSave) {
  open(small_trace(1), "one.h5");
  CalibrationEdit edit = this->edit();
  EXPECT_EQ(edit.result(), nullptr);
  EXPECT_THROW(edit.save(folder_.file("early.json"), false), UsageError);
  edit.toggle_pin(0, 0);
  edit.step_gamma(1);
  EXPECT_FALSE(edit.can_undo());
  measure(edit);
  edit.change({0.5, 9, ReuseGranularity::head, {}});  // these sums don't know that tau
  EXPECT_EQ(edit.result(), nullptr);
  EXPECT_THAT(edit.problem(), IsEmpty());
}

}  // namespace
}  // namespace blockscope
