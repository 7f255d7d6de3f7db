// Takes the times of a run for `bench`, with or without a recorder.
#pragma once

#include <chrono>

#include "probe/commands/bench_report.h"
#include "probe/decode/forwarding_observer.h"

namespace blockscope {

/// Adds up the passes and notes when the prefill ended; the clock starts at construction. Forwards
/// everything to the recorder, if there is one.
class TimingObserver : public ForwardingObserver {
 public:
  TimingObserver(DecodeObserver* recorder, Timing& timing)
      : ForwardingObserver(recorder), timing_(timing), begin_(std::chrono::steady_clock::now()) {}

  void on_pass(const PassResult& result) override;

 private:
  Timing& timing_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace blockscope
