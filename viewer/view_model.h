// The state of the viewer without its window: which traces are open, what is selected, what is
// wrong. Panels read it and change it; tests drive it without ImGui.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "viewer/data_service.h"
#include "viewer/queries.h"

namespace blockscope {

/// One selection that all panels share. Indices into what the trace holds; always valid for the
/// active trace (see ViewModel::clamp_selection).
struct Selection {
  std::size_t trace = 0;
  std::size_t block = 0;              ///< into Overview::blocks
  std::size_t step = 0;               ///< into BlockSteps::steps
  std::size_t layer = 0;              ///< recorded slot
  std::size_t head = 0;               ///< recorded slot
  std::optional<std::int32_t> token;  ///< position in the block under the crosshair
  bool operator==(const Selection&) const = default;
};

enum class OpenState { opening, open, failed };

struct OpenDocument {
  std::string path;
  OpenState state = OpenState::opening;
  std::string problem;        ///< when failed, or when the file vanished while open
  bool live = false;          ///< still being written
  std::uint64_t version = 0;  ///< grows whenever the file has news
  std::shared_ptr<const Overview> overview;
};

class ViewModel {
 public:
  explicit ViewModel(std::size_t budget_bytes = std::size_t{256} << 20);

  /// Opens in the background; documents() shows how far it is. A path opened already is selected.
  void open(const std::string& path);
  void close(std::size_t trace);
  /// Picks up what the background thread has done. Call once per frame.
  void update();

  const std::vector<OpenDocument>& documents() const { return documents_; }
  /// The active trace's overview; nullptr while there is none.
  const Overview* overview() const;
  const BlockSteps* block() const;
  const StepRef* step() const;
  /// The recorded step before / after the selected one in its block; nullptr at the ends.
  const StepRef* next_step() const;

  const Selection& selection() const { return selection_; }
  void select(Selection wanted);  ///< clamped to what exists
  void move_step(int by);         ///< across blocks of the same sequence
  void select_row(std::int64_t row);

  /// Errors for a popup, oldest first; pop_problem() acknowledges.
  const std::vector<std::string>& problems() const { return problems_; }
  void pop_problem();
  void add_problem(std::string text) { problems_.push_back(std::move(text)); }

  DataService& data() { return data_; }

  // What panels show of the selection.
  Data<Trajectory> trajectory();
  enum class Scope { everything, sequence, block };
  Data<MetricPayload> metric(const std::string& slot, const std::string& name, Scope scope);
  Data<MatrixPayload> token_matrix(const std::string& slot, Field field, bool all_heads);
  Data<MatrixPayload> step_matrix(const std::string& slot, Field field, bool all_heads);
  Data<SetsPayload> sets();

 private:
  struct News;
  void clamp_selection();
  std::string key(const char* what) const;  ///< of the active trace and its version

  std::vector<OpenDocument> documents_;
  Selection selection_;
  std::vector<std::string> problems_;
  struct Mailbox {
    std::mutex mutex;
    std::vector<std::function<void(ViewModel&)>> letters;
  };
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  DataService data_;  // last: its thread ends first
};

}  // namespace blockscope
