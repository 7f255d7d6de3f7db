// The loop over the slots of a batch, for blocks (decoder.cpp), canvases (canvas_decoder.cpp) and
// the rounds of a draft (probe/draft/draft_decoder.cpp). It prefills the slots, then steps until
// every sequence has ended. It removes finished sequences, asks after every pass whether to stop,
// and reports the outcomes. A decoder defines what a prefill and a step are.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/decode/watcher.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// `Sequence` has request, tokens and outcome, and generated(): DecodeOutcome::generated.
template <class Sequence>
class SlotLoop {
 public:
  virtual ~SlotLoop() = default;
  SlotLoop(const SlotLoop&) = delete;
  SlotLoop& operator=(const SlotLoop&) = delete;

  /// Outcomes in the order in which the sequences end.
  std::vector<DecodeOutcome> run() {
    const c10::InferenceMode guard;
    for (int64_t slot = 0; slot < std::ssize(active_) && !interrupted_; ++slot) prefill(slot);
    retire();  // a replay may have no step at all, and a prefill may find the stop token
    while (!active_.empty() && !interrupted_) {
      step();
      retire();
      ask();
    }
    for (Sequence& sequence : active_) {
      sequence.outcome.reason = FinishReason::interrupted;
      finish(sequence);
    }
    return std::move(finished_);
  }

 protected:
  /// The arguments must outlive the loop.
  SlotLoop(int64_t& next_pass, const DecodeCallbacks& callbacks)
      : next_pass_(next_pass), watcher_(callbacks.observer), callbacks_(callbacks) {}

  virtual void prefill(int64_t /*slot*/) {}
  /// Advances every sequence by one step, in one pass or one round of passes.
  virtual void step() = 0;
  /// Called when a finished sequence leaves the batch: the last slot moves to `slot`.
  virtual void leave(int64_t slot) = 0;

  Sequence& active(int64_t slot) { return active_[static_cast<size_t>(slot)]; }

  /// Runs passes over the first `total` tokens of a slot, `chunk` at a time. `pass(context, result,
  /// ids, positions)` runs one pass over ids [1, T] at positions [1, T], and adds its decisions to
  /// the result.
  template <class Pass>
  void prefill_chunks(int64_t slot, int64_t total, int64_t chunk, const Pass& pass) {
    const Sequence& sequence = active(slot);
    for (int64_t begin = 0; begin < total && !interrupted_; begin += chunk) {
      const int64_t length = std::min(chunk, total - begin);
      PassContext context{next_pass_++, {}};
      SequencePass& entry = context.sequences.emplace_back();
      entry.sequence = sequence.request->sequence;
      entry.kind = PassKind::prefill;
      entry.block_start = entry.context_length = begin;
      entry.prompt_hash = sequence.request->prompt_hash;
      PassResult result{context, length, begin, static_cast<double>(length)};
      {
        const UnwatchedStopwatch watch(result.pass_ns, watcher_);
        const std::vector<int64_t> ids(sequence.tokens.begin() + begin,
                                       sequence.tokens.begin() + begin + length);
        pass(context, result, at::tensor(ids, at::kLong).unsqueeze(0),
             at::arange(begin, begin + length, at::kLong).unsqueeze(0));
      }
      report(result);
      ask();
    }
  }

  bool watched() const { return watcher_.observer() != nullptr; }
  bool interrupted() const { return interrupted_; }
  void report(const PassResult& result) const {
    if (watched()) callbacks_.observer->on_pass(result);
  }

  int64_t& next_pass_;
  Watcher watcher_;
  std::vector<Sequence> active_;  // by slot

 private:
  void ask() {
    interrupted_ = interrupted_ || (callbacks_.interrupted && callbacks_.interrupted());
  }

  /// Last slot first, so that moves stay valid.
  void retire() {
    for (int64_t slot = std::ssize(active_) - 1; slot >= 0; --slot) {
      if (active(slot).outcome.reason == FinishReason::unfinished) continue;
      finish(active(slot));
      leave(slot);
      if (watched()) callbacks_.observer->on_remove(slot);
      if (slot + 1 < std::ssize(active_)) active(slot) = std::move(active_.back());
      active_.pop_back();
    }
  }

  void finish(Sequence& sequence) {
    sequence.outcome.generated = sequence.generated();
    if (callbacks_.on_finished) callbacks_.on_finished(sequence.outcome);
    finished_.push_back(std::move(sequence.outcome));
  }

  const DecodeCallbacks& callbacks_;
  std::vector<DecodeOutcome> finished_;
  bool interrupted_ = false;
};

}  // namespace blockscope
