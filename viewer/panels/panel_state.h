// What the panels remember from frame to frame, each for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "viewer/model/calibration_edit.h"
#include "viewer/model/comparison.h"
#include "viewer/model/panel_metrics.h"
#include "viewer/model/view_model.h"
#include "viewer/panels/draft_state.h"
#include "viewer/panels/selection_state.h"

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
  DraftState draft;
};

}  // namespace blockscope
