#include "probe/record/late_recorder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <utility>

#include "decode_record/base/cores.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {

PassResult with_context(const PassResult& result, const PassContext& context) {
  return {context,          result.length,       result.start,     result.computed_rows,
          result.pass_ns,   result.attention_ns, result.decisions, result.work,
          result.rows_read, result.deciding_ns};
}

}  // namespace

bool records_late(at::Device device) {
  return !device.is_cpu() || std::cmp_less(at::get_num_threads(), available_cores());
}

LateRecorder::LateRecorder(Recorder& recorder, at::Device device)
    : recorder_(recorder), device_(device), counters_(recorder.counters()) {
  if (!device.is_cpu()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  thread_ = std::thread([this] { run(); });
}

LateRecorder::~LateRecorder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LateRecorder::drain() {
  close();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
  rethrow();
}

Recorder::Counters LateRecorder::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::shared_ptr<const PassContext> LateRecorder::kept(const PassContext& context) {
  if (context_ == nullptr || context_->pass != context.pass) {
    context_ = std::make_shared<const PassContext>(context);
  }
  return context_;
}

void LateRecorder::take(const std::vector<at::Tensor*>& tensors) {
  for (const at::Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    open_.bytes += static_cast<int64_t>(tensor->nbytes());
    if (!tensor->is_cpu() && !open_.ready) open_.ready.emplace(device_.type());
  }
}

void LateRecorder::add(Call call) {
  if (failed_) {
    const std::lock_guard lock(mutex_);
    rethrow();
  }
  open_.calls.push_back(std::move(call));
  if (open_.bytes >= kLatePieceBytes) close();
}

void LateRecorder::close() {
  if (open_.calls.empty()) return;
  if (open_.ready) {
    open_.ready->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  Piece piece = std::exchange(open_, {});
  {
    std::unique_lock lock(mutex_);
    const auto room = [&] {
      return failure_ != nullptr || queue_.empty() ||
             (queued_bytes_ + piece.bytes <= kMostLateBytes &&
              queued_passes_ + piece.passes <= kMostLatePasses);
    };
    if (!room()) {
      ++waits_;
      changed_.wait(lock, room);
    }
    rethrow();
    queued_bytes_ += piece.bytes;
    queued_passes_ += piece.passes;
    queue_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

void LateRecorder::rethrow() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void LateRecorder::run() {
  const c10::InferenceMode inference;
  std::optional<SerialScope> serial;
  if (device_.is_cpu()) {  // the other cores decode: one thread for our operators and for torch's
    serial.emplace();
    at::init_num_threads();
#ifdef _OPENMP
    omp_set_num_threads(1);  // of this thread only
#endif
  } else {
    c10::impl::VirtualGuardImpl(device_.type()).uncheckedSetDevice(device_);
  }
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Piece& piece = queue_.front();  // decoding appends after it
    const bool skip = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (!skip) replay(piece);
    } catch (...) {
      failure = std::current_exception();
    }
    piece.calls.clear();  // frees its buffers before the queue has room for more
    lock.lock();
    if (failure != nullptr) {
      failure_ = failure;
      failed_ = true;
    }
    counters_ = recorder_.counters();
    queued_bytes_ -= piece.bytes;
    queued_passes_ -= piece.passes;
    queue_.pop_front();
    changed_.notify_all();
  }
}

void LateRecorder::replay(const Piece& piece) {
  const c10::OptionalStreamGuard guard(stream_);
  if (piece.ready) piece.ready->block(*stream_);
  for (const Call& call : piece.calls) call(recorder_);
  // The decoding stream reuses the memory of these calls once they are gone. The end of a pass has
  // waited for its results, so this waits in the middle of large passes alone.
  if (piece.ready) stream_->synchronize();
}

void LateRecorder::on_attention(const AttentionView& view) {
  if (!recorder_.reads_layer(view.context, view.input.layer)) return;
  AttentionReads reads = recorder_.reads_of(view);
  for (at::Tensor* cached : {&reads.k, &reads.v}) {
    if (cached->defined()) *cached = cached->clone();
  }
  take(reads.computed());
  add([context = kept(view.context), reads = std::move(reads)](Recorder& recorder) {
    recorder.record(*context, reads);
  });
}

void LateRecorder::on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) {
  if (!recorder_.reads_layer(context, layer)) return;
  at::Tensor host = hidden;
  take({&host});
  add([context = kept(context), layer, host](Recorder& recorder) {
    recorder.on_hidden(*context, layer, host);
  });
}

void LateRecorder::on_router(const PassContext& context, int64_t layer,
                             const RouterChoice& choice) {
  if (!recorder_.reads_router(context, layer)) return;
  RouterChoice host = choice;
  take({&host.expert, &host.weight});
  add([context = kept(context), layer, host](Recorder& recorder) {
    recorder.on_router(*context, layer, host);
  });
}

void LateRecorder::on_staleness(const PassContext& context, const Staleness& of_layers) {
  Staleness host = of_layers;
  take({&host.key, &host.value, &host.attention});
  add([context = kept(context), host](Recorder& recorder) {
    recorder.on_staleness(*context, host);
  });
}

void LateRecorder::on_committed_keys(const CommittedKeys& keys) {
  if (!recorder_.reads_keys(keys)) return;
  CommittedKeys host = keys;
  host.key = keys.key.clone();
  host.value = keys.value.clone();
  take({&host.key, &host.value});
  add([host](Recorder& recorder) { recorder.on_committed_keys(host); });
}

void LateRecorder::on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                             const at::Tensor& logits) {
  if (!recorder_.reads_logits(context)) return;
  at::Tensor host = logits;
  take({&host});
  add([context = kept(context), slots, host](Recorder& recorder) {
    recorder.on_logits(*context, slots, host);
  });
}

void LateRecorder::on_masked_logits(const PassContext& context, const std::vector<int64_t>& slots,
                                    const std::vector<std::vector<bool>>& predicted,
                                    const at::Tensor& logits) {
  if (!recorder_.reads_logits(context)) return;
  at::Tensor host = logits;
  take({&host});
  add([context = kept(context), slots, predicted, host](Recorder& recorder) {
    recorder.on_masked_logits(*context, slots, predicted, host);
  });
}

void LateRecorder::on_pass(const PassResult& result) {
  const std::shared_ptr<const PassContext> context = kept(result.context);
  context_.reset();
  open_.passes = 1;
  PassResult host = with_context(result, *context);
  for (LayerWork& work : host.work) take({&work.chosen});
  add([context, host = std::move(host)](Recorder& recorder) { recorder.on_pass(host); });
  close();
}

void LateRecorder::on_remove(int64_t slot) {
  add([slot](Recorder& recorder) { recorder.on_remove(slot); });
}

}  // namespace blockscope
