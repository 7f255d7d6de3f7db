// The state of the viewer without its window: which traces are open, what is selected, what is
// wrong. Panels read it and change it; tests drive it without ImGui.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "decode_record/files/command_files.h"
#include "viewer/model/data_service.h"
#include "viewer/model/file_watch.h"
#include "viewer/model/queries.h"

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

/// Instead of a payload where kv_head_slot() is unset.
inline constexpr const char* kNoKvHead = "The KV head of this head was not recorded.";

enum class OpenState { opening, open, failed };

struct OpenDocument {
  std::string path;
  OpenState state = OpenState::opening;
  std::string problem;                ///< when failed, or when the file vanished while open
  bool live = false;                  ///< still being written
  FileFault fault = FileFault::none;  ///< what happened to the file while it was open
  std::uint64_t version = 0;          ///< grows whenever the file has news
  std::shared_ptr<const Overview> overview;
};

class ViewModel {
 public:
  explicit ViewModel(std::size_t budget_bytes = std::size_t{256} << 20);

  /// Opens in the background; documents() shows how far it is. A path opened already is selected.
  void open(const std::string& path);
  void close(std::size_t trace);
  /// Reads the file under the document's path anew, in its place.
  void reopen(std::size_t trace);
  /// The selection goes to the newest step whenever the active trace grows.
  bool follow() const { return follow_; }
  void set_follow(bool follow);
  /// Picks up what the background thread has done. Call once per frame.
  void update();

  const std::vector<OpenDocument>& documents() const { return documents_; }
  /// What is open, and so no place for an export.
  CommandFiles files() const;
  /// The active trace's overview; nullptr while there is none.
  const Overview* overview() const;
  const BlockSteps* block() const;
  const StepRef* step() const;
  /// The recorded slot of the KV head that the selected query head reads.
  std::optional<std::size_t> kv_head_slot() const;
  /// The recorded step before / after the selected one in its block; nullptr at the ends.
  const StepRef* next_step() const;

  /// The block's step with this number, for pictures of two steps; 0: the next one. nullptr: none.
  const StepRef* step_to_compare(std::int32_t number) const;

  const Selection& selection() const { return selection_; }
  void select(Selection wanted);  ///< clamped to what exists
  void move_step(int by);         ///< across blocks of the same sequence
  void select_row(std::int64_t row);

  /// The trace beside the active one (B of the Compare panel): the chosen one, else the first other
  /// one that is open; unset while there is none.
  std::optional<std::size_t> other_trace() const;
  void select_other(std::size_t trace) { other_ = trace; }
  void swap_traces();  ///< the other one becomes the active one, and the reverse

  /// Errors for a popup, oldest first; pop_problem() acknowledges.
  const std::vector<std::string>& problems() const { return problems_; }
  void pop_problem();
  void add_problem(std::string text) { problems_.push_back(std::move(text)); }

  DataService& data() { return data_; }
  /// Begins the keys of what is computed from a trace as it is now.
  std::string trace_key(std::size_t trace) const;

  /// What `read` makes of the active trace in the background, and how far it is: how every payload
  /// of a panel is asked for. `slot`: who asks; `what`: all that the value depends on besides the
  /// trace, and a first word that no other kind of payload begins with.
  template <typename T, typename Read>
  Data<T> ask(const std::string& slot, const std::string& what, Read read) {
    return data_.request<T>(
        slot, key(what),
        [trace = selection_.trace, read](OpenTraces& traces, JobControl& control)
            -> std::shared_ptr<const Payload> { return read(open_trace(traces, trace), control); });
  }
  enum class Scope { everything, sequence, block };
  /// `from_summary`: from what the trace has stored per row, where it has it; otherwise from the
  /// arrays, which have more (recall: every k), and take longer.
  Data<MetricPayload> metric(const std::string& slot, const std::string& name, Scope scope,
                             bool from_summary = true);

 private:
  struct News;
  void clamp_selection();
  void tell_damage(const DataService::Damage& damage);
  void select_newest();
  void select_trace(std::size_t trace);  ///< its first step
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
  std::set<std::string> told_;  // damage that was a problem once
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::shared_ptr<Watched> watched_ = std::make_shared<Watched>();  // the background thread's
  DataService data_;                                                // last: its thread ends first
};

}  // namespace blockscope
