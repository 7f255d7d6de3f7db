// A calibration that a user edits: gamma, tau, granularity and pins over the sums of the open
// traces, with undo and redo. Saves the file that `blockscope calibrate` would write. No ImGui
// here.
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

/// Everything that the user decides.
struct CalibrationChoice {
  double gamma = 0.9;  ///< of all ranges of steps
  std::int64_t tau = 2;
  ReuseGranularity granularity = ReuseGranularity::head;
  std::map<std::pair<std::int64_t, std::int64_t>, bool> pins;  ///< (layer, head) to reuse or not
  std::vector<double> gammas{};  ///< [ranges], in place of one gamma; empty: none
  StepRanges ranges{};
  ReuseReference reference = ReuseReference::adjacent;
  std::optional<double> lse_bound{};

  double gamma_of(std::size_t range) const { return gammas.empty() ? gamma : gammas.at(range); }
  /// Sets the gamma of one range, or of all.
  void set_gamma(const std::optional<std::size_t>& range, double value);
  bool operator==(const CalibrationChoice&) const = default;
};

class CalibrationEdit {
 public:
  explicit CalibrationEdit(ReuseModel model);

  const ReuseModel& model() const { return model_; }
  /// Sets the measured sums and keeps the choice. Null: nothing is measured yet.
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

  /// Pins the head to the opposite of what gamma chose, or removes its pin. With granularity
  /// kv-group, this changes all heads of its KV head. Does nothing for a head without a similarity.
  void toggle_pin(std::int64_t layer, std::int64_t head);
  std::optional<bool> pin_of(std::int64_t layer, std::int64_t head) const;
  void clear_pins();
  /// Moves gamma up (1) or down (-1) to the next value that changes the set of reusing heads: in
  /// one range of steps, or in all, which then have one gamma.
  void step_gamma(int by, const std::optional<std::size_t>& range = {});
  /// Like `calibrate --saving` and `calibrate --max-error` (error where reused). Throws UsageError
  /// if no gamma reaches the aim.
  void aim_at_saving(double saving);
  void aim_at_error(double error);

  /// The result of the choice; nullptr without sums, or if problem() says why not.
  const Calibration* result() const { return result_ ? &*result_ : nullptr; }
  const std::string& problem() const { return problem_; }
  std::vector<std::string> warnings() const;
  /// One curve per accumulated tau, with the pins; empty without a result.
  const std::vector<ReuseCurve>& curves() const { return curves_; }

  /// True if the choice differs from the last saved or loaded one (or from the initial one).
  bool dirty() const { return choice_ != saved_; }
  /// Writes the file of `blockscope calibrate` for this choice and its pins. Throws what
  /// write_reuse_file throws, and UsageError without a result.
  void save(const std::string& path, bool force);
  /// Adopts the file's choice as one undo entry. A file that has only a mask becomes pins. Throws
  /// CalibrationError, which names the field if the file is for another model.
  void load(const std::string& path);
  /// Number of heads that the loaded file decides differently from the same choice over the open
  /// traces; 0 if the choice was changed since loading.
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
  /// The choice that curves_ were made for. Its gamma and tau don't matter.
  std::optional<CalibrationChoice> curves_for_;
  std::optional<std::pair<CalibrationChoice, ReuseMasks>> loaded_;
};

struct CalibrationPayload : Payload {
  std::shared_ptr<const CalibrationSums> sums;
  std::size_t bytes() const override;
};

/// The model that a trace's calibration is for; nullopt: the trace doesn't name its checkpoint.
std::optional<ReuseModel> reuse_model_of(const TraceMeta& meta);

/// An open trace that a calibration may use together with the active one.
struct CalibrationSource {
  std::size_t trace = 0;      ///< into ViewModel::documents()
  std::uint64_t version = 0;  ///< OpenDocument::version
  std::string missing;        ///< why it can't be used; empty if it can
  bool operator==(const CalibrationSource&) const = default;
};
/// All open traces, in order. A usable one has the active trace's model, shape and recorded heads,
/// and exact values at level summary or above.
std::vector<CalibrationSource> calibration_sources(const ViewModel& model);

/// The sums over the usable sources, for the taus that `calibrate --tau tau` accumulates, with the
/// choice's tau, ranges, reference and bound.
Data<CalibrationPayload> request_calibration(ViewModel& model,
                                             const std::vector<CalibrationSource>& sources,
                                             const CalibrationChoice& choice, bool from_summary);
/// Stops the running pass; the next request starts it again.
void cancel_calibration(ViewModel& model);

/// first step of the range, layer, head, similarity, its standard error and 5th percentile, mean
/// |change of L_out|, step pairs, reuse, pinned (0 or 1).
CsvTable calibration_table(const CalibrationEdit& edit);

/// CalibrationEdit::save, which also refuses to replace an open trace (UsageError).
void save_calibration(const ViewModel& model, CalibrationEdit& edit, const std::string& path,
                      bool replace);

}  // namespace blockscope
