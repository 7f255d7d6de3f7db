#include "viewer/data_service.h"

#include <algorithm>
#include <chrono>

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr auto kIdlePeriod = std::chrono::milliseconds(500);

}  // namespace

void JobControl::report(double done, double total) {
  progress_ = total > 0.0 ? done / total : 1.0;
  if (cancelled_) throw Cancelled{};
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
  waiting_.push_back({slot, key, job, std::make_shared<JobControl>()});
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

void DataService::forget(const std::string& prefix) {
  const std::scoped_lock lock(mutex_);
  for (auto entry = cache_.begin(); entry != cache_.end();) {
    if (!entry->first.starts_with(prefix)) {
      ++entry;
      continue;
    }
    if (entry->second.value) cached_bytes_ -= entry->second.value->bytes();
    ages_.erase(entry->second.age);
    entry = cache_.erase(entry);
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
  // The newest value always stays: a single one larger than the budget must still be shown.
  while (cached_bytes_ > budget_ && ages_.size() > 1) {
    const auto oldest = cache_.find(ages_.back());
    if (oldest->second.value) cached_bytes_ -= oldest->second.value->bytes();
    cache_.erase(oldest);
    ages_.pop_back();
  }
}

void DataService::finish(const Waiting& work, Entry entry) {
  const std::scoped_lock lock(mutex_);
  running_.reset();
  if (cache_.contains(work.key)) return;
  ages_.push_front(work.key);
  entry.age = ages_.begin();
  if (entry.value) cached_bytes_ += entry.value->bytes();
  cache_.emplace(work.key, std::move(entry));
  shrink();
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
        finish(work, {work.job(traces_, *work.control), "", {}});
      } catch (const JobControl::Cancelled&) {
        const std::scoped_lock relock(mutex_);
        running_.reset();
      } catch (const std::exception& error) {
        finish(work, {nullptr, error.what(), {}});
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
