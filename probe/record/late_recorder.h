// Records without making decoding wait. Every call is queued, and a thread makes the same calls of
// a Recorder in the same order. Tensors are kept, because nobody writes to them later. On a device
// the thread has a stream of its own, which waits for what decoding has queued; there the Recorder
// computes its statistics, and copies only these to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/record/recorder.h"

namespace blockscope {

/// Limits of the queue. When one of them is reached, decoding waits until there is room. A single
/// piece may be larger than the limit of bytes if it is alone in the queue.
constexpr int64_t kMostLatePasses = 2;
constexpr int64_t kMostLateBytes = int64_t{256} << 20;
/// A pass with more bytes of tensors than this is recorded in pieces, while it still runs.
constexpr int64_t kLatePieceBytes = int64_t{32} << 20;

/// Whether a model on this device is recorded late: always on a device, and on the CPU if decoding
/// leaves a core free. Without a free core, the thread would take one from decoding, whose other
/// threads would wait.
bool records_late(at::Device device);

/// While this object lives, `recorder` and its writer belong to the thread. Between drain() and the
/// next call of this observer, the caller may use them. If the thread throws, the next call and
/// every later one throw the same exception, and nothing more is recorded.
class LateRecorder final : public DecodeObserver {
 public:
  LateRecorder(Recorder& recorder, at::Device device);
  LateRecorder(const LateRecorder&) = delete;
  LateRecorder& operator=(const LateRecorder&) = delete;
  /// Records the finished passes, if the device still works. Never throws.
  ~LateRecorder() override;

  /// Returns when everything is recorded.
  void drain();

  /// The counters of the recorded passes.
  Recorder::Counters counters() const;
  /// How often decoding had to wait for the recorder.
  int64_t waits() const { return waits_; }

  bool wants_every_prediction() const override { return recorder_.wants_every_prediction(); }
  bool wants_logits() const override { return recorder_.wants_logits(); }
  bool looks_inside(const PassContext& context) const override {
    return recorder_.looks_inside(context);
  }
  bool wants_weights(const PassContext& context, int64_t layer) const override {
    return recorder_.wants_weights(context, layer);
  }
  std::vector<std::vector<int64_t>> key_ranges(const PassContext& context,
                                               int64_t layer) const override {
    return recorder_.key_ranges(context, layer);
  }
  void on_attention(const AttentionView& view) override;
  void on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) override;
  void on_router(const PassContext& context, int64_t layer, const RouterChoice& choice) override;
  void on_staleness(const PassContext& context, const Staleness& of_layers) override;
  void on_committed_keys(const CommittedKeys& keys) override;
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits) override;
  void on_masked_logits(const PassContext& context, const std::vector<int64_t>& slots,
                        const std::vector<std::vector<bool>>& predicted,
                        const at::Tensor& logits) override;
  void on_pass(const PassResult& result) override;
  void on_remove(int64_t slot) override;

 private:
  using Call = std::function<void(Recorder&)>;
  /// Calls whose tensors are computed once `ready` has happened.
  struct Piece {
    std::vector<Call> calls;
    std::optional<c10::Event> ready;  // on the decoding stream; none: no tensor of a device
    int64_t bytes = 0;                // of its tensors
    int64_t passes = 0;               // number of passes that end in this piece
  };

  std::shared_ptr<const PassContext> kept(const PassContext& context);

  /// Tensors that the open piece keeps until the thread's work on them has ended.
  void take(const std::vector<at::Tensor*>& tensors);
  void add(Call call);
  void close();
  void rethrow() const;  // with mutex_ held
  void run();
  void replay(const Piece& piece);

  Recorder& recorder_;
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // the thread's; none on the CPU
  Piece open_;
  std::shared_ptr<const PassContext> context_;  // context of the current pass
  std::atomic<int64_t> waits_ = 0;
  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Piece> queue_;  // the thread may be recording the first one
  int64_t queued_bytes_ = 0;
  int64_t queued_passes_ = 0;
  Recorder::Counters counters_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace blockscope
