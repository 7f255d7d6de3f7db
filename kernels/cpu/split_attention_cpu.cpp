// One pass over the keys. A task has up to kMaxRows query rows of one KV head (those that need the
// prefix) and one chunk of external keys. It leaves an unfinished
// state per row. Other tasks do the internal keys with their own accumulators. The thread that ends
// the last task of a KV head merges its chunk states, in the order of the keys, into the external
// pair. It then merges the external and internal pairs into `out`.
#include "kernels/cpu/split_attention_cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/cpu/weight_spread.h"

namespace blockscope {
namespace {

// Limits the partial states: only as many sequences run at a time as stay below it.
constexpr int64_t kMaxPartialFloats = int64_t{1} << 24;

// The prefix work of one KV head of one sequence.
struct PrefixJob {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  std::vector<int64_t> rows;           // rows g * T + t that read the prefix, ascending
  int64_t num_rows = 0;                // rows.size()
  int64_t length = 0;                  // number of external keys that it reads
  const int32_t* positions = nullptr;  // [length], ascending; null: keys 0 .. length - 1
  int64_t chunk = 0;                   // keys per chunk
  int64_t num_chunks = 0;
  int64_t first_slot = 0;  // slot of (chunk, row) = first_slot + chunk * num_rows + row
};

struct SplitTask {
  size_t job = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t chunk = 0;  // -1: the internal keys, rows over all heads of the group
};

class SplitAttentionRun {
 public:
  SplitAttentionRun(const TileKernels& kernels, const AttentionSizes& sizes, const at::Tensor& q,
                    const at::Tensor& k_ext, const at::Tensor& v_ext, const at::Tensor& k_in,
                    const at::Tensor& v_in, const ExternalSource& source, double scale,
                    const ExternalWeights* kept, const SpreadFiller* spread,
                    SourcedAttention& result)
      : kernels_(kernels),
        sizes_(sizes),
        element_(element_of(q)),
        q_(q),
        k_ext_(k_ext),
        v_ext_(v_ext),
        k_in_(k_in),
        v_in_(v_in),
        internal_keys_(k_in.size(2)),
        scale_(static_cast<float>(scale)),
        kept_(kept),
        spread_(spread),
        cached_external_(floats_of(source.cached_external)),
        cached_lse_(floats_of(source.cached_lse)),
        reads_values_(source.values),
        residual_(floats_of(source.residual)),
        lse_residual_(floats_of(source.lse_residual)),
        out_(result.out.mutable_data_ptr()),
        external_(result.external.mutable_data_ptr<float>()),
        lse_external_(result.lse_external.mutable_data_ptr<float>()),
        internal_(result.internal.mutable_data_ptr<float>()),
        lse_internal_(result.lse_internal.mutable_data_ptr<float>()) {}

  // The jobs of whole sequences [begin, end), every KV head once and in order.
  void run(const std::vector<PrefixJob>& jobs, int64_t num_slots) {
    partial_ = at::empty({num_slots * (sizes_.dim + 4)}, at::kFloat);
    partial_output_ = partial_.mutable_data_ptr<float>();
    partial_max_ = partial_output_ + num_slots * sizes_.dim;
    partial_sum_ = partial_max_ + num_slots;
    partial_energy_ = partial_sum_ + num_slots;
    partial_largest_ = partial_energy_ + num_slots;
    if (spread_ != nullptr) follow_spread(jobs);
    std::vector<SplitTask> tasks;
    std::vector<std::atomic<int64_t>> open_tasks(jobs.size());
    const auto add_tasks = [&](size_t job, int64_t num_rows, int64_t chunk) {
      for (int64_t row = 0; row < num_rows; row += kMaxRows) {
        tasks.push_back({job, row, std::min(row + kMaxRows, num_rows), chunk});
        ++open_tasks[job];
      }
    };
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (int64_t chunk = 0; chunk < jobs[j].num_chunks; ++chunk) {
        add_tasks(j, jobs[j].num_rows, chunk);
      }
    }
    // Short jobs last, so the end times of the threads differ by at most one short job.
    for (size_t j = 0; j < jobs.size(); ++j) add_tasks(j, sizes_.group * sizes_.queries, -1);
    parallel_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      const SplitTask& task = tasks[static_cast<size_t>(i)];
      const PrefixJob& job = jobs[task.job];
      task.chunk < 0 ? attend_internal(job, task) : attend_chunk(job, task);
      if (--open_tasks[task.job] > 0) return;
      for (int64_t g = 0; g < sizes_.group; ++g) {
        const int64_t head = job.kv_head * sizes_.group + g;
        if (spread_ == nullptr) {
          finish_head(job, head, nullptr);
        } else {
          finish_head(job, head, job_spreads_[task.job].lse + g * sizes_.queries);
          fill_spread(job, job_spreads_[task.job], head);
        }
      }
    });
  }

 private:
  static const float* floats_of(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
  }

  /// Among the job's rows, the first from row `in_group` of the group on.
  static int64_t first_row_at(const PrefixJob& job, int64_t in_group) {
    return std::lower_bound(job.rows.begin(), job.rows.end(), in_group) - job.rows.begin();
  }

  int64_t output_row(int64_t sequence, int64_t head, int64_t t) const {
    return (sequence * sizes_.heads + head) * sizes_.queries + t;
  }

  /// What the spread needs of one job: copied tiles, and the states of the internal keys.
  struct JobSpread {
    std::vector<int64_t> ends;
    TileCopies external, internal;
    float* states = nullptr;  // [4, G * T]: max, sum, energy, largest of the internal keys
    float* lse = nullptr;     // [G * T] of all keys
  };

  void follow_spread(const std::vector<PrefixJob>& jobs) {
    const int64_t rows = sizes_.group * sizes_.queries;
    constexpr int64_t kFloatsPerRow = kTileKeys + kMaxLanes + 1;
    int64_t floats = 0;
    job_spreads_.clear();
    for (const PrefixJob& job : jobs) {
      JobSpread& of_job = job_spreads_.emplace_back();
      of_job.ends = spread_->ends_among(job.sequence, job.positions, job.length);
      of_job.external.tiles = SpreadFiller::tiles_of(of_job.ends, job.length);
      of_job.external.stride = job.num_rows;
      of_job.internal.tiles = spread_->internal_tiles();
      of_job.internal.stride = rows;
      for (const TileCopies* copies : {&of_job.external, &of_job.internal}) {
        floats += std::ssize(copies->tiles) * copies->stride * kFloatsPerRow;
      }
      floats += 5 * rows;
    }
    // Kept between calls, because fresh pages cost more than the rest of the spread.
    thread_local std::vector<float> memory;
    if (std::ssize(memory) < floats) memory.resize(static_cast<size_t>(floats));
    float* next = memory.data();
    for (JobSpread& of_job : job_spreads_) {
      for (TileCopies* copies : {&of_job.external, &of_job.internal}) {
        const int64_t copied_rows = std::ssize(copies->tiles) * copies->stride;
        copies->weights = std::exchange(next, next + copied_rows * kTileKeys);
        copies->sums = std::exchange(next, next + copied_rows * kMaxLanes);
        copies->max = std::exchange(next, next + copied_rows);
      }
      of_job.states = std::exchange(next, next + 4 * rows);
      of_job.lse = std::exchange(next, next + rows);
    }
  }

  void fill_spread(const PrefixJob& job, const JobSpread& of_job, int64_t head) const {
    const int64_t rows = sizes_.group * sizes_.queries;
    const int64_t in_group = (head - job.kv_head * sizes_.group) * sizes_.queries;
    const int64_t target = output_row(job.sequence, head, 0);
    const float* states = of_job.states + in_group;
    SideStates internal;
    internal.copies = &of_job.internal;
    internal.first_row = in_group;
    internal.num_keys = internal_keys_;
    internal.lse = lse_internal_ + target;
    internal.chunks.push_back({states, states + rows, states + 2 * rows, states + 3 * rows, 0,
                               std::ssize(of_job.internal.tiles)});
    SideStates external;
    const int64_t first_row = first_row_at(job, in_group);
    if (first_row_at(job, in_group + sizes_.queries) - first_row == sizes_.queries) {
      external.copies = &of_job.external;
      external.first_row = first_row;
      external.num_keys = job.length;
      external.lse = lse_external_ + target;
      for (int64_t chunk = 0; chunk < job.num_chunks; ++chunk) {
        const int64_t slot = job.first_slot + chunk * job.num_rows + external.first_row;
        external.chunks.push_back(
            {partial_max_ + slot, partial_sum_ + slot, partial_energy_ + slot,
             partial_largest_ + slot, chunk * job.chunk / kTileKeys,
             (std::min((chunk + 1) * job.chunk, job.length) + kTileKeys - 1) / kTileKeys});
      }
    }
    spread_->fill(job.sequence, head, external, of_job.ends, internal, of_job.lse + in_group);
  }

  void attend_chunk(const PrefixJob& job, const SplitTask& task) {
    RowTile tile(kernels_, element_, task.row_end - task.row_begin, sizes_.dim);
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const int64_t in_group = job.rows[static_cast<size_t>(row)];
      const int64_t head = job.kv_head * sizes_.group + in_group / sizes_.queries;
      tile.set_query(row - task.row_begin, q_.at(job.sequence, head, in_group % sizes_.queries));
    }
    KeyRange keys = key_range(k_ext_, v_ext_, job.sequence, job.kv_head);
    if (!reads_values_) keys.values = nullptr;
    const int64_t begin = task.chunk * job.chunk;
    const int64_t end = std::min(begin + job.chunk, job.length);
    if (kept_ != nullptr) {
      const int64_t tiles = kept_->max.size(2);
      const int64_t rows = sizes_.group * sizes_.queries;
      const int64_t first =
          (job.sequence * sizes_.kv_heads + job.kv_head) * tiles * rows + task.row_begin;
      tile.keep_weights(kept_->weight.mutable_data_ptr<float>() + first * kTileKeys,
                        kept_->max.mutable_data_ptr<float>() + first, rows);
    }
    if (spread_ != nullptr) {
      tile.follow_spread(job_spreads_[task.job].external, task.row_begin, begin / kTileKeys);
    }
    if (job.positions == nullptr) {
      tile.attend(keys, begin, end, scale_);
    } else {
      attend_gathered(tile, keys, job.positions + begin, end - begin);
    }
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const AttentionPart state = tile.row_state(row - task.row_begin);
      const int64_t slot = job.first_slot + task.chunk * job.num_rows + row;
      std::copy_n(state.output, sizes_.dim, partial_output_ + slot * sizes_.dim);
      partial_max_[slot] = state.max;
      partial_sum_[slot] = state.sum;
    }
    if (spread_ != nullptr) {
      const int64_t slot = job.first_slot + task.chunk * job.num_rows + task.row_begin;
      tile.row_spreads(partial_energy_ + slot, partial_largest_ + slot);
    }
  }

  // Uses the same tiles as a whole range of `count` keys, so a set of neighbouring keys gives the
  // same bits as their range.
  void attend_gathered(RowTile& tile, const KeyRange& keys, const int32_t* positions,
                       int64_t count) {
    const int64_t row_bytes = sizes_.dim * element_bytes(element_);
    std::vector<char> rows(static_cast<size_t>(2 * kTileKeys * row_bytes));
    char* const key_rows = rows.data();
    char* const value_rows = key_rows + kTileKeys * row_bytes;
    for (int64_t first = 0; first < count; first += kTileKeys) {
      const int32_t* at = positions + first;
      const int64_t num = std::min(kTileKeys, count - first);
      if (at[num - 1] - at[0] == num - 1) {  // neighbouring keys, such as a page's: no copy
        tile.attend(keys, at[0], at[0] + num, scale_);
        continue;
      }
      for (int64_t i = 0; i < num; ++i) {
        std::copy_n(keys.keys + at[i] * keys.key_stride, row_bytes, key_rows + i * row_bytes);
        std::copy_n(keys.values + at[i] * keys.value_stride, row_bytes, value_rows + i * row_bytes);
      }
      tile.attend({key_rows, value_rows, row_bytes, row_bytes}, 0, num, scale_);
    }
  }

  void attend_internal(const PrefixJob& job, const SplitTask& task) {
    RowTile tile(kernels_, element_, task.row_end - task.row_begin, sizes_.dim);
    const int64_t first_head = job.kv_head * sizes_.group;
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      tile.set_query(row - task.row_begin,
                     q_.at(job.sequence, first_head + row / sizes_.queries, row % sizes_.queries));
    }
    if (spread_ != nullptr) {
      tile.follow_spread(job_spreads_[task.job].internal, task.row_begin, 0);
    }
    tile.attend(key_range(k_in_, v_in_, job.sequence, job.kv_head), 0, internal_keys_, scale_);
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const AttentionPart state = tile.row_state(row - task.row_begin);
      if (spread_ != nullptr) {
        float* const states = job_spreads_[task.job].states + row;
        states[0] = state.max;
        states[sizes_.group * sizes_.queries] = state.sum;
      }
      const int64_t target =
          output_row(job.sequence, first_head + row / sizes_.queries, row % sizes_.queries);
      lse_internal_[target] = merge_parts(&state, 1, sizes_.dim, internal_ + target * sizes_.dim);
    }
    if (spread_ != nullptr) {
      const int64_t rows = sizes_.group * sizes_.queries;
      float* const states = job_spreads_[task.job].states + task.row_begin;
      tile.row_spreads(states + 2 * rows, states + 3 * rows);
    }
  }

  /// lse (may be null) receives that of the external and the internal keys, [T].
  void finish_head(const PrefixJob& job, int64_t head, float* lse) {
    const int64_t dim = sizes_.dim;
    const int64_t in_group = (head - job.kv_head * sizes_.group) * sizes_.queries;
    int64_t row = first_row_at(job, in_group);  // the next one that reads the prefix
    std::vector<AttentionPart> chunks(static_cast<size_t>(job.num_chunks));
    std::vector<float> merged(static_cast<size_t>(dim));
    for (int64_t t = 0; t < sizes_.queries; ++t) {
      const int64_t target = output_row(job.sequence, head, t);
      float* external = external_ + target * dim;
      if (row == job.num_rows || job.rows[static_cast<size_t>(row)] != in_group + t) {
        std::copy_n(cached_external_ + target * dim, dim, external);
        lse_external_[target] = cached_lse_[target];
      } else {
        for (int64_t chunk = 0; chunk < job.num_chunks; ++chunk) {
          const int64_t slot = job.first_slot + chunk * job.num_rows + row;
          chunks[static_cast<size_t>(chunk)] = {partial_output_ + slot * dim, partial_max_[slot],
                                                partial_sum_[slot]};
        }
        lse_external_[target] = merge_parts(chunks.data(), job.num_chunks, dim, external);
        ++row;
      }
      AttentionPart parts[3] = {{external, lse_external_[target], 1.0f},
                                {internal_ + target * dim, lse_internal_[target], 1.0f}};
      if (residual_ != nullptr) {
        parts[2] = {residual_ + target * dim, lse_residual_[target], 1.0f};
        if (lse != nullptr) lse[t] = merge_parts(parts, 2, dim, merged.data());
      }
      const float all = merge_parts(parts, residual_ != nullptr ? 3 : 2, dim, merged.data());
      if (lse != nullptr && residual_ == nullptr) lse[t] = all;
      // [S, T, H, D], because the output projection takes a token's heads together.
      const int64_t token_head = (job.sequence * sizes_.queries + t) * sizes_.heads + head;
      store_rounded(merged.data(), dim, element_, out_, token_head * dim);
    }
  }

  const TileKernels& kernels_;
  AttentionSizes sizes_;
  Element element_;
  RawView q_;
  RawView k_ext_;
  RawView v_ext_;
  RawView k_in_;
  RawView v_in_;
  int64_t internal_keys_;
  float scale_;
  const ExternalWeights* kept_;
  const SpreadFiller* spread_;  // null: not asked for
  const float* cached_external_;
  const float* cached_lse_;
  bool reads_values_;
  const float* residual_;
  const float* lse_residual_;
  void* out_;
  float* external_;
  float* lse_external_;
  float* internal_;
  float* lse_internal_;
  at::Tensor partial_;               // owns the memory of the next five
  float* partial_output_ = nullptr;  // [slot, D], unnormalised
  float* partial_max_ = nullptr;     // [slot]
  float* partial_sum_ = nullptr;     // [slot]
  float* partial_energy_ = nullptr;  // [slot], only with spread_
  float* partial_largest_ = nullptr;
  std::vector<JobSpread> job_spreads_;  // by job
};

PrefixJob make_job(const AttentionSizes& sizes, int64_t sequence, int64_t kv_head, int64_t length,
                   const ExternalSource& source) {
  PrefixJob job;
  job.sequence = sequence;
  job.kv_head = kv_head;
  bool reads = false;
  for (int64_t g = 0; g < sizes.group; ++g) {
    const int64_t head = sequence * sizes.heads + kv_head * sizes.group + g;
    const bool reuses = !source.reuse.empty() && source.reuse[static_cast<size_t>(head)];
    reads = reads || !reuses;
    for (int64_t t = 0; t < sizes.queries; ++t) {
      const bool refreshes = !source.refresh.empty() &&
                             source.refresh[static_cast<size_t>(sequence * sizes.queries + t)];
      if (!reuses || refreshes) job.rows.push_back(g * sizes.queries + t);
    }
  }
  job.num_rows = std::ssize(job.rows);
  if (!source.sets.empty()) {
    const KeySet& set = source.sets[static_cast<size_t>(sequence * sizes.kv_heads + kv_head)];
    if (!set.all) {
      job.positions = set.positions.data();
      length = static_cast<int64_t>(set.positions.size());
    }
  }
  job.length = reads || job.num_rows > 0 ? length : 0;
  job.chunk = keys_per_chunk(job.length);
  job.num_chunks = (job.length + job.chunk - 1) / job.chunk;
  return job;
}

}  // namespace

SourcedAttention split_attention_cpu(const TileKernels& kernels, const AttentionSizes& sizes,
                                     const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const std::vector<int64_t>& ext_len,
                                     const at::Tensor& k_in, const at::Tensor& v_in,
                                     const ExternalSource& source, double scale,
                                     ExternalWeights* kept, WeightSpread* spread) {
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  SourcedAttention result;
  result.out = at::empty({sizes.sequences, sizes.queries, sizes.heads, sizes.dim}, q.options())
                   .transpose(1, 2);
  result.external = at::empty(q.sizes(), floats);
  result.lse_external = at::empty(q.sizes().slice(0, 3), floats);
  result.internal = at::empty(q.sizes(), floats);
  result.lse_internal = at::empty(q.sizes().slice(0, 3), floats);
  result.keys_read = at::zeros({sizes.sequences, sizes.kv_heads}, floats.dtype(at::kLong));
  int64_t* keys_read = result.keys_read.mutable_data_ptr<int64_t>();

  if (kept != nullptr) {
    const int64_t tiles = (sizes.external_keys + kTileKeys - 1) / kTileKeys;
    const int64_t rows = sizes.group * sizes.queries;
    kept->weight = at::empty({sizes.sequences, sizes.kv_heads, tiles, rows, kTileKeys}, floats);
    kept->max = at::empty({sizes.sequences, sizes.kv_heads, tiles, rows}, floats);
  }
  std::optional<SpreadFiller> filler;
  if (spread != nullptr) {
    check_spread("attention", *spread, sizes, ext_len, k_in.size(2));
    filler.emplace(kernels, sizes, k_in.size(2), *spread);
  }
  SplitAttentionRun run(kernels, sizes, q, k_ext, v_ext, k_in, v_in, source, scale, kept,
                        filler ? &*filler : nullptr, result);
  std::vector<PrefixJob> jobs;
  int64_t num_slots = 0;
  for (int64_t s = 0; s < sizes.sequences; ++s) {
    for (int64_t kv_head = 0; kv_head < sizes.kv_heads; ++kv_head) {
      PrefixJob job = make_job(sizes, s, kv_head, ext_len[static_cast<size_t>(s)], source);
      job.first_slot = num_slots;
      num_slots += job.num_chunks * job.num_rows;
      keys_read[s * sizes.kv_heads + kv_head] = job.length;
      jobs.push_back(std::move(job));
    }
    if (s + 1 == sizes.sequences || num_slots * sizes.dim >= kMaxPartialFloats) {
      run.run(jobs, num_slots);
      jobs.clear();
      num_slots = 0;
    }
  }
  return result;
}

}  // namespace blockscope
