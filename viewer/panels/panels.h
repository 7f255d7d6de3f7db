// The panels. Each draws one window from the shared selection and changes nothing but it; what they
// show comes from ViewModel, in the state it is in (loading, ready, failed).
#pragma once

#include <optional>
#include <string>

#include "viewer/model/colormap.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/settings.h"
#include "viewer/panels/panel_state.h"
#include "viewer/panels/textures.h"

namespace blockscope {

struct PanelContext {
  ViewModel& model;
  Appearance& appearance;
  PanelState& state;
  Textures& textures;
  const Colormap& map;
  float scale = 1.0F;
};

struct Panel {
  const char* name;  ///< the window's title and what --panel takes (lower case)
  void (*draw)(PanelContext&);
  /// The numbers shown; nullopt while there are none. nullptr: the panel has none.
  std::optional<CsvTable> (*table)(PanelContext&) = nullptr;
  /// Whether the active trace is of the kind that the panel is about; nullptr: every trace is.
  /// Others don't show it, unless it was asked for by name.
  bool (*fits)(const ViewModel&) = nullptr;
  bool visible = true;
  float left = 0.0F, top = 0.0F, width = 0.0F, height = 0.0F;  ///< in the last frame
};
/// The trace was captured with a draft.
bool fits_draft_panel(const ViewModel& model);
/// The name in lower case.
std::string panel_key(const Panel& panel);
void draw_trajectory_panel(PanelContext& context);
void draw_heads_panel(PanelContext& context);
void draw_heatmap_panel(PanelContext& context);
void draw_curves_panel(PanelContext& context);
void draw_selection_panel(PanelContext& context);
void draw_draft_panel(PanelContext& context);
void draw_compare_panel(PanelContext& context);
void draw_run_panel(PanelContext& context);
void draw_calibration_panel(PanelContext& context);

std::optional<CsvTable> trajectory_panel_table(PanelContext& context);
std::optional<CsvTable> heads_panel_table(PanelContext& context);
std::optional<CsvTable> heatmap_panel_table(PanelContext& context);
std::optional<CsvTable> curves_panel_table(PanelContext& context);
std::optional<CsvTable> selection_panel_table(PanelContext& context);
std::optional<CsvTable> draft_panel_table(PanelContext& context);
std::optional<CsvTable> compare_panel_table(PanelContext& context);
std::optional<CsvTable> calibration_panel_table(PanelContext& context);
std::optional<CsvTable> run_panel_table(PanelContext& context);

/// Colours of A_out and A_in everywhere: blue and orange of Okabe and Ito, safe for colour-blind
/// eyes, as in FlashBlock's Fig. 5.
inline constexpr Colour kExternalColour = 0xFFB27200;  // #0072B2
inline constexpr Colour kInternalColour = 0xFF009FE6;  // #E69F00

/// Draws progress or the reason when `data` is not ready; true when it is.
template <typename T>
bool ready_or_explain(const Data<T>& data);
struct Explanation {
  DataState state;
  double progress;
  std::string message, key;
  DataService* service;
};
void explain(const Explanation& what);

template <typename T>
bool ready_or_explain(const Data<T>& data) {
  if (data.state == DataState::ready && data.value) return true;
  explain({data.state, data.progress, data.message, data.key, data.service});
  return false;
}

/// A sentence instead of the panel: what is missing and how to get it.
void explain_missing(const std::string& text);

}  // namespace blockscope
