// The panels. Each draws one window from the shared selection and changes nothing but it; what they
// show comes from ViewModel, in the state it is in (loading, ready, failed).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "viewer/calibration_edit.h"
#include "viewer/colormap.h"
#include "viewer/metric_choice.h"
#include "viewer/textures.h"
#include "viewer/view_model.h"

namespace blockscope {

/// How things are shown; kept from run to run.
struct Appearance {
  bool dark = true;
  std::string map = "viridis";
  /// Of heatmaps: locked to [low, high] or fitted to each.
  bool lock_range = false;
  float low = 0.0F, high = 1.0F;
};

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
  } heatmap;
  struct Curves {
    std::size_t metric = 0;
    bool bars = false;  ///< per head beside each other instead of over steps
    ViewModel::Scope scope = ViewModel::Scope::everything;
    /// One per head, made once for a result, metric and layer: averaging is too slow for each
    /// frame.
    std::vector<Curve> drawn;
    std::shared_ptr<const MetricPayload> drawn_of;
    std::size_t drawn_metric = 0, drawn_layer = 0;
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
    double saving = 10.0, error = 10.0;  ///< targets in percent
    int last_frame = -10;                ///< in which the panel was drawn
    /// For which overviews (the active one last) `available` and `model` were found.
    std::vector<std::shared_ptr<const Overview>> seen;
    std::vector<CalibrationSource> available;
    std::optional<ReuseModel> model;
    std::shared_ptr<const CalibrationSums> grid_of;
    std::shared_ptr<const MatrixPayload> grid;
  } calibration;
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
  bool visible = true;
};
void draw_trajectory_panel(PanelContext& context);
void draw_heads_panel(PanelContext& context);
void draw_heatmap_panel(PanelContext& context);
void draw_curves_panel(PanelContext& context);
void draw_run_panel(PanelContext& context);
void draw_calibration_panel(PanelContext& context);

/// Colours of A_out and A_in everywhere: blue and orange of Okabe and Ito, safe for colour-blind
/// eyes, as in FlashBlock's Fig. 5.
inline constexpr Colour kExternalColour = 0xFFB27200;  // #0072B2
inline constexpr Colour kInternalColour = 0xFF009FE6;  // #E69F00

/// Draws progress or the reason when `data` is not ready; true when it is.
template <typename T>
bool ready_or_explain(const Data<T>& data);
void explain(DataState state, double progress, const std::string& message);

template <typename T>
bool ready_or_explain(const Data<T>& data) {
  if (data.state == DataState::ready && data.value) return true;
  explain(data.state, data.progress, data.message);
  return false;
}

/// A sentence instead of the panel: what is missing and how to get it.
void explain_missing(const std::string& text);

}  // namespace blockscope
