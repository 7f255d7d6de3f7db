// A trace that is being written by another process while it is looked at.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/viewer/app_fixture.h"

namespace blockscope::testing {
namespace {

/// Writes a trace of one sequence of 50 blocks of two steps, row by row on request.
class SteeredWriter {
 public:
  explicit SteeredWriter(const std::string& path)
      : pipe_(::popen((std::string(TRACE_TOOL) + " steered " + path).c_str(), "w")) {}
  SteeredWriter(const SteeredWriter&) = delete;
  SteeredWriter& operator=(const SteeredWriter&) = delete;
  ~SteeredWriter() { finish(); }

  void write_rows(int count) {
    for (int i = 0; i < count; ++i) std::fputs("\n", pipe_);
    std::fflush(pipe_);
  }
  void finish() {
    if (pipe_ != nullptr) ::pclose(pipe_);
    pipe_ = nullptr;
  }

 private:
  std::FILE* pipe_;
};

class LiveTest : public AppTest {
 protected:
  /// A window on a trace that has `rows` rows so far.
  void start_with(int rows) {
    writer_.write_rows(rows);
    const std::string partial = path_ + ".partial";
    for (int i = 0; i < 1000 && !std::filesystem::exists(partial); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    start({path_});
    ASSERT_TRUE(frames_until([&] { return rows_shown() == rows; }));
  }
  std::int64_t rows_shown() {
    return model().overview() == nullptr ? -1 : model().overview()->info.num_rows;
  }

  std::string path_ = file("live.h5");
  SteeredWriter writer_{path_};
};

TEST_F(LiveTest, RowsAppearAndTheSelectionStays) {
  start_with(3);
  EXPECT_TRUE(model().documents().front().live);
  drive([](ImGuiTestContext* ctx) { ctx->KeyPress(ImGuiKey_RightArrow); });
  const std::int64_t selected = model().step()->row;
  writer_.write_rows(5);
  ASSERT_TRUE(frames_until([&] { return rows_shown() == 8; }));
  EXPECT_EQ(model().step()->row, selected);
  EXPECT_EQ(model().overview()->blocks.size(), 4U);
  EXPECT_TRUE(model().documents().front().live);
  EXPECT_TRUE(settle());
  EXPECT_THAT(model().problems(), ::testing::IsEmpty());
}

TEST_F(LiveTest, TheEndOfTheRunIsNoticed) {
  start_with(4);
  writer_.finish();
  ASSERT_TRUE(frames_until([&] { return !model().documents().front().live; }));
  EXPECT_TRUE(model().overview()->info.complete);
  EXPECT_EQ(model().overview()->info.path, path_);
  EXPECT_EQ(rows_shown(), 4);
  EXPECT_TRUE(settle());
  EXPECT_TRUE(model().problems().empty());
}

TEST_F(LiveTest, NewsWakeAWindowThatWaits) {
  start_with(2);
  std::jthread rescue([this](const std::stop_token& stop) {
    for (int i = 0; i < 150 && !stop.stop_requested(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    app().screen().wake();
  });
  // Nothing more to do: the next frame is due in an hour.
  for (int i = 0; i < 20; ++i) app().frame(0.0);
  const auto begin = std::chrono::steady_clock::now();
  writer_.write_rows(2);
  while (rows_shown() < 4 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(14)) {
    app().wait_and_draw();
  }
  EXPECT_EQ(rows_shown(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(12));
  rescue.request_stop();
}

}  // namespace
}  // namespace blockscope::testing
