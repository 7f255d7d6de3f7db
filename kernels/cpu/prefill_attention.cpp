// prefill_attention. A task is a tile of query tokens times the G query heads of a KV head. It
// walks the keys that its last row sees. The longest tasks come first, so threads finish together.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kPrefill = "prefill_attention";

struct PrefillTask {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  int64_t first_head = 0;  // query heads [first_head, first_head + num_heads)
  int64_t num_heads = 0;
  int64_t begin = 0;  // query tokens [begin, end)
  int64_t end = 0;
};

// Tiles of at most kMaxRows rows. Groups of more than kMaxRows heads are split.
std::vector<PrefillTask> make_tasks(const AttentionSizes& sizes) {
  const int64_t heads = std::min(sizes.group, kMaxRows);
  const int64_t tokens = std::max<int64_t>(1, kMaxRows / heads);
  std::vector<PrefillTask> tasks;
  const int64_t num_tiles = (sizes.queries + tokens - 1) / tokens;
  for (int64_t tile = num_tiles - 1; tile >= 0; --tile) {
    for (int64_t s = 0; s < sizes.sequences; ++s) {
      for (int64_t kv_head = 0; kv_head < sizes.kv_heads; ++kv_head) {
        for (int64_t g = 0; g < sizes.group; g += heads) {
          tasks.push_back({s, kv_head, kv_head * sizes.group + g, std::min(heads, sizes.group - g),
                           tile * tokens, std::min((tile + 1) * tokens, sizes.queries)});
        }
      }
    }
  }
  return tasks;
}

}  // namespace

at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& len, int64_t block_length, double scale,
                             int64_t query_start) {
  if (const DeviceScope device{q}) {
    return device.run(prefill_attention_on, fallback::prefill_attention, q, k, v, len, block_length,
                      scale, query_start);
  }
  const AttentionSizes sizes = check_attention(kPrefill, q, "k", k, "v", &v);
  const std::vector<int64_t> lengths =
      check_lengths(kPrefill, "len", len, sizes.sequences, sizes.external_keys);
  TORCH_CHECK(block_length > 0, kPrefill, ": block_length: expected > 0, got ", block_length,
              ". HINT: 1 is causal attention");
  TORCH_CHECK(query_start >= 0, kPrefill, ": query_start: expected >= 0, got ", query_start);
  at::Tensor out = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  const std::vector<PrefillTask> tasks = make_tasks(sizes);
  const RawView queries(q);
  const RawView keys(k);
  const RawView values(v);
  const Element element = element_of(q);
  const TileKernels& kernels = best_tile_kernels();
  void* target = out.mutable_data_ptr();
  parallel_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const PrefillTask& task = tasks[static_cast<size_t>(i)];
    const int64_t tokens = task.end - task.begin;
    const int64_t length = lengths[static_cast<size_t>(task.sequence)];
    RowTile tile(kernels, element, task.num_heads * tokens, sizes.dim);
    std::array<int64_t, kMaxRows> visible_end{};
    for (int64_t row = 0; row < task.num_heads * tokens; ++row) {
      const int64_t t = task.begin + row % tokens;
      tile.set_query(row, queries.at(task.sequence, task.first_head + row / tokens, t));
      const int64_t blocks = (query_start + t) / block_length + 1;
      visible_end[static_cast<size_t>(row)] = std::min(length, blocks * block_length);
    }
    const int64_t end = visible_end[static_cast<size_t>(tokens - 1)];  // the last token sees most
    tile.attend(key_range(keys, values, task.sequence, task.kv_head), 0, end,
                static_cast<float>(scale), visible_end.data());
    std::vector<float> row_out(static_cast<size_t>(sizes.dim));
    for (int64_t row = 0; row < task.num_heads * tokens; ++row) {
      const AttentionPart state = tile.row_state(row);
      merge_parts(&state, 1, sizes.dim, row_out.data());
      const int64_t head = task.first_head + row / tokens;
      const int64_t t = task.begin + row % tokens;
      const int64_t index = (task.sequence * sizes.heads + head) * sizes.queries + t;
      store_rounded(row_out.data(), sizes.dim, element, target, index * sizes.dim);
    }
  });
  return out;
}

// --- on a device

at::Tensor prefill_attention_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& len, int64_t block_length,
                                double scale, int64_t query_start) {
  check_query(kPrefill, q, q.device());
  const AttentionSizes sizes = check_attention(kPrefill, q, "k", k, "v", &v, q.device());
  check_device_dim(kPrefill, sizes.dim);
  const std::vector<int64_t> lengths =
      check_lengths(kPrefill, "len", len, sizes.sequences, sizes.external_keys);
  TORCH_CHECK(block_length > 0, kPrefill, ": block_length: expected > 0, got ", block_length,
              ". HINT: 1 is causal attention");
  TORCH_CHECK(query_start >= 0, kPrefill, ": query_start: expected >= 0, got ", query_start);
  device_int(kPrefill, "keys", sizes.external_keys);
  device_int(kPrefill, "rows of a KV head", sizes.group * sizes.queries);
  const at::Tensor out = at::empty(q.sizes(), q.options());
  for_batches(out.numel() > 0 ? sizes.sequences : 0, [&](int64_t first, int64_t count) {
    PrefillCall call;
    call.type = device_float(q);
    call.sequences = static_cast<int>(count);
    call.heads = device_int(kPrefill, "query heads", sizes.heads);
    call.group = static_cast<int>(sizes.group);
    call.queries = device_int(kPrefill, "queries", sizes.queries);
    call.dim = static_cast<int>(sizes.dim);
    call.block_length = block_length;
    call.query_start = query_start;
    call.scale_log2 = static_cast<float>(scale * 1.4426950408889634);
    call.q = device_rows(q.narrow(0, first, count));
    call.k = device_rows(k.narrow(0, first, count));
    call.v = device_rows(v.narrow(0, first, count));
    call.out = from_sequence<char>(out, first);
    set_lengths(call, lengths, first, count);
    queue.launch(queue.kernels.prefill, call);
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m,
      "prefill_attention(Tensor q, Tensor k, Tensor v, Tensor len, int block_length, float scale, "
      "int query_start=0) -> Tensor",
      prefill_attention,
      [](const at::Tensor& q, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
         double, int64_t) { return meta::same(q); });
}

}  // namespace blockscope
