// Records what is computed on a device without making decoding wait for it: every call queues
// copies to pinned memory on a stream of their own and is remembered; a thread waits for the copies
// and then makes the same calls, in the same order, of a Recorder. That one sees tensors of the
// host alone.
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
#include "probe/record/pinned_pool.h"
#include "probe/record/recorder.h"

namespace blockscope {

/// What is remembered and not recorded yet; where either is reached decoding waits, and goes on
/// when there is room. What is larger than the bytes passes when it is alone.
constexpr int64_t kMostLatePasses = 2;
constexpr int64_t kMostLateBytes = int64_t{256} << 20;
/// A pass with more copies than this is recorded in pieces, while it goes on.
constexpr int64_t kLatePieceBytes = int64_t{32} << 20;

/// While it lives, `recorder` and its writer are the thread's; the caller has them back between
/// drain() and the next call of this observer. What the thread throws is thrown by the next call,
/// and by every one behind it: nothing is recorded any more.
class LateRecorder final : public DecodeObserver {
 public:
  LateRecorder(Recorder& recorder, at::Device device);
  LateRecorder(const LateRecorder&) = delete;
  LateRecorder& operator=(const LateRecorder&) = delete;
  /// Records the passes that ended, as far as the device still works. Never throws.
  ~LateRecorder() override;

  /// Returns when everything is recorded.
  void drain();

  /// Of the passes that are recorded.
  Recorder::Counters counters() const;
  /// How often decoding had to wait for the recorder.
  int64_t waits() const { return waits_; }
  int64_t pinned_bytes() const { return pool_->bytes(); }

  bool wants_every_prediction() const override { return recorder_.wants_every_prediction(); }
  bool wants_logits() const override { return recorder_.wants_logits(); }
  bool looks_inside(const PassContext& context) const override {
    return recorder_.looks_inside(context);
  }
  bool wants_weights(const PassContext& context, int64_t layer) const override {
    return recorder_.wants_weights(context, layer);
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
  /// Calls whose tensors are there when `copied` is reached.
  struct Piece {
    std::vector<Call> calls;
    std::optional<c10::Event> copied;  // none: nothing was
    int64_t bytes = 0;
    int64_t passes = 0;  // that end in it
  };

  std::shared_ptr<const PassContext> kept(const PassContext& context);
  /// Makes copies of tensors of the device; those of the host stay.
  void copy(const std::vector<at::Tensor*>& tensors);
  void add(Call call);
  void close();
  void rethrow() const;  // with mutex_ held
  void run();
  void replay(const Piece& piece);

  Recorder& recorder_;
  const at::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<PinnedPool> pool_ = std::make_shared<PinnedPool>();
  c10::Event ready_;  // of the decoding stream: what is copied next has been computed
  Piece open_;
  std::shared_ptr<const PassContext> context_;  // of the pass that is going on
  std::atomic<int64_t> waits_ = 0;
  std::atomic<bool> failed_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Piece> queue_;  // the first one may be being recorded
  int64_t queued_bytes_ = 0;
  int64_t queued_passes_ = 0;
  Recorder::Counters counters_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace blockscope
