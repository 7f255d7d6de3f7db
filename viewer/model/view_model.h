// The state of the viewer without its window: the open traces, the selection, the errors. Panels
// read and change it. Tests drive it without ImGui.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "analysis/pass/interesting_block.h"
#include "decode_record/files/command_files.h"
#include "viewer/model/data_service.h"
#include "viewer/model/file_watch.h"
#include "viewer/model/queries.h"

namespace blockscope {

/// The selection that all panels share. Its indices are always valid for the active trace (see
/// ViewModel::clamp_selection).
struct Selection {
  std::size_t trace = 0;
  std::size_t block = 0;              ///< into Overview::blocks
  std::size_t step = 0;               ///< into BlockSteps::steps
  std::size_t layer = 0;              ///< recorded slot
  std::size_t head = 0;               ///< recorded slot
  std::optional<std::int32_t> token;  ///< position in the block under the crosshair
  bool operator==(const Selection&) const = default;
};

/// Message instead of a payload if kv_head_slot() is unset.
inline constexpr const char* kNoKvHead = "The KV head of this head was not recorded.";

enum class OpenState { opening, open, failed };

struct OpenDocument {
  std::string path;
  OpenState state = OpenState::opening;
  std::string problem;                ///< set if it failed, or if the file vanished while open
  bool live = false;                  ///< still being written
  FileFault fault = FileFault::none;  ///< what happened to the file while it was open
  std::uint64_t version = 0;          ///< grows with every change of the file
  std::shared_ptr<const Overview> overview;
  PlaceToSee start;  ///< selected when the document is shown for the first time
};

class ViewModel {
 public:
  explicit ViewModel(std::size_t budget_bytes = std::size_t{256} << 20);

  /// Opens in the background; documents() has the state. A path that is already open is selected.
  void open(const std::string& path);
  void close(std::size_t trace);
  /// Reads the file at the document's path again, into the same document.
  void reopen(std::size_t trace);
  /// True: the selection moves to the newest step whenever the active trace grows.
  bool follow() const { return follow_; }
  void set_follow(bool follow);
  /// Takes over the results of the background thread. Call once per frame.
  void update();

  const std::vector<OpenDocument>& documents() const { return documents_; }
  /// The open files, which an export must not replace.
  CommandFiles files() const;
  /// The active trace's overview; nullptr while it has none.
  const Overview* overview() const;
  const BlockSteps* block() const;
  const StepRef* step() const;
  /// The recorded slot of the KV head that the selected query head reads.
  std::optional<std::size_t> kv_head_slot() const;
  /// The recorded step before / after the selected one in its block; nullptr at the ends.
  const StepRef* next_step() const;

  /// The block's step with this number, for pictures of two steps. 0: the next one. nullptr if it
  /// doesn't exist.
  const StepRef* step_to_compare(std::int32_t number) const;

  const Selection& selection() const { return selection_; }
  void select(Selection wanted);  ///< clamped to what exists
  void move_step(int by);         ///< across blocks of the same sequence
  void select_row(std::int64_t row);

  /// The trace compared with the active one (B of the Compare panel): the chosen one, else the
  /// first other open one. Unset while no other trace is open.
  std::optional<std::size_t> other_trace() const;
  void select_other(std::size_t trace) { other_ = trace; }
  void swap_traces();  ///< exchanges the active trace and the other one

  /// Errors for a popup, oldest first. pop_problem() removes the first one.
  const std::vector<std::string>& problems() const { return problems_; }
  void pop_problem();
  void add_problem(std::string text) { problems_.push_back(std::move(text)); }

  DataService& data() { return data_; }
  /// The prefix of the keys of all values computed from the current version of a trace.
  std::string trace_key(std::size_t trace) const;

  /// Runs `read` on the active trace in the background, and returns its value or its progress.
  /// Panels request every payload this way. `slot`: the caller; see DataService. `what`: everything
  /// that the value depends on except the trace; its first word must be unique to this kind of
  /// payload.
  template <typename T, typename Read>
  Data<T> ask(const std::string& slot, const std::string& what, Read read) {
    return data_.request<T>(
        slot, key(what),
        [trace = selection_.trace, read](OpenTraces& traces, JobControl& control)
            -> std::shared_ptr<const Payload> { return read(open_trace(traces, trace), control); });
  }
  enum class Scope { everything, sequence, block };
  /// `from_summary`: uses the values stored per row if the trace has them. Else reads the arrays,
  /// which have more (recall: every k) but take longer.
  Data<MetricPayload> metric(const std::string& slot, const std::string& name, Scope scope,
                             bool from_summary = true);

 private:
  struct News;
  void clamp_selection();
  void tell_damage(const DataService::Damage& damage);
  void select_newest();
  void select_trace(std::size_t trace);  ///< where there is the most to see
  void take_news(std::size_t trace, const std::shared_ptr<const Overview>& news,
                 const std::string& problem, FileFault fault);
  struct WatchedFile {
    FileWatch watch;
    FileFault told = FileFault::none;  // last
    std::string told_problem;
  };
  using Watched = std::vector<WatchedFile>;
  static FileFault look_at(const TraceReader& trace, FileWatch& watch);
  std::string key(const std::string& what) const;  ///< of the active trace and its version

  std::vector<OpenDocument> documents_;
  Selection selection_;
  std::optional<std::size_t> other_;
  bool follow_ = false;
  std::vector<std::string> problems_;
  struct Mailbox {
    std::mutex mutex;
    std::vector<std::function<void(ViewModel&)>> letters;
  };
  std::set<std::string> told_;  // damage that was already reported
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::shared_ptr<Watched> watched_ = std::make_shared<Watched>();  // the background thread's
  DataService data_;                                                // last: its thread ends first
};

}  // namespace blockscope
