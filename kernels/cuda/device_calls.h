// Calls of the smaller operators on a device: plain numbers and pointers, for the GPU and the
// emulator, as in split_attention_launch.h. Each operator is one or two simple kernels, written for
// correctness before speed. No torch here.
#pragma once

#include <string>

#include "kernels/cuda/split_attention_launch.h"

namespace blockscope {

constexpr int kMaxMergeParts = 64;

constexpr int kSpreadWarps = 4;  // of a thread block

// WeightSpread of a call of split_attention that has run: its lses are read.
struct SpreadCall {
  SplitCall attention;
  int ranges = 0;
  const int32_t* ends = nullptr;    // [S, R]
  const int32_t* places = nullptr;  // [T], or null: 0 .. T - 1
  int32_t* reached = nullptr;       // [S, K, R] workspace: `ends` among the keys that are read

  // Workspace, spread_state_floats() floats. Only the functions below know its order.
  float* states = nullptr;

  float* entropy = nullptr;  // [S, H, 3]
  float* largest = nullptr;  // [S, H, 3]
  float* range = nullptr;    // [S, H, R]
  float* key = nullptr;      // [S, H, T_in]
  float* offset = nullptr;   // [S, H, 2 * T_in - 1]
};

// Rows of a warp, all of one head, and the parts into which they split a head.
BLOCKSCOPE_HOST_DEVICE inline int spread_rows(DeviceFloat type) {
  return type == DeviceFloat::kFloat32 ? 8 : 16;
}
BLOCKSCOPE_HOST_DEVICE inline int spread_parts(const SpreadCall& call) {
  const int rows = spread_rows(call.attention.type);
  return (call.attention.queries + rows - 1) / rows;
}
// Energy, and largest score minus lse, of a row in a chunk; the row is counted over [S, H, T].
BLOCKSCOPE_HOST_DEVICE inline float* spread_row(const SpreadCall& call, int64_t row, int chunk) {
  return call.states + (row * (call.attention.max_chunks + 1) + chunk) * 2;
}
// [R] sums of a part of a head in a chunk; the head is counted over [S, H].
BLOCKSCOPE_HOST_DEVICE inline float* spread_range(const SpreadCall& call, int64_t head, int part,
                                                  int chunk) {
  const int64_t heads = static_cast<int64_t>(call.attention.sequences) * call.attention.heads;
  return spread_row(call, heads * call.attention.queries, 0) +
         ((head * spread_parts(call) + part) * call.attention.max_chunks + chunk) * call.ranges;
}
// [T_in] sums by key of a part of a head, then [2 * T_in - 1] by offset.
BLOCKSCOPE_HOST_DEVICE inline float* spread_inside(const SpreadCall& call, int64_t head, int part) {
  const int64_t heads = static_cast<int64_t>(call.attention.sequences) * call.attention.heads;
  return spread_range(call, heads, 0, 0) +
         (head * spread_parts(call) + part) * call.attention.internal_keys * 3;
}
inline int64_t spread_state_floats(const SpreadCall& call) {
  const int64_t heads = static_cast<int64_t>(call.attention.sequences) * call.attention.heads;
  return spread_inside(call, heads, 0) - call.states;
}

// split_attention whose external pairs another kernel computed. Heads with `reuse` take their
// cached pair; `rows` and `states` are not used. The rows of `external` and `lse_external` [S, K, G
// * T] are g * T + t; those of heads with `reuse` are not read.
struct JoinCall {
  SplitCall attention;
  DeviceRows external;      // the type of q
  DeviceRows lse_external;  // float32, natural logarithm; a row is one number
};

// merge_attention: rows of `dim` elements of one type, all contiguous.
struct MergeCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int parts = 0;
  int dim = 0;
  int64_t rows = 0;
  void* out = nullptr;
  float* lse = nullptr;
  const void* outputs[kMaxMergeParts] = {};
  const float* lses[kMaxMergeParts] = {};
};

// cross_step_similarity: rows of `dim` elements of one type, contiguous.
struct SimilarityCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int dim = 0;
  int64_t rows = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  float* cosines = nullptr;
};

// Why a set of positions is refused. Several bits may be set.
enum SetFault : int32_t { kOutside = 1, kTwice = 2 };

// The positions of each set [S, K], or the positions of the prefix outside the set, ascending.
struct SelectCall {
  int sequences = 0;
  int kv_heads = 0;
  int per_set = 0;  // k
  int words = 0;    // words of 32 positions, for the longest prefix
  bool selected = true;
  const int32_t* index = nullptr;  // [S, K, k]: -1 or a position
  const bool* dense = nullptr;     // [S], or null: sequences with count -1
  uint32_t* bits = nullptr;        // [S, K, words]
  int64_t capacity = 0;
  int32_t* positions = nullptr;  // [S, K, capacity]
  int32_t* counts = nullptr;     // [S, K]
  int32_t* faults = nullptr;     // [S, K]: SetFault, or 0
  int32_t lengths[kMaxSequencesPerCall] = {};
};

// Mean probabilities of external keys over the queries of a KV head: for all tokens together
// (num_sets 1), or for each of the tokens [first_token, first_token + num_sets).
struct MeansCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int sequences = 0;
  int heads = 0;
  int kv_heads = 0;
  int group = 0;
  int queries = 0;
  int dim = 0;
  int max_length = 0;
  int first_token = 0;
  int num_sets = 0;
  bool per_token = false;
  int keys_per_block = 0;  // keys of a thread block, on tensor cores; set by the launch
  float scale = 0.0f;
  float scale_log2 = 0.0f;  // scale * log2(e)
  DeviceRows q, k_ext;
  const float* lse = nullptr;  // [S, H, T]
  float* means = nullptr;      // [S, K, num_sets, max_length]
  int32_t lengths[kMaxSequencesPerCall] = {};
};

constexpr int kMostSortedInShared = 4096;  // entries of a row

// The k largest of each row of means, by falling value, ties to the lower position, NaN last. -1
// and 0 fill the places after the length of the sequence.
struct TopKCall {
  int sequences = 0;
  int rows_per_sequence = 0;  // K
  int num_sets = 0;           // rows of `means` per KV head
  int sets_per_head = 0;      // rows of the results per KV head
  int first_set = 0;          // first row of the results
  int k = 0;
  int padded = 0;  // a power of two, at least min(k, max_length)
  int max_length = 0;
  const float* means = nullptr;
  uint64_t* entries = nullptr;   // [S, K, num_sets, padded]; used if padded > kMostSortedInShared
  int32_t* index = nullptr;      // [S, K, sets_per_head, k]
  float* probability = nullptr;  // the same
  int32_t lengths[kMaxSequencesPerCall] = {};
};

// Distinct positions among the T sets of a KV head.
struct UnionCall {
  int heads = 0;  // S * K
  int words = 0;
  int64_t per_head = 0;            // T * k
  const int32_t* index = nullptr;  // [S, K, T, k]
  uint32_t* bits = nullptr;        // [S, K, words]
  int32_t* sizes = nullptr;        // [S, K]
};

struct BoundsCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int sequences = 0;
  int kv_heads = 0;
  int dim = 0;
  int pages = 0;
  int64_t page_size = 0;
  DeviceRows k_ext;
  void* max = nullptr;  // [S, K, P, D]
  void* min = nullptr;
  int32_t lengths[kMaxSequencesPerCall] = {};
};

struct PageScoresCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int sequences = 0;
  int kv_heads = 0;
  int group = 0;
  int tokens = 0;    // tokens per set
  int num_sets = 0;  // sets per KV head
  int dim = 0;
  int pages = 0;
  int64_t page_size = 0;
  DeviceRows q, max, min;
  float* parts = nullptr;   // [S, K, sets, 2, D]: mean positive and negative part of the queries
  float* scores = nullptr;  // [S, K, sets, P]
  int32_t lengths[kMaxSequencesPerCall] = {};
};

struct PrefillCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int sequences = 0;
  int heads = 0;
  int group = 0;
  int queries = 0;
  int dim = 0;
  int64_t block_length = 0;
  int64_t query_start = 0;
  float scale_log2 = 0.0f;
  DeviceRows q, k, v;
  void* out = nullptr;  // [S, H, T, D]
  int32_t lengths[kMaxSequencesPerCall] = {};
};

// rms_norm_rows and add_rms_norm_rows: rows of x, a tensor [S, heads, tokens, dim]; results are
// contiguous.
struct NormCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int heads = 0;
  int tokens = 0;
  int dim = 0;
  int64_t rows = 0;      // S * heads * tokens
  bool aligned = false;  // every row starts and ends at a multiple of 16 bytes
  bool weight_first = false;
  float eps = 0.0f;
  DeviceRows x, y;  // y: only for add_rms_norm_rows
  const void* weight = nullptr;
  void* sum = nullptr;  // x + y, if there is a y
  void* out = nullptr;
};

constexpr int kMaxTurnedTensors = 2;  // queries and keys

// norm_rotate_rows: rows of several tensors [S, heads, tokens, dim], one after the other.
struct RotateCall {
  struct Part {
    int heads = 0;
    int64_t rows = 0;  // S * heads * tokens
    bool weight_first = false;
    float eps = 0.0f;
    const void* weight = nullptr;  // null: no norm
    DeviceRows x;
    void* out = nullptr;
  };
  DeviceFloat type = DeviceFloat::kFloat32;
  bool float_table = false;  // cos and sin are float32; else they have `type`
  bool aligned = false;      // as above, also for the halves of the turning channels
  int tokens = 0;
  int dim = 0;
  int turning = 0;      // channels that turn, even
  int64_t rows = 0;     // rows of all parts
  DeviceRows cos, sin;  // [S or 1, 1, tokens, turning]
  Part parts[kMaxTurnedTensors];
};

// silu_multiply: rows of gate and up, [S, heads, tokens, dim] both.
struct GateCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int heads = 0;
  int tokens = 0;
  int dim = 0;
  int64_t rows = 0;
  bool aligned = false;
  DeviceRows gate, up;
  void* out = nullptr;
};

// The statistics of a layer's step (step_statistics.h): float32, contiguous, of one sequence.
constexpr int kMaxSources = 4;
constexpr int kRowKindBits = 2;  // a kind is below 3
constexpr int kMaxKindWords = 64;
constexpr int kMaxKindRows = kMaxKindWords * 32 / kRowKindBits;

struct StatisticsCall {
  struct Pair {
    const float* output = nullptr;  // [H, B, D]
    const float* lse = nullptr;     // [H, B]
  };
  int heads = 0;
  int block = 0;
  int dim = 0;
  int sources = 0;
  Pair internal, external;  // null: no prefix
  const float* last_internal = nullptr;
  const float* last_external = nullptr;
  Pair source[kMaxSources];
  int first_alike[kMaxSources] =
      {};  // the first source with the same sums; its own place: computed
  bool has_kinds[kMaxSources] = {};
  uint32_t kinds[kMaxSources][kMaxKindWords] = {};
  // Outputs as in LayerStatistics; null where it is undefined.
  float* external_mass = nullptr;
  float* similarity_external = nullptr;
  float* similarity_internal = nullptr;
  float* reuse_error = nullptr;
  float* kept = nullptr;
};

// row_gaps: one sequence. `first` [H, B, D] is contiguous.
struct GapsCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int heads = 0;
  int block = 0;
  int dim = 0;
  DeviceRows x;
  const void* first = nullptr;
  float* gap = nullptr;
  float* block_gap = nullptr;
};

// Every launch: its name among the kernels of a queue (device_kernels.h), and its call.
#define BLOCKSCOPE_LAUNCHES(LAUNCH)   \
  LAUNCH(split_attention, SplitCall)  \
  LAUNCH(spread, SpreadCall)          \
  LAUNCH(join, JoinCall)              \
  LAUNCH(merge, MergeCall)            \
  LAUNCH(similarity, SimilarityCall)  \
  LAUNCH(select, SelectCall)          \
  LAUNCH(means, MeansCall)            \
  LAUNCH(top_k, TopKCall)             \
  LAUNCH(count_union, UnionCall)      \
  LAUNCH(bounds, BoundsCall)          \
  LAUNCH(page_scores, PageScoresCall) \
  LAUNCH(prefill, PrefillCall)        \
  LAUNCH(norm, NormCall)              \
  LAUNCH(rotate, RotateCall)          \
  LAUNCH(gate, GateCall)              \
  LAUNCH(statistics, StatisticsCall)  \
  LAUNCH(gaps, GapsCall)

// `stream` is a cudaStream_t. The emulator has no streams and runs the call at once.
#define BLOCKSCOPE_LAUNCH(name, Call) void launch_##name(const Call& call, void* stream);
namespace cuda {
BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_LAUNCH)
// "compute capability 7.5" if this library has no code for the current GPU; else "".
std::string missing_code();
}  // namespace cuda
namespace emulated {
BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_LAUNCH)
}
#undef BLOCKSCOPE_LAUNCH

}  // namespace blockscope

// The kernels and launches of all operators except split_attention and its WeightSpread, for the
// one file of a backend that compiles them.
#if defined(BLOCKSCOPE_COMPILES_LAUNCHES)
#include "kernels/cuda/join_device.cuh"
#include "kernels/cuda/page_device.cuh"
#include "kernels/cuda/prefill_device.cuh"
#include "kernels/cuda/row_device.cuh"
#include "kernels/cuda/row_ops_device.cuh"
#include "kernels/cuda/step_statistics_device.cuh"
#include "kernels/cuda/top_k_device.cuh"
#endif
