// split_attention and related operators on a device.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kSplit = "split_attention";
constexpr const char* kReuse = "reuse_attention";
constexpr const char* kGather = "gather_attention";
constexpr const char* kUnselected = "unselected_attention";

// Sources of the external pairs other than the whole prefix: members of SplitCall as contiguous
// tensors on the device. Undefined if the call has none.
struct DeviceSource {
  at::Tensor reuse;  // [S, H] bool
  at::Tensor rows;   // [S, K, 1 + 2 * G * T] int32
  at::Tensor cached_external;
  at::Tensor cached_lse;
  at::Tensor positions;  // [S, K, capacity] int32
  at::Tensor counts;     // [S, K] int32
  at::Tensor residual;
  at::Tensor lse_residual;
  // The KV heads that read the whole prefix, if a library may do that.
  std::optional<std::vector<HeadRun>> runs;
};

void check_limits(const char* op, const AttentionSizes& sizes, int64_t internal_keys) {
  check_device_dim(op, sizes.dim);
  for (const int64_t size : {sizes.external_keys, internal_keys, sizes.group * sizes.queries}) {
    TORCH_CHECK(size <= std::numeric_limits<int32_t>::max() / 2, op,
                ": expected at most 2^30 - 1 keys or rows on a GPU, got ", size);
  }
}

// Checked arguments of one operator.
struct Arguments {
  const char* op = "";
  AttentionSizes sizes;
  std::vector<int64_t> lengths;
  at::Tensor q, k_ext, v_ext, k_in, v_in;
  double scale = 1.0;
};

Arguments check_arguments(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                          const at::Tensor& v_ext, const at::Tensor& ext_len,
                          const at::Tensor& k_in, const at::Tensor& v_in, double scale) {
  check_query(op, q, q.device());
  const AttentionSizes sizes = check_split_attention(op, q, k_ext, v_ext, k_in, v_in, q.device());
  check_limits(op, sizes, k_in.size(2));
  return {op,   sizes, check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys),
          q,    k_ext, v_ext,
          k_in, v_in,  scale};
}

// SplitCall::rows on the CPU.
at::Tensor rows_that_read(const std::vector<bool>& reuse, const std::vector<bool>& refresh,
                          const AttentionSizes& sizes) {
  const int64_t in_group = sizes.group * sizes.queries;
  const int64_t width = 1 + 2 * in_group;
  at::Tensor rows = at::zeros({sizes.sequences, sizes.kv_heads, width}, at::kInt);
  int32_t* to = rows.mutable_data_ptr<int32_t>();
  for (int64_t s = 0; s < sizes.sequences; ++s) {
    for (int64_t head = 0; head < sizes.heads; ++head) {
      int32_t* const list = to + (s * sizes.kv_heads + head / sizes.group) * width;
      int32_t* const places = list + 1 + in_group;
      for (int64_t t = 0; t < sizes.queries; ++t) {
        const int64_t row = head % sizes.group * sizes.queries + t;
        const bool reads = !reuse[static_cast<size_t>(s * sizes.heads + head)] ||
                           refresh[static_cast<size_t>(s * sizes.queries + t)];
        places[row] = reads ? list[0] : -1;
        if (reads) list[++list[0]] = static_cast<int32_t>(row);
      }
    }
  }
  return rows;
}

// The call for sequences [first, first + count), without workspace.
SplitCall make_call(const Arguments& arguments, const DeviceSource& source,
                    const SourcedAttention& result, int64_t first, int64_t count) {
  const AttentionSizes& sizes = arguments.sizes;
  const auto part = [&](const at::Tensor& tensor) {
    return device_rows(tensor.narrow(0, first, count));
  };
  SplitCall call;
  call.type = device_float(arguments.q);
  call.sequences = static_cast<int>(count);
  call.heads = static_cast<int>(sizes.heads);
  call.kv_heads = static_cast<int>(sizes.kv_heads);
  call.group = static_cast<int>(sizes.group);
  call.queries = static_cast<int>(sizes.queries);
  call.dim = static_cast<int>(sizes.dim);
  call.internal_keys = static_cast<int>(arguments.k_in.size(2));
  call.scale_log2 = static_cast<float>(arguments.scale * 1.4426950408889634);
  call.q = part(arguments.q);
  call.k_ext = part(arguments.k_ext);
  call.v_ext = part(arguments.v_ext);
  call.k_in = part(arguments.k_in);
  call.v_in = part(arguments.v_in);
  call.out = from_sequence<char>(result.out, first);
  call.external = from_sequence<float>(result.external, first);
  call.lse_external = from_sequence<float>(result.lse_external, first);
  call.internal = from_sequence<float>(result.internal, first);
  call.lse_internal = from_sequence<float>(result.lse_internal, first);
  call.keys_read = from_sequence<int64_t>(result.keys_read, first);
  call.reuse = from_sequence<bool>(source.reuse, first);
  call.rows = from_sequence<int32_t>(source.rows, first);
  call.cached_external = from_sequence<float>(source.cached_external, first);
  call.cached_lse = from_sequence<float>(source.cached_lse, first);
  call.positions = from_sequence<int32_t>(source.positions, first);
  call.counts = from_sequence<int32_t>(source.counts, first);
  call.capacity = source.positions.defined() ? source.positions.size(2) : 0;
  call.residual = from_sequence<float>(source.residual, first);
  call.lse_residual = from_sequence<float>(source.lse_residual, first);
  for (int64_t s = 0; s < count; ++s) {
    const int length = static_cast<int>(arguments.lengths[static_cast<size_t>(first + s)]);
    call.lengths[s] = length;
    // A set may hold fewer keys than the prefix, in more chunks.
    const int chunks =
        source.counts.defined() ? std::min(kMaxChunks, (length + 255) / 256) : num_chunks(length);
    call.max_chunks = std::max(call.max_chunks, chunks);
  }
  return call;
}

// The question of a WeightSpread on the device.
struct SpreadQuestion {
  at::Tensor ends;    // [S, R] int32
  at::Tensor places;  // [T] int32; undefined: 0 .. T - 1
};

SpreadQuestion prepare_spread(const Arguments& arguments, WeightSpread& spread) {
  const AttentionSizes& sizes = arguments.sizes;
  const int64_t internal_keys = arguments.k_in.size(2);
  check_spread(arguments.op, spread, sizes, arguments.lengths, internal_keys);
  const auto ranges = spread.ends.empty() ? int64_t{0} : std::ssize(spread.ends.front());
  device_int(arguments.op, "spread.ends", ranges);
  const at::Tensor& q = arguments.q;
  const auto heads = [&](int64_t width) {
    return at::empty({sizes.sequences, sizes.heads, width}, q.options().dtype(at::kFloat));
  };
  spread.entropy = heads(3);
  spread.largest = heads(3);
  spread.range = heads(ranges);
  spread.key = heads(internal_keys);
  spread.offset = heads(std::max<int64_t>(2 * internal_keys - 1, 0));
  SpreadQuestion question;
  at::Tensor ends = at::empty({sizes.sequences, ranges}, at::kInt);
  int32_t* next = ends.mutable_data_ptr<int32_t>();
  for (const std::vector<int64_t>& of_sequence : spread.ends) {
    for (const int64_t end : of_sequence) *next++ = static_cast<int32_t>(end);
  }
  question.ends = kept_copy(ends, q.device());
  if (!spread.places.empty()) {
    const std::vector<int32_t> places(spread.places.begin(), spread.places.end());
    question.places = kept_copy(at::tensor(places, at::kInt), q.device());
  }
  return question;
}

// Fills the sequences from `first` on, after the call has run on the queue.
void launch_spread(const DeviceQueue& queue, const SplitCall& attention,
                   const SpreadQuestion& question, const WeightSpread& spread, int64_t first) {
  SpreadCall call;
  call.attention = attention;
  call.ranges = static_cast<int>(question.ends.size(1));
  call.ends = from_sequence<int32_t>(question.ends, first);
  call.places = from_sequence<int32_t>(question.places, 0);
  call.entropy = from_sequence<float>(spread.entropy, first);
  call.largest = from_sequence<float>(spread.largest, first);
  call.range = from_sequence<float>(spread.range, first);
  call.key = from_sequence<float>(spread.key, first);
  call.offset = from_sequence<float>(spread.offset, first);
  const at::Tensor reached = at::empty(
      {call.attention.sequences, call.attention.kv_heads, call.ranges}, question.ends.options());
  const at::Tensor states = at::empty({spread_state_floats(call)}, spread.range.options());
  call.reached = reached.mutable_data_ptr<int32_t>();
  call.states = states.mutable_data_ptr<float>();
  queue.launch(queue.kernels.spread, call);
}

// Fills the results of a call. The library computes the external pairs of the runs.
void join_library(const DeviceQueue& queue, const Arguments& arguments, const SplitCall& attention,
                  const std::vector<HeadRun>& runs) {
  JoinCall call;
  call.attention = attention;
  PrefixPair pair;
  if (!runs.empty()) {
    const AttentionSizes& sizes = arguments.sizes;
    const int64_t length = arguments.lengths.front();
    const at::Tensor folded = aligned_for_library(arguments.q.reshape(
        {sizes.sequences, sizes.kv_heads, sizes.group * sizes.queries, sizes.dim}));
    pair = prefix_of_runs(queue.prefix, folded, arguments.k_ext.narrow(2, 0, length),
                          arguments.v_ext.narrow(2, 0, length), arguments.scale, runs);
    call.external = device_rows(pair.output);
    call.lse_external = device_rows(pair.lse);
  }
  queue.launch(queue.kernels.join, call);
}

SourcedAttention attend(const DeviceQueue& queue, const Arguments& arguments,
                        const DeviceSource& source, bool count_keys, WeightSpread* spread) {
  const AttentionSizes& sizes = arguments.sizes;
  const at::Tensor& q = arguments.q;
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  SpreadQuestion question;
  if (spread != nullptr) question = prepare_spread(arguments, *spread);
  SourcedAttention result;
  result.out = at::empty({sizes.sequences, sizes.queries, sizes.heads, sizes.dim}, q.options())
                   .transpose(1, 2);
  result.external = at::empty(q.sizes(), floats);
  result.lse_external = at::empty(q.sizes().slice(0, 3), floats);
  result.internal = at::empty(q.sizes(), floats);
  result.lse_internal = at::empty(q.sizes().slice(0, 3), floats);
  if (count_keys) {
    result.keys_read = at::empty({sizes.sequences, sizes.kv_heads}, floats.dtype(at::kLong));
  }
  const bool any = sizes.heads * sizes.queries > 0;
  if (!any && count_keys) result.keys_read.zero_();
  if (!any && spread != nullptr) {
    for (at::Tensor* values : spread->answer()) values->zero_();
  }
  const bool library = queue.prefix != nullptr && source.runs && any &&
                       sizes.sequences <= kMaxSequencesPerCall &&
                       library_reads(sizes, arguments.lengths, arguments.k_in.size(2), *source.runs,
                                     arguments.k_ext, arguments.v_ext);
  for (int64_t first = 0; any && first < sizes.sequences; first += kMaxSequencesPerCall) {
    const int64_t count = std::min<int64_t>(kMaxSequencesPerCall, sizes.sequences - first);
    SplitCall call = make_call(arguments, source, result, first, count);
    // Released while the kernels wait in the queue: torch reuses it only after them.
    at::Tensor states;
    if (library) {
      join_library(queue, arguments, call, *source.runs);
    } else {
      states = at::empty({state_floats(call)}, floats);
      call.states = states.mutable_data_ptr<float>();
      queue.launch(queue.kernels.split_attention, call);
    }
    if (spread != nullptr) launch_spread(queue, call, question, *spread, first);
  }
  return result;
}

// Sorts the sets on the device, and waits for the check of the sets unless they are trusted.
void make_sets(const char* op, const DeviceQueue& queue, const Arguments& arguments,
               const at::Tensor& index, const at::Tensor& dense, bool selected,
               DeviceSource& source) {
  const AttentionSizes& sizes = arguments.sizes;
  const at::Device device = arguments.q.device();
  check_tensor(op, "index", index, at::kInt, device);
  check_shape(op, "index", index, {sizes.sequences, sizes.kv_heads, -1});
  if (dense.defined()) {
    check_cpu(op, "dense", dense, at::kBool);
    check_shape(op, "dense", dense, {sizes.sequences});
  }
  const at::Tensor sets = index.contiguous();
  const at::Tensor flags = dense.defined() ? copied_to(dense.contiguous(), device) : dense;
  const int64_t words = (sizes.external_keys + 31) / 32;
  const int64_t capacity =
      selected ? std::min(index.size(2), sizes.external_keys) : sizes.external_keys;
  source.positions = at::empty({sizes.sequences, sizes.kv_heads, capacity}, index.options());
  source.counts = at::empty({sizes.sequences, sizes.kv_heads}, index.options());
  const at::Tensor faults = at::empty({sizes.sequences, sizes.kv_heads}, index.options());
  for_batches(sizes.sequences, [&](int64_t first, int64_t count) {
    const at::Tensor bits = at::empty({count, sizes.kv_heads, words}, index.options());
    SelectCall call;
    call.sequences = static_cast<int>(count);
    call.kv_heads = static_cast<int>(sizes.kv_heads);
    call.per_set = device_int(op, "index", index.size(2));
    call.words = static_cast<int>(words);
    call.selected = selected;
    call.index = from_sequence<int32_t>(sets, first);
    call.dense = from_sequence<bool>(flags, first);
    call.bits = from_sequence<uint32_t>(bits, 0);
    call.capacity = capacity;
    call.positions = from_sequence<int32_t>(source.positions, first);
    call.counts = from_sequence<int32_t>(source.counts, first);
    call.faults = from_sequence<int32_t>(faults, first);
    set_lengths(call, arguments.lengths, first, count);
    queue.launch(queue.kernels.select, call);
  });
  if (trusts_sets()) return;
  const at::Tensor verdict = faults.cpu();
  for (int64_t i = 0; i < verdict.numel(); ++i) {
    const int32_t fault = verdict.const_data_ptr<int32_t>()[i];
    const int64_t sequence = i / sizes.kv_heads;
    TORCH_CHECK((fault & kOutside) == 0, op, ": index[", sequence, ", ", i % sizes.kv_heads,
                "]: expected -1 or positions below ext_len ",
                arguments.lengths[static_cast<size_t>(sequence)], ", got another");
    TORCH_CHECK((fault & kTwice) == 0, op, ": index[", sequence, ", ", i % sizes.kv_heads,
                "]: expected every position once, got one twice");
  }
}

}  // namespace

SplitAttention split_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale, ExternalWeights* /*kept*/,
                                  WeightSpread* spread) {
  const Arguments arguments = check_arguments(kSplit, q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  DeviceSource source;
  source.runs = std::vector<HeadRun>{{0, arguments.sizes.kv_heads}};
  return attend(queue, arguments, source, false, spread);
}

SourcedAttention reuse_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                    const at::Tensor& k_ext, const at::Tensor& v_ext,
                                    const at::Tensor& ext_len, const at::Tensor& k_in,
                                    const at::Tensor& v_in, const at::Tensor& cached_external,
                                    const at::Tensor& cached_lse, const at::Tensor& reuse_mask,
                                    double scale, WeightSpread* spread,
                                    const at::Tensor& refresh_rows) {
  const Arguments arguments = check_arguments(kReuse, q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  const AttentionSizes& sizes = arguments.sizes;
  const std::vector<bool> flags = check_reuse_mask(kReuse, reuse_mask, sizes);
  const std::vector<bool> refresh = check_refresh_rows(kReuse, refresh_rows, sizes);
  const bool any = takes_cached(flags, refresh, sizes);
  DeviceSource source;
  if (refresh.empty()) source.runs = reading_runs(flags, sizes);
  if (std::find(flags.begin(), flags.end(), true) != flags.end()) {
    source.reuse =
        kept_copy(reuse_mask.expand({sizes.sequences, sizes.heads}).contiguous(), q.device());
    if (!refresh.empty()) {
      source.rows = copied_to(rows_that_read(flags, refresh, sizes), q.device());
    }
  }
  if (any || cached_external.defined()) {
    check_tensor(kReuse, "cached_external", cached_external, at::kFloat, q.device());
    check_shape(kReuse, "cached_external", cached_external, q.sizes());
    source.cached_external = cached_external.contiguous();
  }
  if (any || cached_lse.defined()) {
    check_tensor(kReuse, "cached_lse", cached_lse, at::kFloat, q.device());
    check_shape(kReuse, "cached_lse", cached_lse, q.sizes().slice(0, 3));
    source.cached_lse = cached_lse.contiguous();
  }
  return attend(queue, arguments, source, true, spread);
}

SourcedAttention gather_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                     const at::Tensor& k_ext, const at::Tensor& v_ext,
                                     const at::Tensor& ext_len, const at::Tensor& index,
                                     const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                     const at::Tensor& dense, const at::Tensor& residual,
                                     const at::Tensor& lse_residual, WeightSpread* spread) {
  const Arguments arguments = check_arguments(kGather, q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  DeviceSource source;
  if (residual.defined() || lse_residual.defined()) {
    check_tensor(kGather, "residual", residual, at::kFloat, q.device());
    check_shape(kGather, "residual", residual, q.sizes());
    check_tensor(kGather, "lse_residual", lse_residual, at::kFloat, q.device());
    check_shape(kGather, "lse_residual", lse_residual, q.sizes().slice(0, 3));
    source.residual = residual.contiguous();
    source.lse_residual = lse_residual.contiguous();
  }
  make_sets(kGather, queue, arguments, index, dense, true, source);
  return attend(queue, arguments, source, true, spread);
}

PartialAttention unselected_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                         const at::Tensor& k_ext, const at::Tensor& v_ext,
                                         const at::Tensor& ext_len, const at::Tensor& index,
                                         double scale) {
  check_query(kUnselected, q, q.device());
  check_attention(kUnselected, q, "k_ext", k_ext, "v_ext", &v_ext, q.device());
  const at::Tensor no_keys = at::empty({q.size(0), k_ext.size(1), 0, q.size(3)}, q.options());
  const Arguments arguments =
      check_arguments(kUnselected, q, k_ext, v_ext, ext_len, no_keys, no_keys, scale);
  DeviceSource source;
  make_sets(kUnselected, queue, arguments, index, {}, false, source);
  const SourcedAttention result = attend(queue, arguments, source, false, nullptr);
  return {result.external, result.lse_external};
}

}  // namespace blockscope
