// The panels. Each draws one window from the shared selection and changes nothing but it; what they
// show comes from ViewModel, in the state it is in (loading, ready, failed).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "viewer/calibration_edit.h"
#include "viewer/colormap.h"
#include "viewer/comparison.h"
#include "viewer/csv_table.h"
#include "viewer/panel_metrics.h"
#include "viewer/panels/selection_state.h"
#include "viewer/settings.h"
#include "viewer/textures.h"
#include "viewer/view_model.h"

namespace blockscope {

/// State of single panels that no other panel needs.
struct PanelState {
  struct Trajectory {
    bool playing = false;
    double next_time = 0.0;
    float steps_per_second = 4.0F;
    bool follow = true;  ///< scroll to the selected step
  } trajectory;
  struct Heads {
    std::size_t metric = 0;
    ViewModel::Scope scope = ViewModel::Scope::everything;
    /// The picture of a result, made once.
    std::shared_ptr<const MetricPayload> grid_of;
    std::size_t grid_metric = 0;
    std::shared_ptr<const MatrixPayload> grid;
  } heads;
  struct Heatmap {
    int mode = 0;  ///< 0: token x token, 1: step x step, 2: top-k positions
    bool all_heads = true;
    std::int32_t to_step = 0;  ///< that tokens are compared with; 0: the next one
  } heatmap;
  struct Curves {
    enum class Mode { over_steps, per_head, recall_sizes, union_sizes };
    Mode mode = Mode::over_steps;
    std::size_t metric = 0;
    ViewModel::Scope scope = ViewModel::Scope::everything;
    bool together = true;        ///< all heads (recall) or layers (unions) instead of the selected
    std::vector<HeadSlot> kept;  ///< heads whose curves stay while others are selected
    // What is drawn of a result, made once for it.
    std::shared_ptr<const MetricPayload> curves_of, bars_of, recall_of, unions_of;
    std::size_t curves_metric = 0;
    HeadCurves curves;
    SimilarityMatrix external, internal;
    std::optional<HeadSlot> recall_head;
    std::vector<SizeCurve> recall;
    std::optional<std::size_t> unions_layer;
    UnionDistribution unions;
  } curves;
  struct Calibration {
    std::map<std::string, CalibrationEdit> edits;  ///< by checkpoint digest
    std::set<std::size_t> left_out;                ///< documents that a person took out
    std::vector<CalibrationSource> sources;        ///< as they were when the pass was asked for
    bool from_summary = false;
    bool stopped = false;         ///< the pass was cancelled
    bool large_accepted = false;  ///< reading a lot was agreed to
    bool against_flops = false;   ///< the curve's axis
    bool show_in_heads = true;
    std::string path;                    ///< where to save
    std::string saved_path;              ///< written by this window: replaced without asking
    bool save_wanted = false;            ///< by a key
    bool load_wanted = false;            ///< the App asks first where something would be lost
    double saving = 10.0, error = 20.0;  ///< targets in percent
    int last_frame = -10;                ///< in which the panel was drawn
    /// For which overviews (the active one last) `available` and `model` were found.
    std::vector<std::shared_ptr<const Overview>> seen;
    std::vector<CalibrationSource> available;
    std::optional<ReuseModel> model;
    std::shared_ptr<const CalibrationSums> grid_of;
    std::shared_ptr<const MatrixPayload> grid;
  } calibration;
  struct Compare {
    int mode = 0;  ///< 0: heads, 1: steps, 2: tokens, 3: query statistics
    std::size_t metric = 0;
    CompareScope scope = CompareScope::matched;
  } compare;
  SelectionState selection;
};

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
  bool visible = true;
  float left = 0.0F, top = 0.0F, width = 0.0F, height = 0.0F;  ///< in the last frame
};
/// The name in lower case.
std::string panel_key(const Panel& panel);
void draw_trajectory_panel(PanelContext& context);
void draw_heads_panel(PanelContext& context);
void draw_heatmap_panel(PanelContext& context);
void draw_curves_panel(PanelContext& context);
void draw_selection_panel(PanelContext& context);
void draw_compare_panel(PanelContext& context);
void draw_run_panel(PanelContext& context);
void draw_calibration_panel(PanelContext& context);

std::optional<CsvTable> trajectory_panel_table(PanelContext& context);
std::optional<CsvTable> heads_panel_table(PanelContext& context);
std::optional<CsvTable> heatmap_panel_table(PanelContext& context);
std::optional<CsvTable> curves_panel_table(PanelContext& context);
std::optional<CsvTable> selection_panel_table(PanelContext& context);
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
