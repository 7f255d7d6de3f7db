// The Selection panel as a person uses it: sets and k chosen, jumps from mark to mark, the strip.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/viewer/app_fixture.h"
#include "tests/viewer/sparse_trace.h"
#include "viewer/panels/selection_parts.h"

namespace blockscope::testing {
namespace {

using ::testing::HasSubstr;

class SelectionPanel : public AppTest {
 protected:
  App& start_sparse(int step) {
    AppOptions options;
    options.traces = {sparse_trace(file("sparse.h5"))};
    options.panels = {"selection"};
    options.select = fmt::format("step={}", step);
    return start(options);
  }
  SelectionState& state() { return app().state().of<SelectionState>(); }
  /// Where the text begins on the screen, and how far it is scrolled.
  static ImGuiWindow* text(ImGuiTestContext* ctx) { return ctx->WindowInfo("prefix").Window; }
};

TEST_F(SelectionPanel, JumpsFromMarkToMarkAndRoundTheEnds) {
  start_sparse(2);
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Selection");
    IM_CHECK_EQ(text(ctx)->Scroll.y, 0.0F);
    for (const std::int32_t position : {10, 77, 1500, 2900, 10}) {
      ctx->ItemClick("##behind");
      IM_CHECK_EQ(state().at.value_or(-1), position);
    }
    ctx->ItemClick("##before");
    IM_CHECK_EQ(state().at.value_or(-1), 2900);
    ctx->Yield(2);
    IM_CHECK_GT(text(ctx)->Scroll.y, 100.0F);
    ctx->ComboClick("##jump/missed");
    ctx->ItemClick("##before");
    IM_CHECK_EQ(state().at.value_or(-1), 1500);
    ctx->ItemClick("##before");  // the only one
    IM_CHECK_EQ(state().at.value_or(-1), 1500);
    ctx->ComboClick("##jump/extra");
    ctx->ItemClick("##behind");
    IM_CHECK_EQ(state().at.value_or(-1), 77);
  });
}

TEST_F(SelectionPanel, AClickInTheStripScrollsThere) {
  start_sparse(2);
  drive([](ImGuiTestContext* ctx) {
    ctx->SetRef("Selection");
    const ImRect strip = ctx->ItemInfo("strip").RectFull;
    ctx->MouseMoveToPos({strip.Max.x - 3.0F, strip.Min.y + 5.0F});
    ctx->MouseClick();
    ctx->Yield(3);
    const ImGuiWindow* lines = text(ctx);
    IM_CHECK_GT(lines->ScrollMax.y, 100.0F);
    IM_CHECK_GT(lines->Scroll.y, lines->ScrollMax.y - 60.0F);
    ctx->MouseMoveToPos({strip.Min.x + 80.0F, strip.Min.y + 5.0F});
    ctx->MouseClick();
    ctx->Yield(3);
    IM_CHECK_LT(lines->Scroll.y, 60.0F);
  });
}

TEST_F(SelectionPanel, TheSetsAndTheirSizeAreChosen) {
  start_sparse(2);
  EXPECT_EQ(state().view.sets.misses, 1);
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Selection");
    IM_CHECK(!ctx->ItemExists("##k"));
    ctx->ComboClick("##against/step 1's set, this step's");
    ctx->Yield(2);
    IM_CHECK(state().view.against == KeysAgainst::first);
    IM_CHECK_EQ(state().view.sets.hits, 3);
    ctx->ItemInputValue("##k", 2);
    ctx->Yield(2);
    IM_CHECK_EQ(state().view.sets.compared, 2U);
  });
  const auto table = app().table("selection");
  ASSERT_TRUE(table.has_value());
  EXPECT_THAT(table->text(), HasSubstr("rank in step 1's set"));
  EXPECT_EQ(table->rows(), 2U);
}

TEST_F(SelectionPanel, StepsWithoutSetsAreSaidAndExportNothing) {
  start_sparse(1);
  EXPECT_EQ(state().view.sets.hits, 3);
  EXPECT_FALSE(state().view.compares);
  drive([this](ImGuiTestContext* ctx) {
    ctx->KeyPress(ImGuiKey_RightArrow, 3);
    IM_CHECK_EQ(model().step()->step, 4);
    ctx->Yield(3);
    ctx->SetRef("Selection");
    IM_CHECK(!ctx->ItemExists("##against"));  // a sentence alone
  });
  EXPECT_TRUE(settle());
  EXPECT_FALSE(app().table("selection").has_value());
  EXPECT_TRUE(model().problems().empty());
}

TEST_F(SelectionPanel, EveryTraceWithSetsShowsTheFirstStepsSet) {
  start();
  drive([this](ImGuiTestContext* ctx) {
    ctx->WindowFocus("Selection");
    ctx->Yield(4);
    ctx->KeyPress(ImGuiKey_RightArrow);
    ctx->Yield(4);
    IM_CHECK(state().view.against == KeysAgainst::first);
    IM_CHECK_EQ(state().view.sets.compared, 3U);
    const ImGuiTestItemInfo tokens = ctx->ItemInfo("//Selection/**/tokens");
    IM_CHECK(!shown("##Tooltip_00"));
    ctx->MouseMoveToPos({tokens.RectFull.Min.x + 60.0F, tokens.RectFull.Min.y + 6.0F});
    ctx->Yield(2);
    IM_CHECK(shown("##Tooltip_00"));
  });
  EXPECT_TRUE(model().problems().empty());
}

TEST_F(SelectionPanel, ADamagedSetIsAProblem) {
  SmallSetTrace trace(file("bad.h5"), 2, 4, RecordLevel::sets,
                      R"({"version":"test","policy":"mage"})", 3);
  trace.sequence(std::vector<std::int64_t>(kSparseContext, 1));
  trace.add(sparse_step(1, {10, kSparseContext + 1, 77}, {0, 1, 2, 3}, 0.0F));
  trace.end(1.0F);
  AppOptions options;
  options.traces = {trace.finish()};
  options.panels = {"selection"};
  start(options);
  ASSERT_FALSE(model().problems().empty());
  EXPECT_THAT(model().problems().front(), HasSubstr("bad.h5:/attention/selected: row 0"));
}

}  // namespace
}  // namespace blockscope::testing
