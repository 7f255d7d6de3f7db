#include "viewer/model/data_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/frames/frame.h"

namespace blockscope {
namespace {

constexpr auto kIdlePeriod = std::chrono::milliseconds(500);

std::string too_large(std::size_t bytes, std::size_t budget) {
  constexpr double kMiB = 1024.0 * 1024.0;
  return fmt::format("This reads {:.0f} MiB, more than the cache's {:.0f} MiB.",
                     static_cast<double>(bytes) / kMiB, static_cast<double>(budget) / kMiB);
}

}  // namespace

TraceReader& open_trace(OpenTraces& traces, std::size_t index) {
  if (index >= traces.size() || !traces[index]) throw TraceError("the trace is closed");
  return *traces[index];
}

void JobControl::report(double done, double total) {
  progress_ = total > 0.0 ? done / total : 1.0;
  if (cancelled_) throw Cancelled{};
}

void JobControl::require(std::size_t bytes) const {
  if (bytes > most_bytes_) throw TooLarge{bytes};
}

DataService::DataService(std::size_t budget_bytes)
    : budget_(budget_bytes), thread_([this] { run(); }) {}

DataService::~DataService() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    if (running_) running_->control->cancel();
  }
  changed_.notify_all();
  thread_.join();
}

DataService::Found DataService::find_or_start(const std::string& slot, const std::string& key,
                                              const Job& job) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = cache_.find(key); found != cache_.end()) {
    ages_.splice(ages_.begin(), ages_, found->second.age);
    const Entry& entry = found->second;
    if (entry.held) return {DataState::held, nullptr, 0.0, entry.message};
    if (!entry.value) return {DataState::failed, nullptr, 0.0, entry.message};
    return {DataState::ready, entry.value, 1.0, ""};
  }
  if (running_ && running_->slot == slot) {
    if (running_->key == key)
      return {DataState::loading, nullptr, running_->control->progress(), ""};
    running_->control->cancel();
  }
  const auto same_slot =
      std::ranges::find_if(waiting_, [&](const Waiting& work) { return work.slot == slot; });
  if (same_slot != waiting_.end()) {
    if (same_slot->key == key) return {};
    waiting_.erase(same_slot);
  }
  const std::size_t most = agreed_.contains(key) ? ~std::size_t{0} : budget_;
  waiting_.push_back({slot, key, job, std::make_shared<JobControl>(most)});
  changed_.notify_all();
  return {};
}

void DataService::post(std::function<void(OpenTraces&)> command) {
  {
    const std::scoped_lock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  changed_.notify_all();
}

void DataService::set_idle(std::function<bool(OpenTraces&)> idle) {
  const std::scoped_lock lock(mutex_);
  idle_ = std::move(idle);
}

void DataService::set_wake(std::function<void()> wake) {
  const std::scoped_lock lock(mutex_);
  wake_ = std::move(wake);
}

void DataService::erase(std::map<std::string, Entry>::iterator entry) {
  if (entry->second.value) cached_bytes_ -= entry->second.value->bytes();
  ages_.erase(entry->second.age);
  cache_.erase(entry);
}

void DataService::cancel(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  if (running_ && running_->key == key) {
    cancelled_.insert(key);
    running_->control->cancel();
  }
}

void DataService::load(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  agreed_.insert(key);
  const auto found = cache_.find(key);
  if (found != cache_.end() && found->second.held) erase(found);
}

void DataService::forget(const std::string& prefix) {
  const std::scoped_lock lock(mutex_);
  for (auto entry = cache_.begin(); entry != cache_.end();) {
    const auto next = std::next(entry);
    if (entry->first.starts_with(prefix)) erase(entry);
    entry = next;
  }
  std::erase_if(waiting_, [&](const Waiting& work) { return work.key.starts_with(prefix); });
  if (running_ && running_->key.starts_with(prefix)) running_->control->cancel();
}

std::size_t DataService::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return cached_bytes_;
}

std::size_t DataService::budget_bytes() const {
  const std::scoped_lock lock(mutex_);
  return budget_;
}

void DataService::set_budget(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  budget_ = bytes;
  shrink();
}

bool DataService::busy() const {
  const std::scoped_lock lock(mutex_);
  return running_.has_value() || !waiting_.empty() || !commands_.empty();
}

void DataService::shrink() {
  // The newest value always stays: even a value larger than the budget must be shown.
  while (cached_bytes_ > budget_ && ages_.size() > 1) {
    erase(cache_.find(ages_.back()));
  }
}

void DataService::finish(const Waiting& work, Entry entry) {
  const std::scoped_lock lock(mutex_);
  running_.reset();
  cancelled_.erase(work.key);
  if (cache_.contains(work.key)) return;
  ages_.push_front(work.key);
  entry.age = ages_.begin();
  if (entry.value) cached_bytes_ += entry.value->bytes();
  cache_.emplace(work.key, std::move(entry));
  shrink();
}

void DataService::damaged(const Waiting& work, const std::exception& error) {
  {
    const std::scoped_lock lock(mutex_);
    damage_.push_back({work.key, error.what()});
  }
  finish(work, {nullptr, error.what(), false, {}});
}

std::vector<DataService::Damage> DataService::take_damage() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(damage_, {});
}

void DataService::stopped(const Waiting& work) {
  {
    const std::scoped_lock lock(mutex_);
    if (cancelled_.erase(work.key) == 0) {  // no longer wanted
      running_.reset();
      return;
    }
  }
  finish(work, {nullptr, "Cancelled.", true, {}});
}

void DataService::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!commands_.empty()) {
      auto command = std::move(commands_.front());
      commands_.pop_front();
      lock.unlock();
      command(traces_);
      lock.lock();
    } else if (!waiting_.empty()) {
      const Waiting work = std::move(waiting_.front());
      waiting_.erase(waiting_.begin());
      running_ = work;
      lock.unlock();
      try {
        finish(work, {work.job(traces_, *work.control), "", false, {}});
      } catch (const JobControl::Cancelled&) {
        stopped(work);
      } catch (const JobControl::TooLarge& read) {
        finish(work, {nullptr, too_large(read.bytes, budget_bytes()), true, {}});
      } catch (const CorruptTrace& error) {
        damaged(work, error);
      } catch (const FrameError& error) {
        damaged(work, error);
      } catch (const Error& error) {
        finish(work, {nullptr, error.what(), false, {}});
      } catch (const std::exception& error) {  // an unexpected error
        damaged(work, error);
      }
      lock.lock();
    } else {
      changed_.wait_for(lock, kIdlePeriod);
      if (stop_ || !commands_.empty() || !waiting_.empty() || !idle_) continue;
      const auto idle = idle_;
      lock.unlock();
      const bool news = idle(traces_);
      lock.lock();
      if (!news) continue;
    }
    if (wake_) {
      const auto wake = wake_;
      lock.unlock();
      wake();
      lock.lock();
    }
  }
  traces_.clear();  // HDF5 is closed by the thread that opened it
}

}  // namespace blockscope
