// The caller's side of writing: checks rows, keeps each sequence's live frame (for steps and
// keyframes), and passes items to the one thread that owns the file.
#include "decode_record/write/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "decode_record/files/output_file.h"
#include "decode_record/frames/decode_record.h"
#include "decode_record/write/trace_row_check.h"
#include "decode_record/write/trace_store.h"

namespace blockscope {
namespace {

constexpr std::int64_t kLargestToken = std::numeric_limits<std::int32_t>::max();
// Bytes of an item without its arrays. It limits the queue at level `trajectory` too.
constexpr std::size_t kItemBytes = 1024;

std::size_t cost_of(const Item& item) {
  const auto* row = std::get_if<RowItem>(&item);
  if (row == nullptr) return kItemBytes;
  std::size_t bytes = kItemBytes;
  if (row->state) bytes += row->state->gen_length * 20;
  for (const ArraySlice& slice : row->row.arrays) bytes += slice.data.size;
  for (const LayerRanges& layer : row->row.cache) {
    bytes += sizeof(LayerRanges) +
             (layer.query.size() + layer.key.size() + layer.value.size()) * sizeof(PositionRange);
  }
  return bytes;
}

std::string partial_name(const std::string& path) { return path + ".partial"; }

}  // namespace

void check_trace_target(const std::string& path, bool force) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const std::string& name : {path, partial_name(path)}) {
    check_output_name(name, /*replace=*/true);
  }
  // Checked first, so that the second of two runs gets the right reason and waits.
  if (fs::is_regular_file(fs::symlink_status(partial_name(path), error))) {
    TraceFile::check_no_writer(partial_name(path));
  }
  for (const std::string& name : {path, partial_name(path)}) {
    if (!force && fs::exists(fs::symlink_status(name, error))) {
      refuse_input(
          fmt::format("{}: exists already. HINT: --force replaces it; --resume goes on with an "
                      "unfinished one.",
                      name));
    }
  }
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder, error)) {
    throw TraceError(fmt::format("{}: the folder {} doesn't exist", path, folder.string()));
  }
}

class TraceWriter::Impl {
 public:
  Impl(std::string path, TraceMeta meta, const TraceWriterOptions& options, TraceStore store)
      : path_(std::move(path)),
        partial_(partial_name(path_)),
        meta_(std::move(meta)),
        options_(options),
        num_rows_(store.num_rows()),
        num_sequences_(store.num_sequences()),
        num_keyframes_(store.num_keyframes()),
        committed_(store.num_rows()),
        worker_([this, owned = std::move(store)]() mutable { run(std::move(owned)); }) {}
  ~Impl() { stop(Ending::unfinished); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::int64_t begin_sequence(SequenceStart start);
  void append_row(TraceRow row);
  void end_sequence(std::int64_t sequence, SequenceEnd end);
  void commit();
  void finish(bool complete);

  std::int64_t committed() const { return committed_; }
  std::int64_t bytes_appended() const { return bytes_appended_; }
  const std::string& partial_path() const { return partial_; }

 private:
  enum class Ending : std::uint8_t { none, unfinished, complete };
  struct SequenceState {
    Frame frame;
    std::int64_t previous = -1;
    std::int64_t num_rows = 0;
    std::int64_t keyframe = 0;
    std::int64_t block = -1;  // of the last denoising row
    std::int64_t step = 0;    // of that row
  };

  SequenceState& state_of(std::int64_t sequence);
  void push(Item item);
  void stop(Ending ending);
  void rethrow();  // with mutex_ held, or after the worker ended
  void run(TraceStore store);
  void work(TraceStore& store);
  void commit_and_tell(TraceStore& store, std::uint64_t items);

  const std::string path_;
  const std::string partial_;
  const TraceMeta meta_;
  const TraceWriterOptions options_;
  std::map<std::int64_t, SequenceState> open_;  // sequences without an end
  std::int64_t num_rows_;
  std::int64_t num_sequences_;
  std::int64_t num_keyframes_;
  std::atomic<std::int64_t> bytes_appended_ = 0;
  bool closed_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<Item> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t items_pushed_ = 0;
  std::uint64_t items_committed_ = 0;
  std::uint64_t commit_wanted_ = 0;
  Ending ending_ = Ending::none;
  std::exception_ptr error_;

  OwnFile closed_file_;  // set by the worker; after its end still locked, for the renaming
  std::int64_t closed_size_ = 0;
  std::atomic<std::int64_t> committed_;
  std::thread worker_;  // last: it uses everything above
};

TraceWriter::Impl::SequenceState& TraceWriter::Impl::state_of(std::int64_t sequence) {
  const auto found = open_.find(sequence);
  if (found == open_.end()) {
    refuse_input(
        fmt::format("sequence {}: expected one that was begun and has not ended", sequence));
  }
  return found->second;
}

std::int64_t TraceWriter::Impl::begin_sequence(SequenceStart start) {
  if (start.gen_length < 0 || start.gen_length > kLargestLength) {
    refuse_input(
        fmt::format("gen_length: expected 0 to {}, got {}", kLargestLength, start.gen_length));
  }
  for (const std::int64_t token : start.prompt) {
    if (token < 0 || token > kLargestToken) {
      refuse_input(fmt::format("prompt: expected token ids in [0, 2^31), got {}", token));
    }
  }
  if (!start.prompt_regions.empty() && start.prompt_regions.size() != start.prompt.size()) {
    refuse_input(fmt::format("prompt_regions: expected one for each of {} tokens, got {}",
                             start.prompt.size(), start.prompt_regions.size()));
  }
  for (const std::uint8_t region : start.prompt_regions) {
    if (region < meta_.regions.size()) continue;
    refuse_input(fmt::format("prompt_regions: expected indices below {}, got {}",
                             meta_.regions.size(), region));
  }
  const std::int64_t index = num_sequences_;
  Frame frame = make_initial_frame(start.prompt, static_cast<std::size_t>(start.gen_length),
                                   meta_.mask_token_id);
  push(BeginItem{std::move(start)});
  open_[index].frame = std::move(frame);
  ++num_sequences_;
  return index;
}

void TraceWriter::Impl::append_row(TraceRow row) {
  check_row(row, meta_);
  SequenceState& state = state_of(row.sequence);
  const bool denoises = is_step(row.kind, meta_.continuous());
  const std::int64_t before = row.block == state.block ? state.step : 0;
  check_step(row, denoises ? before + 1 : 0);
  RowItem item;
  item.previous = state.previous;
  std::optional<FrameDelta> resolved;
  if (!row.revoked.empty() && (!row.delta || row.delta->rows.empty())) row.delta = FrameDelta();
  if (row.delta) {
    resolved = resolve_delta(state.frame, *row.delta);
    if (!row.revoked.empty()) add_revocations(row.revoked, state.frame, resolved->rows.front());
    if (!resolved->rows.empty()) item.delta = resolved->rows.front();
    check_decided(item.delta, state.frame, meta_);
    row.delta.reset();
  }
  std::size_t bytes = 0;
  for (const ArraySlice& slice : row.arrays) bytes += slice.data.size;
  if (state.num_rows % static_cast<std::int64_t>(kKeyframeInterval) == 0) {
    item.state = state.frame;
    state.keyframe = num_keyframes_++;
  }
  item.keyframe = state.keyframe;
  if (denoises) {
    state.block = row.block;
    state.step = row.step;
  }
  item.row = std::move(row);
  push(std::move(item));
  if (resolved) apply_delta(state.frame, *resolved);
  state.previous = num_rows_++;
  ++state.num_rows;
  bytes_appended_ += static_cast<std::int64_t>(bytes);
}

void TraceWriter::Impl::end_sequence(std::int64_t sequence, SequenceEnd end) {
  state_of(sequence);
  push(EndItem{sequence, std::move(end)});
  open_.erase(sequence);
}

void TraceWriter::Impl::rethrow() {
  if (error_) std::rethrow_exception(error_);
  if (closed_) refuse_input("the trace is closed");
}

void TraceWriter::Impl::push(Item item) {
  const std::size_t cost = cost_of(item);
  std::unique_lock lock(mutex_);
  // A row larger than the whole limit passes if it is alone.
  progress_.wait(lock, [&] {
    return error_ || queued_bytes_ == 0 || queued_bytes_ + cost <= options_.queue_bytes;
  });
  rethrow();
  queue_.push_back(std::move(item));
  queued_bytes_ += cost;
  ++items_pushed_;
  work_.notify_one();
}

void TraceWriter::Impl::commit() {
  std::unique_lock lock(mutex_);
  rethrow();
  commit_wanted_ = items_pushed_;
  work_.notify_one();
  progress_.wait(lock, [this] { return error_ || items_committed_ >= commit_wanted_; });
  rethrow();
}

void TraceWriter::Impl::stop(Ending ending) {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = ending;
    work_.notify_one();
  }
  worker_.join();
}

void TraceWriter::Impl::finish(bool complete) {
  {
    const std::lock_guard lock(mutex_);
    rethrow();
  }
  if (complete && !open_.empty()) {
    refuse_input(fmt::format("finish: sequence {} has no end", open_.begin()->first));
  }
  stop(complete ? Ending::complete : Ending::unfinished);
  rethrow();
  closed_ = true;
  if (!complete) closed_file_ = OwnFile();
  if (!complete) return;
  const std::string problem = closed_file_.rename(path_, options_.force, closed_size_);
  if (problem.empty()) return;
  const bool whole = closed_file_.harm(closed_size_).empty();
  throw TraceError(fmt::format("{}: can't be finished: {} {}. HINT: {}", path_, partial_, problem,
                               whole ? "the trace is complete under the name " + partial_
                                     : "leave the file alone until the run ends"));
}

void TraceWriter::Impl::run(TraceStore store) {
  try {
    work(store);
  } catch (...) {
    store.abandon();
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    queue_.clear();
    progress_.notify_all();
  }
}

void TraceWriter::Impl::commit_and_tell(TraceStore& store, std::uint64_t items) {
  store.commit();
  committed_ = store.num_rows();
  const std::lock_guard lock(mutex_);
  items_committed_ = items;
  progress_.notify_all();
}

void TraceWriter::Impl::work(TraceStore& store) {
  using Clock = std::chrono::steady_clock;
  const auto interval = std::chrono::milliseconds(options_.commit_interval_ms);
  auto last_commit = Clock::now();
  std::uint64_t written = 0;
  std::uint64_t committed = 0;
  while (true) {
    std::optional<Item> item;
    bool want_commit = false;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] {
        return !queue_.empty() || ending_ != Ending::none || commit_wanted_ > items_committed_;
      };
      if (written == committed) {
        work_.wait(lock, ready);
      } else {
        work_.wait_until(lock, last_commit + interval, ready);
      }
      if (queue_.empty() && ending_ != Ending::none) break;
      want_commit = queue_.empty() && commit_wanted_ > items_committed_;
      if (!queue_.empty()) {
        item = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (item) {
      store.write(*item);
      ++written;
      const std::size_t cost = cost_of(*item);
      item.reset();  // frees the row's buffers before the next row may enter the queue
      const std::lock_guard lock(mutex_);
      queued_bytes_ -= cost;
      progress_.notify_all();
    }
    const bool due = written > committed && Clock::now() - last_commit >= interval;
    if (want_commit || due) {
      commit_and_tell(store, written);
      committed = written;
      last_commit = Clock::now();
    }
  }
  closed_file_ = store.close(ending_ == Ending::complete);
  closed_size_ = closed_file_.size();
  committed_ = store.num_rows();
}

TraceWriter::TraceWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceWriter::TraceWriter(TraceWriter&&) noexcept = default;
TraceWriter& TraceWriter::operator=(TraceWriter&&) noexcept = default;
TraceWriter::~TraceWriter() = default;

TraceWriter::TraceWriter(std::string path, TraceMeta meta, TraceWriterOptions options) {
  check_meta(meta);
  check_trace_target(path, options.force);
  remove_abandoned(path);
  TraceStore store(TraceFile::create(partial_name(path), meta, options.force), meta);
  meta.pieces.clear();
  impl_ = std::make_unique<Impl>(std::move(path), std::move(meta), options, std::move(store));
}

TraceWriter TraceWriter::resume(std::string path, const TraceMeta& meta, ResumeState& state,
                                TraceWriterOptions options) {
  check_meta(meta);
  const std::string partial = partial_name(path);
  std::error_code error;
  if (!std::filesystem::exists(partial, error)) {
    refuse_input(fmt::format("{}: no unfinished trace to resume", partial));
  }
  TraceFile::remove_unborn(partial);
  TraceStore store(TraceFile::reopen(partial, meta), meta);
  state = store.recover();
  return TraceWriter(std::make_unique<Impl>(std::move(path), meta, options, std::move(store)));
}

std::int64_t TraceWriter::begin_sequence(SequenceStart start) {
  return impl_->begin_sequence(std::move(start));
}
void TraceWriter::append_row(TraceRow row) { impl_->append_row(std::move(row)); }
void TraceWriter::end_sequence(std::int64_t sequence, SequenceEnd end) {
  impl_->end_sequence(sequence, std::move(end));
}
std::int64_t TraceWriter::committed() const { return impl_->committed(); }
void TraceWriter::commit() { impl_->commit(); }
std::int64_t TraceWriter::bytes_appended() const { return impl_->bytes_appended(); }
const std::string& TraceWriter::partial_path() const { return impl_->partial_path(); }
void TraceWriter::finish() { impl_->finish(true); }
void TraceWriter::suspend() { impl_->finish(false); }

}  // namespace blockscope
