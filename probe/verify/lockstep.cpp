#include "probe/verify/lockstep.h"
#include "probe/policies/exact_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {

/// Values of the exact run at one layer; `layer` -1: the logits.
struct Item {
  int64_t pass = 0;
  int64_t layer = 0;
  at::Tensor value;
};

/// Passes items from one thread to the other, one at a time and in order.
class Exchange {
 public:
  /// Waits until the last item was taken. False: the other side has stopped.
  bool put(Item item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !item_.has_value() || closed_; });
    if (closed_) return false;
    item_ = std::move(item);
    changed_.notify_all();
    return true;
  }

  /// Waits for an item. nullopt: the other side has stopped.
  std::optional<Item> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return item_.has_value() || closed_; });
    std::optional<Item> item = std::exchange(item_, std::nullopt);
    changed_.notify_all();
    return item;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Item> item_;
  bool closed_ = false;
};

/// The other run has stopped: unwinds the decoder without being an error of its own.
struct Stopped {};

class ExactSide : public DecodeObserver {
 public:
  explicit ExactSide(Exchange& exchange) : exchange_(exchange) {}
  void on_attention(const AttentionView& view) override {
    put({view.context.pass, view.input.layer, merged_output(view.used)});
  }
  void on_logits(const PassContext& context, const std::vector<int64_t>& /*slots*/,
                 const at::Tensor& logits) override {
    put({context.pass, -1, logits});
  }

 private:
  void put(Item item) {
    if (!exchange_.put(std::move(item))) throw Stopped{};
  }
  Exchange& exchange_;
};

class OtherSide : public DecodeObserver {
 public:
  OtherSide(Exchange& exchange, LockstepVisitor& visitor, bool canvas)
      : exchange_(exchange), visitor_(visitor), canvas_(canvas) {}
  void on_pass(const PassResult& result) override {
    const PassContext& context = result.context;
    if (canvas_ && context.sequences.front().kind == PassKind::commit) {
      visitor_.on_unseen_commit(context);
    }
  }
  void on_attention(const AttentionView& view) override {
    visitor_.on_attention(view, take(view.context.pass, view.input.layer));
  }
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits) override {
    visitor_.on_logits(context, slots, logits, take(context.pass, -1));
  }

 private:
  at::Tensor take(int64_t pass, int64_t layer) {
    std::optional<Item> item = exchange_.take();
    if (!item) throw Stopped{};
    if (item->pass != pass || item->layer != layer) {
      throw Error(
          fmt::format("replay: expected pass {}, layer {} of the exact run, got pass {}, "
                      "layer {}: the two runs do not follow one trajectory",
                      pass, layer, item->pass, item->layer));
    }
    return std::move(item->value);
  }

  Exchange& exchange_;
  LockstepVisitor& visitor_;
  const bool canvas_;
};

}  // namespace

at::Tensor merged_output(const AttentionParts& parts) {
  std::vector<at::Tensor> outputs{parts.external, parts.internal};
  std::vector<at::Tensor> lses{parts.lse_external, parts.lse_internal};
  if (parts.residual.defined()) {
    outputs.push_back(parts.residual);
    lses.push_back(parts.lse_residual);
  }
  return merge_attention(outputs, lses).out;
}

bool replay_in_lockstep(const BlockDiffusionModel& exact_model, const BlockDiffusionModel& model,
                        AttentionPolicy& policy, const DecodeOptions& options,
                        const std::vector<DecodeRequest>& requests, LockstepVisitor& visitor,
                        const std::function<bool()>& interrupted) {
  Exchange exchange;
  const auto decode = [&](AttentionPolicy& used, DecodeObserver& observer, bool shadow) {
    DecodeOptions own = options;
    own.shadow = shadow;
    own.graphs = false;  // both runs would have one
    DecodeCallbacks callbacks;
    callbacks.observer = &observer;
    int64_t next_pass = 0;
    std::exception_ptr failure;
    try {
      if (shadow) callbacks.interrupted = interrupted;
      decode_batch(shadow ? model : exact_model, used, own, requests, next_pass, callbacks);
    } catch (const Stopped&) {
    } catch (...) {
      failure = std::current_exception();
    }
    exchange.close();
    return failure;
  };
  std::exception_ptr exact_failure;
  std::thread exact_run([&] {
    const auto exact = make_exact_policy();
    ExactSide side(exchange);
    exact_failure = decode(*exact, side, false);
  });
  OtherSide side(exchange, visitor, options.canvas);
  const std::exception_ptr failure = decode(policy, side, true);
  exact_run.join();
  if (exact_failure) std::rethrow_exception(exact_failure);
  if (failure) std::rethrow_exception(failure);
  return interrupted && interrupted();
}

}  // namespace blockscope
