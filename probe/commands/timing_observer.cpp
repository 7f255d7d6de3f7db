#include "probe/commands/timing_observer.h"

namespace blockscope {

void TimingObserver::on_pass(const PassResult& result) {
  ForwardingObserver::on_pass(result);
  bool denoises = false;
  for (size_t s = 0; s < result.context.sequences.size(); ++s) {
    if (result.context.sequences[s].kind == PassKind::prefill) {
      timing_.prefill =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
      return;
    }
    denoises = denoises || result.context.sequences[s].kind == PassKind::denoise;
    timing_.tokens += result.decisions[s].net_tokens();
  }
  constexpr double kSecond = 1e-9;
  timing_.deciding += static_cast<double>(result.deciding_ns) * kSecond;
  timing_.attention += static_cast<double>(result.attention_ns) * kSecond;
  timing_.forward += static_cast<double>(result.pass_ns - result.deciding_ns) * kSecond;
  ++timing_.block_passes;
  timing_.denoising_passes += denoises ? 1 : 0;
}

}  // namespace blockscope
