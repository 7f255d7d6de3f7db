// The state of the Calibration panel, its parts, and its functions for the window and the Heads
// panel.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "viewer/model/calibration_edit.h"
#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/panels.h"

namespace blockscope {

struct CalibrationState {
  std::map<std::string, CalibrationEdit> edits;  ///< by checkpoint digest
  std::set<std::size_t> left_out;                ///< documents that the user deselected
  std::vector<CalibrationSource> sources;        ///< as they were when the pass was requested
  bool from_summary = false;
  std::optional<std::size_t> range;  ///< of steps, which gamma and grid are of; unset: all
  std::string ranges;                ///< as typed: "2-4,5-8"
  StepRanges ranges_shown;           ///< that text stands for
  bool stopped = false;              ///< the pass was cancelled
  bool large_accepted = false;       ///< the user agreed to a large read
  bool against_flops = false;        ///< the curve's axis is FLOPs, not bytes
  bool show_in_heads = true;
  std::string path;                    ///< where to save
  std::string saved_path;              ///< a file written by this window is replaced without asking
  bool save_wanted = false;            ///< requested by a key
  std::string load_path;               ///< to load, once the App has asked about unsaved changes
  double saving = 10.0, error = 20.0;  ///< targets in percent
  int last_frame = -10;                ///< last frame in which the panel was drawn
  /// The overviews (active one last) that `available` and `model` were computed for.
  std::vector<std::shared_ptr<const Overview>> seen;
  std::vector<CalibrationSource> available;
  std::optional<ReuseModel> model;
  std::shared_ptr<const CalibrationSums> grid_of;
  std::optional<std::size_t> grid_range;
  std::shared_ptr<const MatrixPayload> grid;
};

/// The calibration of the active trace's model; nullptr if the trace names no checkpoint.
CalibrationEdit* active_calibration(const ViewModel& model, CalibrationState& state);

/// True while the panel is on the screen (drawn in this frame or the one before).
bool calibration_in_use(const CalibrationState& state);

/// The mark of every recorded (layer, head) of the active trace in the Heads panel; empty without
/// marks.
std::vector<CellMark> reuse_marks_of_trace(const ViewModel& model, CalibrationState& state);

/// Draws the ranges of steps, the reference and the bound, which calibrate takes as --by-step,
/// --reference and --lse-bound.
void draw_calibration_measure(ViewModel& model, CalibrationState& state, CalibrationEdit& edit,
                              float scale);
/// Draws the savings and errors as text, warnings, and differences from the loaded file.
void draw_calibration_result(const CalibrationEdit& edit, bool dark);
/// Heads of the model by similarity; a click pins.
void draw_calibration_grid(PanelContext& context, CalibrationEdit& edit, float width, float height);
/// Saving against error for every tau; a click takes the nearest point's gamma.
void draw_calibration_curve(PanelContext& context, CalibrationEdit& edit, float width,
                            float height);

}  // namespace blockscope
