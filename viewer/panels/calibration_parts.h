// The parts of the Calibration panel, and what the Heads panel and the keys take from it.
#pragma once

#include <vector>

#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/panels.h"

namespace blockscope {

/// The calibration of the active trace's model; nullptr when the trace names no checkpoint.
CalibrationEdit* active_calibration(const ViewModel& model, PanelState::Calibration& state);

/// True while the panel is on the screen (drawn in this frame or the one before).
bool calibration_in_use(const PanelState::Calibration& state);

/// Undo, redo and save by Ctrl+Z, Ctrl+Shift+Z, Ctrl+Y and Ctrl+S, while the panel is in use.
void calibration_keys(const ViewModel& model, PanelState::Calibration& state);

/// How every recorded (layer, head) of the active trace is marked in the Heads panel; empty while
/// there is nothing to mark.
std::vector<CellMark> reuse_marks_of_trace(const ViewModel& model, PanelState::Calibration& state);

/// What is saved and what it costs in words, warnings, and how the loaded file differs.
void draw_calibration_result(const CalibrationEdit& edit, bool dark);
/// Heads of the model by similarity; a click pins.
void draw_calibration_grid(PanelContext& context, CalibrationEdit& edit, float width, float height);
/// Saving against error for every tau; a click takes the nearest point's gamma.
void draw_calibration_curve(PanelContext& context, CalibrationEdit& edit, float width,
                            float height);

}  // namespace blockscope
