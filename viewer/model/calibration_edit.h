// A calibration being made by hand: gamma, tau, granularity and pins over the sums of the open
// traces, with undo and redo, and the file that `blockscope calibrate` would write. No ImGui here.
//
//   CalibrationEdit edit(model);
//   edit.set_sums(sums);                    // from request_calibration(), when it is ready
//   CalibrationChoice choice = edit.choice();
//   choice.gamma = 0.9;
//   edit.preview(choice);                   // while a slider is dragged
//   edit.commit();                          // one undo entry
//   edit.save("reuse.json", false);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/calibration/calibration.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// Everything that a person decides.
struct CalibrationChoice {
  double gamma = 0.9;
  std::int64_t tau = 2;
  ReuseGranularity granularity = ReuseGranularity::head;
  std::map<std::pair<std::int64_t, std::int64_t>, bool> pins;  ///< (layer, head) to reuse or not
  bool operator==(const CalibrationChoice&) const = default;
};

class CalibrationEdit {
 public:
  explicit CalibrationEdit(ReuseModel model);

  const ReuseModel& model() const { return model_; }
  /// What is measured; other sums keep the choice. Null: nothing yet.
  void set_sums(std::shared_ptr<const CalibrationSums> sums);
  const CalibrationSums* sums() const { return sums_.get(); }
  const std::shared_ptr<const CalibrationSums>& shared_sums() const { return sums_; }

  const CalibrationChoice& choice() const { return choice_; }
  /// Takes effect at once, and becomes an undo entry with the next commit().
  void preview(CalibrationChoice choice);
  void commit();
  void change(CalibrationChoice choice);  ///< preview and commit
  bool can_undo() const { return !undo_.empty() || choice_ != committed_; }
  bool can_redo() const { return !redo_.empty(); }
  void undo();
  void redo();

  /// No pin: pins the head to the opposite of what gamma chose; a pin: takes it away. With
  /// granularity kv-group, all heads of its KV head. Does nothing for a head without a similarity.
  void toggle_pin(std::int64_t layer, std::int64_t head);
  std::optional<bool> pin_of(std::int64_t layer, std::int64_t head) const;
  void clear_pins();
  /// To the next larger (1) or smaller (-1) gamma that makes another set of heads.
  void step_gamma(int by);
  /// As --saving and --max-error (of the error where reused) of `calibrate`. Throws UsageError when
  /// it is out of reach.
  void aim_at_saving(double saving);
  void aim_at_error(double error);

  /// What the choice means; nullptr without sums or when problem() says why.
  const Calibration* result() const { return result_ ? &*result_ : nullptr; }
  const std::string& problem() const { return problem_; }
  std::vector<std::string> warnings() const;
  /// Of every accumulated tau, with the pins; empty without a result.
  const std::vector<ReuseCurve>& curves() const { return curves_; }

  /// The choice differs from what was saved or loaded last (or from the start).
  bool dirty() const { return choice_ != saved_; }
  /// Writes what `blockscope calibrate` writes for this choice, and the pins. Throws what
  /// write_reuse_file throws; UsageError without a result.
  void save(const std::string& path, bool force);
  /// Takes the file's choice over, as one undo entry. A file that only has a mask becomes pins.
  /// Throws CalibrationError, naming the field when it is for another model.
  void load(const std::string& path);
  /// Heads that the loaded file decides otherwise than the same choice over the open traces; 0 when
  /// the choice was changed since.
  std::int64_t heads_unlike_loaded() const;

 private:
  void update();
  bool measured(std::int64_t layer, std::int64_t head) const;
  CalibrationRequest request() const;

  ReuseModel model_;
  std::shared_ptr<const CalibrationSums> sums_;
  CalibrationChoice choice_, committed_, saved_;
  std::vector<CalibrationChoice> undo_, redo_;
  std::optional<Calibration> result_;
  std::vector<ReuseCurve> curves_;
  std::string problem_;
  /// For what curves_ were made: they don't depend on gamma and tau.
  std::optional<CalibrationChoice> curves_for_;
  std::optional<std::pair<CalibrationChoice, HeadMatrix<bool>>> loaded_;
};

struct CalibrationPayload : Payload {
  std::shared_ptr<const CalibrationSums> sums;
  std::size_t bytes() const override;
};

/// The model that a trace's calibration is for; nullopt: the trace doesn't name its checkpoint.
std::optional<ReuseModel> reuse_model_of(const TraceMeta& meta);

/// An open trace as a source of a calibration together with the active one.
struct CalibrationSource {
  std::size_t trace = 0;      ///< into ViewModel::documents()
  std::uint64_t version = 0;  ///< OpenDocument::version
  std::string missing;        ///< why it can't be used; empty: it can
  bool operator==(const CalibrationSource&) const = default;
};
/// All open traces, in their order: usable are those of the active trace's model, shape and
/// recorded heads that have exact values at level summary or above.
std::vector<CalibrationSource> calibration_sources(const ViewModel& model);

/// The sums over the usable sources, for the taus that `calibrate --tau tau` accumulates.
Data<CalibrationPayload> request_calibration(ViewModel& model,
                                             const std::vector<CalibrationSource>& sources,
                                             std::int64_t tau, bool from_summary);
/// Stops a pass under way; the next request starts it again.
void cancel_calibration(ViewModel& model);

/// layer, head, similarity, its standard error and 5th percentile, step pairs, reuse, pinned (0 or
/// 1).
CsvTable calibration_table(const CalibrationEdit& edit);

/// CalibrationEdit::save, but never over one of the open traces (UsageError).
void save_calibration(const ViewModel& model, CalibrationEdit& edit, const std::string& path,
                      bool replace);

}  // namespace blockscope
