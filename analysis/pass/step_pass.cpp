#include "analysis/pass/step_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "analysis/pass/damage.h"
#include "analysis/pass/late_reader.h"
#include "analysis/pass/layer_queue.h"
#include "analysis/pass/step_reader.h"
#include "analysis/pass/step_values.h"
#include "analysis/pass/task_view.h"
#include "decode_record/base/cores.h"

namespace blockscope {
namespace {

// Enough to keep all workers busy. More would only push arrays out of the CPU's cache.
constexpr std::size_t kQueueBytes = std::size_t{8} << 20U;
// Limits of one hand-over, because waking a worker costs time: bytes of layers' arrays, bytes that
// all layers of the steps in a run share, and tasks.
constexpr std::size_t kBatchBytes = std::size_t{1} << 20U;
constexpr std::size_t kRunSharedBytes = std::size_t{4} << 20U;
constexpr std::size_t kRunTasks = 2048;
// Bytes that the system is asked to read in advance. Enough for a disk with many parallel requests;
// many more made it slower.
constexpr std::size_t kStepBytesAhead = std::size_t{16} << 20U;
constexpr std::size_t kMostStepsAhead = 64;
constexpr auto kProgressInterval = std::chrono::milliseconds(50);

using Metrics = std::vector<std::unique_ptr<StepMetric>>;

/// The values of only those fields that a later step needs.
LayerValues keep(const LayerValues& values, const std::vector<bool>& slots) {
  if (std::ranges::find(slots, true) == slots.end()) return nullptr;
  if (std::ranges::find(slots, false) == slots.end()) return values;
  auto kept = std::make_shared<std::vector<OwnedView>>(values->size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i]) (*kept)[i] = (*values)[i];
  }
  return kept;
}

class Progress {
 public:
  Progress(const PassOptions& options, std::int64_t total) : options_(options), total_(total) {}
  /// Throws InterruptedError when the caller wants to stop.
  void add(std::int64_t rows) {
    done_ += rows;
    const auto now = std::chrono::steady_clock::now();
    if (!options_.progress || (now < next_ && done_ < total_)) return;
    next_ = now + kProgressInterval;
    if (!options_.progress(done_, total_)) throw InterruptedError("the analysis was stopped");
  }

 private:
  const PassOptions& options_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
  std::chrono::steady_clock::time_point next_;
};

/// The pass over one trace.
class TracePass {
 public:
  TracePass(const TraceReader& trace, const std::vector<Needs>& needs, BufferPool& pool,
            LateReader& late, std::vector<std::size_t> layers, std::size_t memory_bytes)
      : plan_owner_(std::make_shared<const FieldPlan>(needs)),
        plan_(*plan_owner_),
        reader_(trace, plan_, pool),
        late_(late),
        layers_(std::move(layers)) {
    const std::vector<bool> all(plan_.fields.size(), true);
    layer_bytes_ = reader_.layer_bytes(all);
    const auto held = [&](auto bytes_of) {
      return bytes_of(all) + bytes_of(plan_.previous) + bytes_of(plan_.first) +
             plan_.rules.size() * bytes_of(plan_.source);
    };
    const std::size_t shared = held([&](const auto& slots) { return reader_.shared_bytes(slots); });
    const std::size_t layer = held([&](const auto& slots) { return reader_.layer_bytes(slots); });
    if (shared + layer > memory_bytes / 2) {
      const std::size_t smallest = (2 * (shared + layer) + (1U << 20U) - 1) >> 20U;
      throw UsageError(fmt::format(
          "memory: expected at least {} MiB for one layer of {} and the steps it is compared with, "
          "got {} MiB. HINT: --memory {}, or fewer metrics at a time (--metric)",
          smallest, trace.info().path, memory_bytes >> 20U, smallest));
    }
    const std::size_t room = memory_bytes / 2 - shared;
    group_ = std::clamp<std::size_t>(layer == 0 ? layers_.size() : room / layer, 1,
                                     std::max<std::size_t>(layers_.size(), 1));
    shared_bytes_ = reader_.shared_bytes(all);
    steps_ahead_ = std::clamp<std::size_t>(
        kStepBytesAhead / std::max<std::size_t>(shared_bytes_, 1), 1, kMostStepsAhead);
  }

  /// All recorded steps of a block, with as many layers at a time as fit in memory.
  void run(const BlockSteps& block, LayerQueue& queue) {
    for (std::size_t first = 0; first < layers_.size(); first += group_) {
      run_group(block, std::span(layers_).subspan(first, std::min(group_, layers_.size() - first)),
                queue);
    }
  }

 private:
  /// The values that a layer keeps from earlier steps of the block.
  struct History {
    LayerValues previous, first;
    ValidPositions previous_valid, first_valid;
    std::vector<LayerValues> sources;
    std::vector<ValidPositions> source_valid;
  };
  /// The steps of those values.
  struct Steps {
    const StepRef* previous = nullptr;
    const StepRef* first = nullptr;
    std::vector<const StepRef*> sources;
  };

  void run_group(const BlockSteps& block, std::span<const std::size_t> layers, LayerQueue& queue) {
    std::vector<History> history(layers.size());
    for (History& layer : history) {
      layer.sources.resize(plan_.rules.size());
      layer.source_valid.resize(plan_.rules.size());
    }
    Steps steps;
    steps.sources.resize(plan_.rules.size());
    std::vector<ReuseCounter> counters(plan_.rules.begin(), plan_.rules.end());
    std::vector<bool> reuses(counters.size());
    std::int32_t expected = 1;
    Ahead ahead(block.steps);
    for (std::size_t i = 0; i < steps_ahead_; ++i) {
      const StepRef* later = ahead.next();
      if (later == nullptr) break;
      reader_.prefetch(later->row);
    }
    for (const StepRef& step : block.steps) {
      if (step.step != expected) forget(steps, history, std::vector<bool>(reuses.size()));
      expected = step.step + 1;
      for (std::size_t i = 0; i < counters.size(); ++i) {
        reuses[i] = counters[i].reuses(step.step, step.changed, step.decided);
      }
      if (step.recorded) {
        run_step(step, layers, ahead.next(), reuses, steps, history, queue);
      } else {
        forget(steps, history, reuses);
      }
    }
    hand_over(queue);
  }

  /// Iterates over the recorded steps of a block.
  class Ahead {
   public:
    explicit Ahead(const std::vector<StepRef>& steps) : at_(steps.begin()), end_(steps.end()) {}
    const StepRef* next() {
      at_ = std::find_if(at_, end_, [](const StepRef& step) { return step.recorded; });
      return at_ == end_ ? nullptr : &*at_++;
    }

   private:
    std::vector<StepRef>::const_iterator at_, end_;
  };

  /// After a step without arrays, there is no previous step, and its recomputed values are unknown.
  static void forget(Steps& steps, std::vector<History>& history,
                     const std::vector<bool>& reuses) {
    steps.previous = nullptr;
    for (std::size_t i = 0; i < steps.sources.size(); ++i) {
      if (!reuses[i]) steps.sources[i] = nullptr;
    }
    for (History& layer : history) {
      layer.previous = nullptr;
      layer.previous_valid = nullptr;
      for (std::size_t i = 0; i < layer.sources.size(); ++i) {
        if (reuses[i]) continue;
        layer.sources[i] = nullptr;
        layer.source_valid[i] = nullptr;
      }
    }
  }

  void run_step(const StepRef& step, std::span<const std::size_t> layers, const StepRef* later,
                const std::vector<bool>& reuses, Steps& steps, std::vector<History>& history,
                LayerQueue& queue) {
    if (later != nullptr) reader_.prefetch(later->row);
    reader_.seek(step.row);
    auto context = std::make_shared<StepContext>();
    context->plan = plan_owner_;
    context->now = &step;
    if (step.step == 1) steps.first = &step;
    for (std::size_t i = 0; i < plan_.rules.size(); ++i) {
      if (!reuses[i]) steps.sources[i] = &step;
    }
    context->previous = steps.previous;
    context->first = steps.first;
    context->sources = steps.sources;
    context->reuses = reuses;
    steps.previous = &step;
    pending_.runs.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      StepTask next = task(context, layers[i], step.step == 1, reuses, history[i]);
      pending_.bytes += next.bytes;
      next.bytes += shared_bytes_ / layers.size();
      pending_.runs[i].push_back(std::move(next));
      if (pending_.bytes >= kBatchBytes) hand_over(queue);
    }
    pending_.shared_bytes += shared_bytes_;
    pending_.tasks += layers.size();
    if (pending_.shared_bytes >= kRunSharedBytes || pending_.tasks >= kRunTasks) hand_over(queue);
  }

  /// Layer by layer: a step is compared with the previous one while both are in the CPU's cache.
  void hand_over(LayerQueue& queue) {
    for (const LayerQueue::Run& run : pending_.runs) {
      for (const StepTask& task : run) late_.expect(*task.now);
    }
    const std::size_t layers = pending_.runs.size();
    queue.push(std::exchange(pending_, {}).runs);
    pending_.runs.resize(layers);
  }

  StepTask task(const std::shared_ptr<const StepContext>& context, std::size_t layer, bool first,
                const std::vector<bool>& reuses, History& history) {
    StepTask task;
    task.context = context;
    task.layer = layer;
    task.now = reader_.layer(layer);
    task.valid = reader_.valid(layer);
    task.previous_valid = std::exchange(history.previous_valid, task.valid);
    if (first) history.first_valid = task.valid;
    task.first_valid = history.first_valid;
    for (const OwnedView& value : *task.now) {
      if (value.late) task.late_bytes += value.late->place.bytes;
    }
    task.bytes = layer_bytes_ - task.late_bytes;
    task.previous = std::move(history.previous);
    history.previous = keep(task.now, plan_.previous);
    if (first) history.first = keep(task.now, plan_.first);
    task.first = history.first;
    if (!plan_.rules.empty()) {
      const LayerValues kept = keep(task.now, plan_.source);
      for (std::size_t i = 0; i < plan_.rules.size(); ++i) {
        if (reuses[i]) continue;
        history.sources[i] = kept;
        history.source_valid[i] = task.valid;
      }
      task.sources = history.sources;
      task.source_valid = history.source_valid;
    }
    return task;
  }

  std::shared_ptr<const FieldPlan> plan_owner_;  // tasks may outlive this pass after an error
  const FieldPlan& plan_;
  StepReader reader_;
  LateReader& late_;
  std::vector<std::size_t> layers_;
  std::size_t layer_bytes_ = 0;
  std::size_t shared_bytes_ = 0;
  std::size_t group_ = 1;
  std::size_t steps_ahead_ = 1;
  /// Tasks that were not handed over yet.
  struct Pending {
    std::vector<LayerQueue::Run> runs;  // per layer
    std::size_t bytes = 0;              // bytes of the read arrays of layers
    std::size_t shared_bytes = 0;
    std::size_t tasks = 0;
  };
  Pending pending_;
};

std::vector<std::size_t> layer_slots(const TraceShape& shape, const PassOptions& options) {
  std::vector<std::size_t> slots(shape.layers.size());
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  if (!options.layers) return slots;
  slots.clear();
  for (const std::int64_t layer : *options.layers) {
    const auto found = std::ranges::find(shape.layers, layer);
    if (found == shape.layers.end()) {
      throw UsageError(fmt::format("layer {} was not recorded; the trace has {}", layer,
                                   fmt::join(shape.layers, ", ")));
    }
    slots.push_back(static_cast<std::size_t>(found - shape.layers.begin()));
  }
  std::ranges::sort(slots);
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

std::int64_t count_recorded(const std::vector<std::vector<BlockSteps>>& blocks) {
  std::int64_t rows = 0;
  for (const auto& trace : blocks) {
    for (const BlockSteps& block : trace) {
      rows += std::ranges::count_if(block.steps, &StepRef::recorded);
    }
  }
  return rows;
}

void keep_layers(MetricResult& result, const std::vector<std::int64_t>& layers) {
  const std::vector<double> wanted(layers.begin(), layers.end());
  for (ResultArray& array : result.arrays) {
    if (array.has_axis("layer")) array = select(array, "layer", wanted);
  }
}

}  // namespace

std::vector<MetricResult> run_pass(const TraceGroup& traces, const Metrics& metrics,
                                   const PassOptions& options) {
  const TraceShape& shape = traces.shape();
  const std::vector<std::size_t> layers = layer_slots(shape, options);
  std::vector<std::vector<BlockSteps>> blocks;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    blocks.push_back(list_blocks(traces.trace(i), options.rows));
  }
  Progress progress(options, count_recorded(blocks));
  BufferPool pool;
  LateReader late(pool);
  const std::size_t threads = options.threads != 0 ? options.threads : available_cores();
  LayerQueue queue(shape.layers.size(), threads, std::min(options.memory_bytes / 2, kQueueBytes),
                   [&](const StepTask& task) {
                     late.read(*task.now);
                     const TaskView view(task);
                     for (const auto& metric : metrics) metric->add(view);
                   });
  for (std::size_t i = 0; i < traces.size(); ++i) {
    naming_damage(traces.trace(i).info().path, [&] {
      std::vector<Needs> needs;
      for (const auto& metric : metrics) {
        needs.push_back(metric->begin_trace(traces.trace(i), shape));
      }
      for (const BlockSteps& block : blocks[i]) {
        for (const auto& metric : metrics) metric->add_block(block);
      }
      TracePass pass(traces.trace(i), needs, pool, late, layers, options.memory_bytes);
      for (const BlockSteps& block : blocks[i]) {
        pass.run(block, queue);
        progress.add(std::ranges::count_if(block.steps, &StepRef::recorded));
      }
      queue.drain();
    });
  }
  std::vector<MetricResult> results;
  for (const auto& metric : metrics) {
    results.push_back(metric->finish());
    if (options.layers) keep_layers(results.back(), *options.layers);
  }
  return results;
}

}  // namespace blockscope
