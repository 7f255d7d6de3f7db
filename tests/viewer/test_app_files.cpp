// What a person does with several traces and files: compares, exports, opens.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/viewer/app_fixture.h"

namespace blockscope::testing {
namespace {

using ::testing::StartsWith;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void export_to(ImGuiTestContext* ctx, const char* item, const std::string& path) {
  ctx->WindowFocus("//Heads");
  ctx->SetRef("//Heads");
  ctx->MenuClick(item);
  ctx->Yield(2);
  ctx->ItemInput("//Export panel/##export-path");
  ctx->KeyCharsReplace(path.c_str());
  ctx->ItemClick("//Export panel/Save");
  ctx->Yield(6);
}

TEST_F(AppTest, APanelsNumbersAndItsPictureAreExported) {
  start();
  ASSERT_TRUE(settle());
  drive([this](ImGuiTestContext* ctx) {
    export_to(ctx, "Export/Numbers (CSV) ...", file("heads.csv"));
    IM_CHECK(!shown("Export panel"));
    export_to(ctx, "Export/Picture (PNG) ...", file("heads.png"));
    IM_CHECK(!shown("Export panel"));
  });
  EXPECT_THAT(content(file("heads.csv")), StartsWith("layer,head,similarity of A_out [cosine]\n"));
  EXPECT_THAT(content(file("heads.png")), StartsWith("\x89PNG"));
}

TEST_F(AppTest, AnExportThatFailsSaysSoAndAsksAgain) {
  start();
  ASSERT_TRUE(settle());
  drive([this](ImGuiTestContext* ctx) {
    export_to(ctx, "Export/Numbers (CSV) ...", file("no/such/folder.csv"));
    IM_CHECK(shown("Export panel"));
    ctx->ItemInputValue("//Export panel/##export-path", file("now.csv").c_str());  // and Enter
    ctx->Yield(2);
    IM_CHECK(!shown("Export panel"));
  });
  EXPECT_FALSE(std::filesystem::exists(file("no")));
  EXPECT_TRUE(std::filesystem::exists(file("now.csv")));
}

TEST_F(AppTest, ASecondTraceIsOpenedByItsPathAndCompared) {
  start();
  const std::string copy = file("copy.h5");
  std::filesystem::copy_file(small_trace(), copy);
  EXPECT_FALSE(model().other_trace().has_value());
  drive([&](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiMod_Ctrl | ImGuiKey_O);
    ctx->Yield(2);
    IM_CHECK(shown("Open trace"));
    ctx->ItemInputValue("//Open trace/##open-path", copy.c_str());
    if (shown("Open trace")) ctx->ItemClick("//Open trace/Open");
    for (int i = 0; i < 500 && !model().other_trace(); ++i) ctx->Yield();
    IM_CHECK(model().other_trace().has_value());
    ctx->WindowFocus("Compare");
    ctx->Yield(2);
    IM_CHECK(shown("Compare"));
    ctx->ItemClick("//Compare/Swap");
    IM_CHECK_EQ(model().selection().trace, 1U);
  });
  ASSERT_TRUE(settle());
  EXPECT_TRUE(model().problems().empty());
  const auto table = app().table("compare");
  ASSERT_TRUE(table.has_value());
  EXPECT_THAT(table->text(), StartsWith("layer,head,A: "));
}

TEST_F(AppTest, AReplacedFileIsReopenedFromThePopup) {
  const std::string path = file("run.h5");
  std::filesystem::copy_file(small_trace(), path);
  start({path});
  std::filesystem::copy_file(small_trace(), file("new.h5"));
  std::filesystem::rename(file("new.h5"), path);
  ASSERT_TRUE(frames_until([&] { return !model().problems().empty(); }));
  drive([this](ImGuiTestContext* ctx) {
    IM_CHECK(shown("Problem"));
    ctx->ItemClick("//Problem/Reopen");
    ctx->Yield(2);
  });
  ASSERT_TRUE(frames_until([&] { return model().documents()[0].fault == FileFault::none; }));
}

}  // namespace
}  // namespace blockscope::testing
