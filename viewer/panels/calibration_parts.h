// What the Calibration panel remembers, its parts, and what the window and the Heads panel take
// from it.
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
};

/// The calibration of the active trace's model; nullptr when the trace names no checkpoint.
CalibrationEdit* active_calibration(const ViewModel& model, CalibrationState& state);

/// True while the panel is on the screen (drawn in this frame or the one before).
bool calibration_in_use(const CalibrationState& state);

/// How every recorded (layer, head) of the active trace is marked in the Heads panel; empty while
/// there is nothing to mark.
std::vector<CellMark> reuse_marks_of_trace(const ViewModel& model, CalibrationState& state);

/// What is saved and what it costs in words, warnings, and how the loaded file differs.
void draw_calibration_result(const CalibrationEdit& edit, bool dark);
/// Heads of the model by similarity; a click pins.
void draw_calibration_grid(PanelContext& context, CalibrationEdit& edit, float width, float height);
/// Saving against error for every tau; a click takes the nearest point's gamma.
void draw_calibration_curve(PanelContext& context, CalibrationEdit& edit, float width,
                            float height);

}  // namespace blockscope
