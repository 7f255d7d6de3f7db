// What `bench` times of a run, while the run is recorded or not.
#pragma once

#include <chrono>

#include "probe/commands/bench_report.h"
#include "probe/decode/forwarding_observer.h"

namespace blockscope {

/// Hands everything to the recorder, if there is one, adds the passes up, and notes when the
/// prefill ended. Begins to count when it is made.
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
