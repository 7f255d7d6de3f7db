// The Attention panel as a person uses it: a token of the block becomes the query, heads and modes
// change, the strip scrolls.
#include <gmock/gmock.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "tests/analysis/trace_maker.h"
#include "tests/viewer/app_fixture.h"
#include "viewer/model/attention_text.h"

namespace blockscope::testing {
namespace {

using ::testing::HasSubstr;

class AttentionPanel : public AppTest {
 protected:
  App& start_panel(const std::string& select, const std::string& trace = small_trace()) {
    AppOptions options;
    options.traces = {trace};
    options.panels = {"attention"};
    options.select = select;
    return start(options);
  }
  /// Clicks the last token of the text, which belongs to the block.
  static void click_last_token(ImGuiTestContext* ctx) {
    const ImGuiTestItemInfo tokens = ctx->ItemInfo("//Attention/**/tokens");
    ctx->MouseMoveToPos({tokens.RectFull.Min.x + ImGui::CalcTextSize("000000").x + 4.0F,
                         tokens.RectFull.Max.y - 6.0F});
    ctx->MouseClick();
    ctx->Yield(3);
  }
  double sum_of_weights() {
    const auto table = app().table("attention");
    if (!table) return 0.0;
    double sum = 0.0;
    std::istringstream lines(table->text());
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) sum += std::stod(line.substr(line.rfind(',') + 1));
    return sum;
  }
};

TEST_F(AttentionPanel, AClickMakesATokenTheQuery) {
  start_panel("step=2,layer=0,head=0");
  const auto mean = app().table("attention");
  ASSERT_TRUE(mean.has_value());
  EXPECT_NEAR(sum_of_weights(), 1.0, 1e-5);
  drive([this](ImGuiTestContext* ctx) {
    click_last_token(ctx);
    IM_CHECK(model().selection().token.has_value());
  });
  ASSERT_TRUE(settle());
  const auto one = app().table("attention");
  ASSERT_TRUE(one.has_value());
  EXPECT_NE(one->text(), mean->text());
  EXPECT_NEAR(sum_of_weights(), 1.0, 1e-5);
  drive([](ImGuiTestContext* ctx) {
    ctx->SetRef("Attention");
    ctx->ItemClick("mean of the block");
    ctx->Yield(2);
  });
  EXPECT_EQ(app().table("attention")->text(), mean->text());
  drive([](ImGuiTestContext* ctx) {
    click_last_token(ctx);  // the query again,
    click_last_token(ctx);  // and the mean again
  });
  EXPECT_EQ(app().table("attention")->text(), mean->text());
}

TEST_F(AttentionPanel, TheMapHasEveryQuery) {
  start_panel("step=2");
  drive([](ImGuiTestContext* ctx) {
    ctx->SetRef("Attention");
    ctx->ComboClick("##mode/map");
    ctx->Yield(3);
  });
  const auto table = app().table("attention");
  ASSERT_TRUE(table.has_value());
  const TraceMeta meta = TraceReader(small_trace()).info().meta;
  EXPECT_NEAR(sum_of_weights(), static_cast<double>(meta.block_length), 1e-4);
  EXPECT_THAT(table->text(), HasSubstr("query,position,weight [share]"));
}

TEST_F(AttentionPanel, TheMapOfALayerWithAWindowNamesPositions) {
  TraceMakerOptions options;
  options.layer_kv_heads = {2, 2, 2};
  options.layer_head_dim = {8, 8, 8};
  options.layer_window = {4, 0, 0};
  make_trace(file("window.h5"), options);
  start_panel("block=1,step=2,layer=0", file("window.h5"));
  std::vector<std::string> labels;
  drive([&labels](ImGuiTestContext* ctx) {
    ctx->SetRef("Attention");
    ctx->ComboClick("##mode/map");
    ctx->Yield(3);
    labels = x_labels(ctx, "//Attention/###attention-map");
  });
  const std::int64_t start = model().step()->block_start;
  ASSERT_GT(start, 7);  // else positions could be places among the 7 keys
  ASSERT_GE(labels.size(), 2U);
  for (const std::string& label : labels) {
    EXPECT_GE(std::stoll(label), start - 3);
    EXPECT_LT(std::stoll(label), start + 4);
  }
}

TEST_F(AttentionPanel, ASliderChangesTheHead) {
  start_panel("step=2,head=0");
  const std::string before = app().table("attention")->text();
  drive([this](ImGuiTestContext* ctx) {
    ctx->SetRef("Attention");
    ctx->ItemClick("##head");  // in the middle
    ctx->Yield(3);
    IM_CHECK(model().selection().head > 0);
  });
  ASSERT_TRUE(settle());
  EXPECT_NE(app().table("attention")->text(), before);
}

TEST(AttentionText, ColumnsKeepTheLargestWeight) {
  AttentionText view;
  view.map.num_queries = 2;
  view.map.positions = {0, 1, 4, 5, 2, 3};  // a block in the middle
  view.map.num_external = 4;
  view.map.weights = {0.1F, 0.2F, 0.3F, 0.1F, 0.0F, 0.3F, 0.6F, 0.0F, 0.1F, 0.1F, 0.1F, 0.1F};
  view.by_position = {0, 1, 4, 5, 2, 3};
  const auto three = binned_weights(view, 3);
  EXPECT_THAT(three->matrix.values, ::testing::ElementsAre(0.2F, 0.3F, 0.3F, 0.6F, 0.1F, 0.1F));
  EXPECT_EQ(binned_weights(view, 100)->matrix.columns, 6U);
  EXPECT_THAT(column_positions(view, 3), ::testing::ElementsAre(0, 2, 4));
}

TEST(AttentionText, ColumnsHaveThePositionsOfTheirFirstKeys) {
  AttentionText view;
  view.map.num_queries = 2;
  view.map.positions = {24, 25, 26, 27, 28};  // of a window, and a block of two
  view.map.num_external = 3;
  view.by_position = {0, 1, 2, 3, 4};
  EXPECT_THAT(column_positions(view, 100), ::testing::ElementsAre(24, 25, 26, 27, 28));
  EXPECT_THAT(column_positions(view, 2), ::testing::ElementsAre(24, 27));
}

}  // namespace
}  // namespace blockscope::testing
