// One background thread reads and computes everything that the viewer shows. It alone touches HDF5.
// In every frame, the user interface requests the values that it shows and never waits. It gets the
// finished value, its progress, or the reason why it failed.
//
// A request has a slot (the part of the interface: "heatmap", "curves") and a key (the value). A
// slot has at most one waiting job. A newer key replaces a job that has not started and cancels a
// running one, so moving a slider never queues stale work. Finished values stay in a cache with a
// budget in bytes. The least recently requested value is dropped first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// A value computed in the background. Immutable once it is in the cache.
struct Payload {
  virtual ~Payload() = default;
  virtual std::size_t bytes() const = 0;
};

/// A job reports its progress here, and learns whether the result is still wanted.
class JobControl {
 public:
  explicit JobControl(std::size_t most_bytes = ~std::size_t{0}) : most_bytes_(most_bytes) {}
  /// Call it before reading `bytes`. Throws TooLarge if the user must agree first.
  void require(std::size_t bytes) const;
  struct TooLarge {
    std::size_t bytes;
  };
  /// Throws Cancelled when the result is no longer wanted. Call it at least every 20 ms of work.
  void report(double done, double total);
  void cancel() { cancelled_ = true; }
  double progress() const { return progress_; }
  struct Cancelled {};

 private:
  std::atomic<bool> cancelled_ = false;
  std::atomic<double> progress_ = 0.0;
  std::size_t most_bytes_;
};

/// held: larger than the budget, or cancelled; waits for DataService::load.
enum class DataState { loading, ready, failed, held };
class DataService;

template <typename T>
struct Data {
  DataState state = DataState::loading;
  std::shared_ptr<const T> value;  ///< set when ready
  double progress = 0.0;           ///< 0 .. 1 while loading
  std::string message;             ///< why it failed or is held; shown to the user
  std::string key = {};            ///< of the request
  DataService* service = nullptr;  ///< that answered; nullptr: no request was made
};

/// An open trace as the background thread sees it.
using OpenTraces = std::vector<std::unique_ptr<TraceReader>>;
/// The trace at `index`; throws TraceError when it is closed.
TraceReader& open_trace(OpenTraces& traces, std::size_t index);

class DataService {
 public:
  using Job = std::function<std::shared_ptr<const Payload>(OpenTraces&, JobControl&)>;

  explicit DataService(std::size_t budget_bytes);
  ~DataService();
  DataService(const DataService&) = delete;
  DataService& operator=(const DataService&) = delete;

  /// The value for `key`. Starts `job` if the cache lacks it. Call once per frame and slot.
  template <typename T>
  Data<T> request(const std::string& slot, const std::string& key, const Job& job) {
    Found found = find_or_start(slot, key, job);
    return {found.state,
            std::dynamic_pointer_cast<const T>(found.value),
            found.progress,
            std::move(found.message),
            key,
            this};
  }

  /// Runs before any waiting job and is never dropped: opening and closing traces.
  void post(std::function<void(OpenTraces&)> command);
  /// The background thread calls `idle` about twice a second while it has nothing else to do. If
  /// `idle` returns true, there is news and the window wakes up.
  void set_idle(std::function<bool(OpenTraces&)> idle);

  /// Damage that jobs found since the last call: impossible values. A value that a trace of this
  /// level doesn't have is no damage.
  struct Damage {
    std::string key, message;
  };
  std::vector<Damage> take_damage();

  /// Stops the job for `key`; it stays held.
  void cancel(const std::string& key);
  /// Agrees to a held value: the next request computes it, however large.
  void load(const std::string& key);

  /// Forgets values and failures whose key starts with `prefix`.
  void forget(const std::string& prefix);
  std::size_t cached_bytes() const;
  std::size_t budget_bytes() const;
  void set_budget(std::size_t bytes);
  /// True while something is being computed; the window keeps drawing then.
  bool busy() const;
  /// The background thread calls `wake` whenever there is news.
  void set_wake(std::function<void()> wake);

 private:
  struct Found {
    DataState state = DataState::loading;
    std::shared_ptr<const Payload> value;
    double progress = 0.0;
    std::string message;
  };
  struct Entry {
    std::shared_ptr<const Payload> value;
    std::string message;  // of a failure
    bool held = false;
    std::list<std::string>::iterator age;
  };
  struct Waiting {
    std::string slot, key;
    Job job;
    std::shared_ptr<JobControl> control;
  };

  Found find_or_start(const std::string& slot, const std::string& key, const Job& job);
  void run();
  void finish(const Waiting& work, Entry entry);
  void damaged(const Waiting& work, const std::exception& error);
  void stopped(const Waiting& work);
  void erase(std::map<std::string, Entry>::iterator entry);
  void shrink();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<std::function<void(OpenTraces&)>> commands_;
  std::vector<Waiting> waiting_;  // at most one per slot, oldest first
  std::optional<Waiting> running_;
  std::map<std::string, Entry> cache_;
  std::set<std::string> agreed_;     // keys that may be larger than the budget
  std::set<std::string> cancelled_;  // keys whose running job a person stopped
  std::vector<Damage> damage_;
  std::list<std::string> ages_;  // most recently requested first
  std::size_t cached_bytes_ = 0;
  std::size_t budget_;
  std::function<bool(OpenTraces&)> idle_;
  std::function<void()> wake_;
  OpenTraces traces_;  // used by thread_ only
  std::thread thread_;
};

}  // namespace blockscope
