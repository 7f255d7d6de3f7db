// The Lens panel: what the model would predict if it ended earlier, as layer x step. The viewer has
// no checkpoint, so `blockscope lens --json` computes the values.
#include <fmt/format.h>
#include <imgui.h>

#include "analysis/pass/step_pass.h"
#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/lens_state.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, kLensModes.size()> kModeLabels = {
    "probability of the final token", "log2 of its rank", "share with rank 1"};

void draw_lens_panel(PanelContext& context) {
  LensState& state = context.state.of<LensState>();
  if (!state.data) {
    return explain_missing(
        "The logit lens needs the checkpoint. Run `blockscope lens MODEL RUN.h5 --json lens.json` "
        "on a trace of level 'full', then `blockscope view RUN.h5 --lens lens.json`.");
  }
  const LensData& lens = *state.data;
  ViewModel& model = context.model;
  if (model.overview() != nullptr) {
    const std::string digest = shape_of(model.overview()->info.meta).model_digest;
    if (!digest.empty() && !lens.model_digest.empty() && digest != lens.model_digest) {
      return explain_missing(fmt::format(
          "{} is from another checkpoint (digest {:.12}) than this trace (digest {:.12}).",
          lens.path, lens.model_digest, digest));
    }
  }
  int mode = static_cast<int>(state.mode);
  ImGui::SetNextItemWidth(260.0F * context.scale);
  ImGui::Combo("##mode", &mode, kModeLabels.data(), static_cast<int>(kModeLabels.size()));
  state.mode = static_cast<std::size_t>(mode);
  const LensData::Values& shown = lens.values[state.mode];
  const ImVec2 space = ImGui::GetContentRegionAvail();
  HeatmapPlot plot;
  plot.id = "lens";
  plot.title = fmt::format("{}###lens", kModeLabels[state.mode]);
  plot.x_label = "step in block";
  plot.y_label = "layer that would come next";
  plot.x_numbers = &lens.steps;
  plot.y_numbers = &lens.layers;
  plot.unit = shown.unit;
  plot.width = space.x;
  plot.height = space.y;
  if (model.step() != nullptr) plot.mark_x = static_cast<double>(model.step()->step - 1);
  const auto hit = draw_heatmap(context, plot, shown.matrix);
  if (!hit || !hit->clicked || model.overview() == nullptr) return;
  const std::vector<std::int64_t>& layers = model.overview()->info.meta.layers;
  Selection selection = model.selection();
  const auto layer = std::ranges::find(layers, lens.layers[hit->row]);
  if (layer != layers.end()) selection.layer = static_cast<std::size_t>(layer - layers.begin());
  const auto& steps = model.block()->steps;
  const auto step = std::ranges::find(steps, lens.steps[hit->column], &StepRef::step);
  if (step != steps.end()) selection.step = static_cast<std::size_t>(step - steps.begin());
  model.select(selection);
}

std::optional<CsvTable> lens_panel_table(PanelContext& context) {
  const LensState& state = context.state.of<LensState>();
  if (!state.data) return std::nullopt;
  return lens_table(*state.data, state.mode);
}

void show_lens(PanelStates& states, std::size_t mode) { states.of<LensState>().mode = mode; }

}  // namespace

Panel lens_panel() {
  return {.name = "Lens",
          .draw = draw_lens_panel,
          .table = lens_panel_table,
          .fits = [](const ViewModel&) { return false; },  // App shows it if --lens was given
          .show = {.words = {kLensModes.begin(), kLensModes.end()}, .take_word = show_lens}};
}

}  // namespace blockscope
