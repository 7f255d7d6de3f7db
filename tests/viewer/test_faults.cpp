// Files that change under an open trace, reads that are too large, runs with nothing to show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "decode_record/base/error.h"

#include "decode_record/write/trace_writer.h"
#include "tests/analysis/trace_maker.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/model/comparison.h"
#include "viewer/model/heatmaps.h"
#include "viewer/model/trajectory.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::wait_for;
using testing::wait_until;

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// In place: the same inode.
void overwrite(const std::string& path, const std::string& bytes) {
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream << bytes;
}

class Faults : public ::testing::Test {
 protected:
  void open(const testing::TraceMakerOptions& options = {}) {
    path_ = folder_.file("run.h5");
    testing::make_trace(path_, options);
    model_.open(path_);
    ASSERT_TRUE(wait_until(model_, [&] { return model_.overview() != nullptr; }));
  }
  /// Waits for the fault; how long it took.
  std::chrono::duration<double> detect(FileFault fault) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(wait_until(model_, [&] { return model_.documents()[0].fault == fault; }));
    return std::chrono::steady_clock::now() - begin;
  }
  fixture::TempDir folder_;
  std::string path_;
  ViewModel model_;
};

TEST_F(Faults, ARemovedFileIsToldWithinASecondAndWhatIsLoadedStays) {
  open();
  fs::remove(path_);
  EXPECT_LT(detect(FileFault::removed).count(), 1.0);
  ASSERT_EQ(model_.problems().size(), 1U);
  EXPECT_THAT(model_.problems().front(), HasSubstr("was removed"));
  EXPECT_NE(model_.step(), nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  model_.update();
  EXPECT_EQ(model_.problems().size(), 1U) << "told again and again";
}

TEST_F(Faults, AReplacedFileIsShownAfterReopen) {
  open();
  const std::size_t blocks = model_.overview()->blocks.size();
  testing::TraceMakerOptions larger;
  larger.blocks = 3;
  testing::make_trace(folder_.file("new.h5"), larger);
  fs::rename(folder_.file("new.h5"), path_);
  EXPECT_LT(detect(FileFault::replaced).count(), 1.0);
  EXPECT_EQ(model_.overview()->blocks.size(), blocks);
  model_.reopen(0);
  ASSERT_TRUE(wait_until(model_, [&] { return model_.overview()->blocks.size() != blocks; }));
  EXPECT_EQ(model_.documents()[0].fault, FileFault::none);
  const auto data = wait_for<Trajectory>(model_, [&] { return request_trajectory(model_); });
  EXPECT_EQ(data.state, DataState::ready) << data.message;
}

TEST_F(Faults, ATruncatedFileIsToldAndCantBeReopened) {
  open();
  fs::resize_file(path_, fs::file_size(path_) / 2);
  EXPECT_LT(detect(FileFault::truncated).count(), 1.0);
  model_.pop_problem();
  model_.reopen(0);
  ASSERT_TRUE(wait_until(model_, [&] { return !model_.problems().empty(); }));
  EXPECT_NE(model_.overview(), nullptr);
  EXPECT_NE(model_.step(), nullptr);
}

TEST_F(Faults, AFileOverwrittenInPlaceIsToldWhateverItsSizeAndTimes) {
  open();
  testing::TraceMakerOptions other;
  other.seed = 2;
  testing::make_trace(folder_.file("other.h5"), other);
  ASSERT_EQ(fs::file_size(folder_.file("other.h5")), fs::file_size(path_));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // it is being watched
  const auto written = fs::last_write_time(path_);
  overwrite(path_, bytes_of(folder_.file("other.h5")));
  fs::last_write_time(path_, written);  // as `cp -p` and rsync --inplace --times do
  EXPECT_LT(detect(FileFault::overwritten).count(), 1.0);
  ASSERT_EQ(model_.problems().size(), 1U);
  EXPECT_THAT(model_.problems().front(), HasSubstr("was overwritten"));
  model_.reopen(0);
  ASSERT_TRUE(wait_until(model_, [&] { return model_.documents()[0].fault == FileFault::none; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  model_.update();
  EXPECT_EQ(model_.documents()[0].fault, FileFault::none);
}

TEST_F(Faults, OneChangedByteIsToldAndARenameIsNot) {
  open();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  fs::create_hard_link(path_, folder_.file("link.h5"));  // its ctime moves
  fs::permissions(path_, fs::perms::owner_all);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  model_.update();
  EXPECT_EQ(model_.documents()[0].fault, FileFault::none);
  std::string bytes = bytes_of(path_);
  bytes[bytes.size() / 3] ^= 1;
  overwrite(path_, bytes);
  EXPECT_LT(detect(FileFault::overwritten).count(), 1.0);
}

TEST_F(Faults, DamageThatAJobMeetsIsAProblemOnce) {
  open();
  for (int i = 0; i < 2; ++i) {
    for (const char* key : {"0/0/any", "0/0/other"}) {
      const auto ask = [&] {
        return model_.data().request<MetricPayload>(
            "damage", fmt::format("{}/{}", key, i),
            [](OpenTraces&, JobControl&) -> std::shared_ptr<const Payload> {
              throw std::out_of_range("vector::_M_range_check");
            });
      };
      EXPECT_EQ(wait_for<MetricPayload>(model_, ask).state, DataState::failed);
    }
  }
  ASSERT_EQ(model_.problems().size(), 1U);
  EXPECT_THAT(model_.problems().front(), HasSubstr(path_));
  EXPECT_THAT(model_.problems().front(), HasSubstr("damaged"));
  model_.pop_problem();
  const auto missing = [&] {
    return model_.data().request<MetricPayload>(
        "missing", "0/0/missing", [](OpenTraces&, JobControl&) -> std::shared_ptr<const Payload> {
          throw TraceError("needs --record full");
        });
  };
  EXPECT_EQ(wait_for<MetricPayload>(model_, missing).state, DataState::failed);
  EXPECT_TRUE(model_.problems().empty()) << "what a level doesn't have is no damage";
}

/// A trace being written, row by row.
class Live : public ::testing::Test {
 protected:
  Live() : writer_(folder_.file("live.h5"), meta_) {
    writer_.begin_sequence(fixture::sequence_start(0, 2));
  }
  void write(std::int64_t row) {
    writer_.append_row(fixture::denoise_row(meta_, 0, row, row / 2, row % 2));
    writer_.commit();
  }
  void open() {
    model_.open(folder_.file("live.h5"));
    ASSERT_TRUE(wait_until(model_, [&] { return model_.overview() != nullptr; }));
  }
  fixture::TempDir folder_;
  TraceMeta meta_ = fixture::small_meta();
  TraceWriter writer_;
  ViewModel model_;
};

TEST_F(Live, FollowsToTheNewestStep) {
  write(0);
  open();
  EXPECT_TRUE(model_.documents()[0].live);
  model_.set_follow(true);
  write(1);
  ASSERT_TRUE(wait_until(model_, [&] { return model_.step() && model_.step()->row == 1; }));
  model_.set_follow(false);
  write(2);
  ASSERT_TRUE(wait_until(model_, [&] { return model_.overview()->info.num_rows == 3; }));
  EXPECT_EQ(model_.step()->row, 1);
}

TEST_F(Live, TheRenameAtTheEndIsNoFault) {
  write(0);
  open();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  writer_.end_sequence(0, {FinishReason::length, "", 1.0F});
  writer_.finish();
  ASSERT_TRUE(wait_until(model_, [&] { return !model_.documents()[0].live; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  model_.update();
  EXPECT_EQ(model_.documents()[0].fault, FileFault::none);
  EXPECT_TRUE(model_.problems().empty());
}

TEST_F(Live, ATraceWithoutAStepHasNothingToShow) {
  writer_.commit();
  open();
  EXPECT_EQ(model_.step(), nullptr);
  EXPECT_EQ(model_.step_to_compare(0), nullptr);
  model_.move_step(1);
  model_.set_follow(true);
  EXPECT_EQ(request_sets(model_).state, DataState::loading);
  EXPECT_TRUE(model_.problems().empty());
}

TEST_F(Faults, BlocksOfOneTokenWork) {
  testing::TraceMakerOptions one;
  one.block_length = 1;
  open(one);
  const auto matrix = wait_for<MatrixPayload>(model_, [&] {
    return request_token_matrix(model_, "t", Field::attention_external, model_.next_step(), true);
  });
  ASSERT_EQ(matrix.state, DataState::ready) << matrix.message;
  EXPECT_EQ(matrix.value->matrix.values.size(), 1U);
  const auto sets = wait_for<SetsPayload>(model_, [&] { return request_sets(model_); });
  EXPECT_EQ(sets.state, DataState::ready) << sets.message;
  EXPECT_EQ(sets.value->token_texts.size(), static_cast<std::size_t>(sets.value->context_length));
}

TEST_F(Faults, AnyTwoStepsOfABlockCanBeCompared) {
  open();
  ASSERT_GE(model_.block()->steps.size(), 3U);
  model_.move_step(-1'000'000);
  const auto matrix = [&](std::int32_t to) {
    const auto data = wait_for<MatrixPayload>(model_, [&] {
      return request_token_matrix(model_, "t", Field::attention_external,
                                  model_.step_to_compare(to), true);
    });
    return data.value ? data.value->matrix.values : std::vector<float>();
  };
  EXPECT_EQ(model_.step_to_compare(0), model_.next_step());
  EXPECT_EQ(model_.step_to_compare(99), nullptr);
  const std::vector<float> self = matrix(1);
  const auto block = static_cast<std::size_t>(model_.overview()->info.meta.block_length);
  for (std::size_t i = 0; i < block; ++i) EXPECT_NEAR(self.at(i * block + i), 1.0F, 1e-3F);
  EXPECT_NE(matrix(2), matrix(3));
}

TEST(TooLarge, IsHeldUntilSomebodyAgrees) {
  fixture::TempDir folder;
  testing::make_trace(folder.file("run.h5"), {});
  ViewModel model(1);  // nothing fits into one byte
  model.open(folder.file("run.h5"));
  ASSERT_TRUE(wait_until(model, [&] { return model.overview() != nullptr; }));
  const auto ask = [&] {
    return model.metric("heads", "similarity", ViewModel::Scope::everything);
  };
  const auto held = wait_for<MetricPayload>(model, ask);
  ASSERT_EQ(held.state, DataState::held);
  EXPECT_THAT(held.message, HasSubstr("This reads"));
  held.service->load(held.key);
  const auto loaded = wait_for<MetricPayload>(model, ask);
  EXPECT_EQ(loaded.state, DataState::ready) << loaded.message;
}

TEST(Cancelling, HoldsTheJobUntilItIsWantedAgain) {
  struct Kept : Payload {
    std::size_t bytes() const override { return 8; }
  };
  DataService data(1000);
  std::atomic<bool> endless = true;
  const DataService::Job job = [&](OpenTraces&, JobControl& control) {
    while (endless) {
      control.report(1, 2);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::make_shared<Kept>();
  };
  const auto wait = [&](const auto& done) {
    Data<Kept> answer;
    for (int i = 0; i < 5000; ++i) {
      answer = data.request<Kept>("slot", "key", job);
      if (done(answer)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return answer;
  };
  wait([](const auto& answer) { return answer.progress > 0.0; });
  data.cancel("key");
  const auto held = wait([](const auto& answer) { return answer.state != DataState::loading; });
  EXPECT_EQ(held.state, DataState::held);
  endless = false;
  data.load("key");
  const auto ready = wait([](const auto& answer) { return answer.state != DataState::loading; });
  EXPECT_EQ(ready.state, DataState::ready);
}

}  // namespace
}  // namespace blockscope
