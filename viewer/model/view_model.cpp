#include "viewer/model/view_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

template <typename Container>
std::size_t clamped(std::size_t index, const Container& container) {
  return container.empty() ? 0 : std::min(index, container.size() - 1);
}

}  // namespace

void ViewModel::update() {
  std::vector<std::function<void(ViewModel&)>> letters;
  {
    const std::scoped_lock lock(mailbox_->mutex);
    letters.swap(mailbox_->letters);
  }
  for (const auto& letter : letters) letter(*this);
  if (!letters.empty()) clamp_selection();
  for (const DataService::Damage& damage : data_.take_damage()) tell_damage(damage);
}

/// Reports damage once, even if several panels find it.
void ViewModel::tell_damage(const DataService::Damage& damage) {
  std::string text = damage.message;
  std::size_t trace = documents_.size();
  std::from_chars(damage.key.data(), damage.key.data() + damage.key.size(), trace);
  if (trace < documents_.size() && text.find(documents_[trace].path) == std::string::npos) {
    text = fmt::format("{}: {}. HINT: the file is damaged.", documents_[trace].path, text);
  }
  if (told_.insert(text).second) problems_.push_back(std::move(text));
}

const Overview* ViewModel::overview() const {
  return selection_.trace < documents_.size() ? documents_[selection_.trace].overview.get()
                                              : nullptr;
}

const BlockSteps* ViewModel::block() const {
  const Overview* open = overview();
  return open != nullptr && selection_.block < open->blocks.size() ? &open->blocks[selection_.block]
                                                                   : nullptr;
}

const StepRef* ViewModel::step() const {
  const BlockSteps* here = block();
  return here != nullptr && selection_.step < here->steps.size() ? &here->steps[selection_.step]
                                                                 : nullptr;
}

const StepRef* ViewModel::next_step() const {
  const BlockSteps* here = block();
  return here != nullptr && selection_.step + 1 < here->steps.size()
             ? &here->steps[selection_.step + 1]
             : nullptr;
}

const StepRef* ViewModel::step_to_compare(std::int32_t number) const {
  if (number == 0 || block() == nullptr) return next_step();
  const auto found = std::ranges::find(block()->steps, number, &StepRef::step);
  return found == block()->steps.end() ? nullptr : &*found;
}

void ViewModel::select_trace(std::size_t trace) {
  selection_ = {};
  selection_.trace = trace;
  selection_.block = documents_[trace].start.block;
  selection_.step = documents_[trace].start.step;
}

void ViewModel::select(Selection wanted) {
  selection_ = wanted;
  clamp_selection();
}

void ViewModel::move_step(int by) {
  const Overview* open = overview();
  if (open == nullptr || block() == nullptr) return;
  const std::vector<BlockSteps>& blocks = open->blocks;
  // The blocks of a batch are interleaved: take the next one of the same sequence.
  const auto neighbour = [&](int direction) {
    for (auto b = static_cast<std::ptrdiff_t>(selection_.block) + direction;
         b >= 0 && b < std::ssize(blocks); b += direction) {
      if (blocks[static_cast<std::size_t>(b)].sequence == block()->sequence) {
        return std::optional(static_cast<std::size_t>(b));
      }
    }
    return std::optional<std::size_t>();
  };
  for (; by > 0; --by) {
    if (next_step() != nullptr) {
      selection_.step += 1;
    } else if (const auto next = neighbour(1)) {
      selection_.block = *next;
      selection_.step = 0;
    }
  }
  for (; by < 0; ++by) {
    if (selection_.step > 0) {
      selection_.step -= 1;
    } else if (const auto before = neighbour(-1)) {
      selection_.block = *before;
      selection_.step = clamped(~std::size_t{0}, block()->steps);
    }
  }
}

void ViewModel::select_row(std::int64_t row) {
  const Overview* open = overview();
  if (open == nullptr) return;
  for (std::size_t b = 0; b < open->blocks.size(); ++b) {
    const auto& steps = open->blocks[b].steps;
    const auto found = std::ranges::find(steps, row, &StepRef::row);
    if (found == steps.end()) continue;
    selection_.block = b;
    selection_.step = static_cast<std::size_t>(found - steps.begin());
    return;
  }
}

void ViewModel::pop_problem() {
  if (!problems_.empty()) problems_.erase(problems_.begin());
}

void ViewModel::clamp_selection() {
  if (overview() == nullptr) {
    const auto open = std::ranges::find(documents_, OpenState::open, &OpenDocument::state);
    if (open == documents_.end()) return;
    select_trace(static_cast<std::size_t>(open - documents_.begin()));
  }
  const Overview& open = *overview();
  selection_.block = clamped(selection_.block, open.blocks);
  selection_.step = block() == nullptr ? 0 : clamped(selection_.step, block()->steps);
  selection_.layer = clamped(selection_.layer, open.info.meta.layers);
  selection_.head = clamped(selection_.head, open.info.meta.heads);
  if (selection_.token &&
      (*selection_.token < 0 || *selection_.token >= open.info.meta.block_length)) {
    selection_.token.reset();
  }
}

std::string ViewModel::key(const std::string& what) const {
  return fmt::format("{}/{}", trace_key(selection_.trace), what);
}

std::string ViewModel::trace_key(std::size_t trace) const {
  return fmt::format("{}/{}", trace, documents_[trace].version);
}

std::optional<std::size_t> ViewModel::other_trace() const {
  if (overview() == nullptr) return std::nullopt;
  const auto usable = [&](std::size_t trace) {
    return trace != selection_.trace && trace < documents_.size() && documents_[trace].overview;
  };
  if (other_ && usable(*other_)) return other_;
  for (std::size_t trace = 0; trace < documents_.size(); ++trace) {
    if (usable(trace)) return trace;
  }
  return std::nullopt;
}

void ViewModel::swap_traces() {
  const std::optional<std::size_t> other = other_trace();
  if (!other) return;
  other_ = selection_.trace;
  selection_.trace = *other;
  clamp_selection();
}

Data<MetricPayload> ViewModel::metric(const std::string& slot, const std::string& name, Scope scope,
                                      bool from_summary) {
  if (block() == nullptr) return {};
  RowSelection rows;
  if (scope != Scope::everything) rows.sequences = {{block()->sequence}};
  if (scope == Scope::block) rows.blocks = {{block()->block}};
  const std::string where = scope == Scope::everything ? "all"
                            : scope == Scope::sequence
                                ? fmt::format("{}", block()->sequence)
                                : fmt::format("{}.{}", block()->sequence, block()->block);
  return ask<MetricPayload>(
      slot, fmt::format("metric/{}{}/{}", name, from_summary ? "" : " from arrays", where),
      [name, rows, from_summary](const TraceReader& trace, JobControl& control) {
        return compute_metric(trace, name, rows, from_summary, control);
      });
}

std::optional<std::size_t> ViewModel::kv_head_slot() const {
  const TraceMeta& meta = overview()->info.meta;
  const auto found = std::ranges::find(
      meta.kv_heads, meta.kv_head_of(meta.layers[selection_.layer], meta.heads[selection_.head]));
  if (found == meta.kv_heads.end()) return std::nullopt;
  return static_cast<std::size_t>(found - meta.kv_heads.begin());
}

}  // namespace blockscope
