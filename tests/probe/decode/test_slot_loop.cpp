// The loop that blocks, canvases and the rounds of a draft share: which sequences it asks, reports
// and removes, and when. The sequences here are counters.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "probe/decode/slot_loop.h"

namespace blockscope {
namespace {

/// Ends after as many steps as its gen_length; without any it has ended before the prefill.
struct Countdown {
  const DecodeRequest* request = nullptr;
  std::vector<int64_t> tokens;
  DecodeOutcome outcome;
  int64_t steps = 0;

  std::vector<int64_t> generated() const { return {steps}; }
};

class CountdownLoop final : public SlotLoop<Countdown> {
 public:
  CountdownLoop(const std::vector<DecodeRequest>& requests, int64_t& next_pass,
                const DecodeCallbacks& callbacks)
      : SlotLoop(next_pass, callbacks) {
    for (const DecodeRequest& request : requests) {
      active_.push_back({&request, request.prompt, {}, 0});
      active_.back().outcome.sequence = request.sequence;
      end_at_length(active_.back());
    }
  }

  std::vector<std::string> left;  // the sequences that every slot held

 private:
  static void end_at_length(Countdown& sequence) {
    if (sequence.steps == sequence.request->gen_length) {
      sequence.outcome.reason = FinishReason::length;
    }
  }

  void prefill(int64_t slot) override {
    prefill_chunks(slot, std::ssize(active(slot).tokens), 2,
                   [&](const PassContext& context, PassResult& result, const at::Tensor& ids,
                       const at::Tensor& positions) {
                     EXPECT_EQ(context.sequences.front().kind, PassKind::prefill);
                     EXPECT_EQ(ids.size(1), result.length);
                     EXPECT_EQ(positions[0][0].item<int64_t>(), result.start);
                   });
  }

  void step() override {
    ++next_pass_;
    for (Countdown& sequence : active_) {
      ++sequence.steps;
      end_at_length(sequence);
    }
  }

  void leave(int64_t slot) override {
    std::string held;
    for (const Countdown& sequence : active_) held += std::to_string(sequence.request->sequence);
    left.push_back(held + ":" + std::to_string(slot));
  }
};

DecodeRequest request_of(int64_t sequence, int64_t prompt_length, int64_t steps) {
  DecodeRequest request;
  request.sequence = sequence;
  request.prompt.assign(static_cast<size_t>(prompt_length), 7);
  request.gen_length = steps;
  return request;
}

struct Removals : DecodeObserver {
  std::vector<int64_t> slots;
  int64_t passes = 0;
  void on_pass(const PassResult& /*result*/) override { ++passes; }
  void on_remove(int64_t slot) override { slots.push_back(slot); }
};

/// What a run over three sequences of 2 + 1 + 2 prefill passes says when it is interrupted at the
/// time of a pass; 0: never.
struct CountedRun {
  explicit CountedRun(int64_t limit) {
    const std::vector<DecodeRequest> requests{request_of(0, 3, 1), request_of(1, 2, 0),
                                              request_of(2, 4, 3)};
    DecodeCallbacks callbacks;
    callbacks.observer = &observer;
    callbacks.interrupted = [&] {
      ++asked;
      return next_pass == limit;
    };
    callbacks.on_finished = [&](const DecodeOutcome& outcome) { told.push_back(outcome.sequence); };
    CountdownLoop loop(requests, next_pass, callbacks);
    outcomes = in_request_order(loop.run(), requests);
    left = loop.left;
  }

  FinishReason reason(size_t sequence) const { return outcomes[sequence].reason; }

  Removals observer;
  int64_t next_pass = 0;
  int64_t asked = 0;
  std::vector<int64_t> told;
  std::vector<std::string> left;
  std::vector<DecodeOutcome> outcomes;
};

TEST(SlotLoop, TakesSequencesOutWhenTheyEndAndAsksAfterEveryPass) {
  const CountedRun run(0);
  EXPECT_EQ(run.next_pass, 5 + 3);
  EXPECT_EQ(run.asked, run.next_pass);
  EXPECT_EQ(run.observer.passes, 5);  // a step reports its own
  EXPECT_EQ(run.told, (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(run.left, (std::vector<std::string>{"012:1", "02:0", "2:0"}));
  EXPECT_EQ(run.observer.slots, (std::vector<int64_t>{1, 0, 0}));
  for (const DecodeOutcome& outcome : run.outcomes) {
    EXPECT_EQ(outcome.reason, FinishReason::length);
    EXPECT_EQ(outcome.generated.front(), outcome.sequence == 0 ? 1 : outcome.sequence == 1 ? 0 : 3);
  }
}

TEST(SlotLoop, AnInterruptEndsWhatHasNotEnded) {
  for (const int64_t limit : {1, 2, 3, 5, 6, 7}) {
    SCOPED_TRACE(limit);
    const CountedRun run(limit);
    EXPECT_EQ(run.next_pass, limit);
    EXPECT_EQ(run.asked, limit);
    EXPECT_EQ(run.reason(1), FinishReason::length);  // had ended before
    EXPECT_EQ(run.reason(0), limit < 6 ? FinishReason::interrupted : FinishReason::length);
    EXPECT_EQ(run.reason(2), FinishReason::interrupted);
    EXPECT_EQ(run.told.size(), 3U);
    EXPECT_EQ(run.left.size(), limit < 6 ? 1U : 2U);  // the slots of the others are not needed
    EXPECT_EQ(run.observer.slots.size(), run.left.size());
  }
}

}  // namespace
}  // namespace blockscope
