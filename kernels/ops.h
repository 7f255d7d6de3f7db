// The attention operators of Blockscope: C++ functions over torch tensors. They are also registered
// as torch custom operators. torch.ops.blockscope.<name> takes the same arguments and returns the
// members of the result struct as a tuple, in the order of declaration. blockscope.ops (Python)
// loads libblockscope_kernels.so and adds names, defaults and gradients.
//
// Dimension names: S sequences, H query heads, K KV heads (H = K * G; query head h reads KV head
// h / G), T query tokens, B block_length, N capacity of the external cache, D head_dim.
//
// q, k, v share one dtype: float32, float16 or bfloat16. They may be strided views, but the last
// dimension must be contiguous. Products are accumulated in float32. Every lse is float32 and the
// natural logarithm of sum(exp(q . k * scale)).
//
// Empty sides: without keys, or with only -inf scores, the output is 0 and the lse is -inf. A merge
// with such a side returns the other side bit for bit.
//
// NaN in a query gives NaN only in its row (query head and token). NaN in a key gives NaN in the
// rows that see the key. NaN or infinity in channel d of a value gives NaN or infinity in channel d
// of the rows that see the value. In prefill_attention, it also reaches earlier rows: up to 128
// rows of a KV head walk the keys together, and a row multiplies the values of keys that it doesn't
// see with 0.
//
// Results depend on the instruction set, but never on the number of threads or the other sequences
// of the batch. On a GPU this holds for our kernels, not for torch's flash attention, which reads
// long prefixes of 16-bit calls (kernels/cuda/library_attention.h): `external` then has one more
// rounding to the type of q, and so has `out`.
//
// Tolerance against float64: lse 2e-5 * max(1, max |score|); float32 outputs 2e-5 * max |v| *
// max(1, max |score|). An `out` in bfloat16 or float16 is the float32 result rounded once. With the
// instruction set "amx_bf16", products of a weight and a bfloat16 value below 2^-126 are 0.
//
// A wrong shape, dtype, device, layout or length throws c10::Error with the name of the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct SplitAttention {
  at::Tensor out;           // [S, H, T, D] dtype of q, stored [S, T, H, D]: over all keys
  at::Tensor external;      // [S, H, T, D] float32: A_out, only over the external keys
  at::Tensor lse_external;  // [S, H, T] float32: L_out
  at::Tensor internal;      // [S, H, T, D] float32: A_in, only over the internal keys
  at::Tensor lse_internal;  // [S, H, T] float32: L_in
};

// The unnormalised weights of the external keys at an exact step. For any lse, weight * exp(max -
// lse) is the probability of a key. Tiles have 64 keys; a KV head has the rows g * T + t.
struct ExternalWeights {
  at::Tensor weight;  // [S, K, ceil(N / 64), G * T, 64] float32: exp(q . k * scale - max); not
                      // written from key ext_len[s] on
  at::Tensor max;     // [S, K, ceil(N / 64), G * T] float32
  bool defined() const { return weight.defined(); }
};

// How the weights of a pass are spread over the keys that it reads: its external and its internal
// keys, without a residual. A weight is exp(q . k * scale - L), with L over all these keys. Every
// value is the mean over the T queries. Without a key, an entropy and a weight are 0. Heads that
// reuse an earlier external pair, in any row, have NaN everywhere but at [1] of entropy and
// largest.
struct WeightSpread {
  // The question. Range r of sequence s holds the external keys [ends[s][r - 1], ends[s][r]), from
  // 0 on. [S][R], never falling, at most ext_len[s].
  std::vector<std::vector<int64_t>> ends;
  std::vector<int64_t> places;  // [T] places of the queries among the T_in internal keys;
                                // empty: 0 .. T - 1
  // The answer, float32 on the device of q.
  at::Tensor entropy;  // [S, H, 3] in nats: of the external, the internal, and all keys
  at::Tensor largest;  // [S, H, 3] largest weight among them; the first two with L over their side
  at::Tensor range;    // [S, H, R] weight of each range
  at::Tensor key;      // [S, H, T_in] of each internal key
  at::Tensor offset;   // [S, H, 2 * T_in - 1] of internal keys by (place of key - place of query)

  std::array<at::Tensor*, 5> answer() { return {&entropy, &largest, &range, &key, &offset}; }
};

// Attention split at the block boundary (FlashBlock, arXiv 2602.05305, eqs. 3-7), in one pass over
// the keys. The external keys come first; the internal keys have a new accumulator. Nothing is
// subtracted.
//   q [S, H, T, D]; k_ext, v_ext [S, K, N, D]; ext_len [S] int64 on the CPU, 0 <= ext_len <= N;
//   k_in, v_in [S, K, T_in, D]. Every query sees the first ext_len[s] external keys and all T_in
//   internal keys; keys from ext_len[s] on are not read.
//   kept (may be null; C++ only): receives the weights, so that topk_sets needs no second walk over
//   the keys. It stays undefined on a GPU, where writing the weights takes longer than a walk.
//   spread (may be null; C++ only): is filled. The other results are the same with and without it.
//   A GPU's kernels fill it in a second walk over the keys.
// A GPU may let a library read a long prefix, which rounds A_out to the type of q
// (kernels/cuda/library_attention.h). The promises below that other calls equal this one bit for
// bit then hold within that rounding.
SplitAttention split_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                               ExternalWeights* kept = nullptr, WeightSpread* spread = nullptr);

// The external pair is the one that was used, from this or an earlier step.
struct SourcedAttention : SplitAttention {
  at::Tensor keys_read;  // [S, K] int64: external keys read
};

// split_attention in which some query heads take their external pair from an earlier step
// (FlashBlock, section 4.2). These heads cost O(T * T_in). A KV head's prefix is read only if one
// of its rows needs it; else its keys_read is 0. With an all-false mask, the result equals
// split_attention bit for bit.
//   cached_external [S, H, T, D] and cached_lse [S, H, T], float32 (may be undefined if no row
//   takes it); reuse_mask [H] or [S, H] bool on the CPU. refresh_rows [S, T] bool on the CPU (may
//   be undefined: none): in the heads that reuse, these queries compute their external pair from
//   the whole prefix, too. The returned external pair is then the cached one, updated in these
//   rows. The cost of the prefix is that of the rows that read it, and a row's result doesn't
//   depend on the other rows. With all rows, the result equals split_attention bit for bit.
//   `spread` knows a head that reuses only if all its rows are read.
SourcedAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                 const at::Tensor& v_ext, const at::Tensor& ext_len,
                                 const at::Tensor& k_in, const at::Tensor& v_in,
                                 const at::Tensor& cached_external, const at::Tensor& cached_lse,
                                 const at::Tensor& reuse_mask, double scale,
                                 WeightSpread* spread = nullptr,
                                 const at::Tensor& refresh_rows = {});

// split_attention over a selection of the external keys (MAGE, algorithm 1, phase 2). Every query
// of a KV head sees the keys of its set and all internal keys. Nothing else is read.
//   index [S, K, k] int32, in any order: each -1 (none) or in [0, ext_len[s]), and no key twice.
//   dense [S] bool on the CPU (may be undefined): sequences that read their whole prefix; their
//   index is ignored. residual [S, H, T, D] and lse_residual [S, H, T] float32 (may be undefined):
//   attention over keys outside the set, taken at an earlier step. It is merged into `out` as a
//   third part (FlashBlock, appendix D). lse -inf: no residual.
// A set with the whole prefix gives the result of split_attention bit for bit.
SourcedAttention gather_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                  const at::Tensor& v_ext, const at::Tensor& ext_len,
                                  const at::Tensor& index, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale,
                                  const at::Tensor& dense = {}, const at::Tensor& residual = {},
                                  const at::Tensor& lse_residual = {},
                                  WeightSpread* spread = nullptr);

struct PartialAttention {
  at::Tensor output;  // [S, H, T, D] float32
  at::Tensor lse;     // [S, H, T] float32
};

// Attention over the external keys outside the set: the residual for gather_attention at later
// steps. `index` is as in gather_attention. It reads these keys and never subtracts.
PartialAttention unselected_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& index, double scale);

// Block-causal attention over a sequence's own keys. The query at position p = query_start + t sees
// the keys [0, min(len[s], (p / block_length + 1) * block_length)). block_length 1 is causal
// attention.
//   q [S, H, T, D]; k, v [S, K, N, D]; len [S] int64 on the CPU, 0 <= len <= N.
//   Returns out [S, H, T, D] in the dtype of q. Rows that see no key are 0.
at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& len, int64_t block_length, double scale,
                             int64_t query_start = 0);

struct MergedAttention {
  at::Tensor out;  // [..., D] dtype of the parts
  at::Tensor lse;  // [...] float32
};

// Merges attention over disjoint key sets (FlashBlock eqs. 8-9, for any number of parts): lse = log
// sum exp(lse_i), out = sum exp(lse_i - lse) out_i. The largest lse is subtracted first. There must
// be at least one part; outputs[i] [..., D] of one dtype, lses[i] [...] float32. A part with lse
// -inf is skipped, whatever its output is.
MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& lses);

struct TopK {
  at::Tensor index;        // [S, K, k] int32, falling probability, ties to the lower position; -1
  at::Tensor probability;  // [S, K, k] float32                     and 0 where ext_len[s] < k
};

// The k external keys with the largest mean softmax probability over the G * T queries of a KV head
// (MAGE, eqs. 2-3): the mean over queries of exp(q . k * scale - lse). It streams the keys and
// needs O(N) memory per KV head. `lse` [S, H, T] float32 is the normaliser: lse_external (only the
// prefix) or the merged lse (prefix and block). k > 0. NaN probabilities rank last.
TopK block_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                const at::Tensor& lse, int64_t k, double scale);

struct TokenTopK {
  at::Tensor index;        // [S, K, T, k] int32, per query token: mean over its G queries
  at::Tensor probability;  // [S, K, T, k] float32
  at::Tensor union_size;   // [S, K] int32: distinct positions in the T sets
};

// block_topk for each query token separately, with the same order, padding and normaliser.
TokenTopK token_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                     const at::Tensor& lse, int64_t k, double scale);

struct TopKSets {
  at::Tensor index;              // [S, K, k] as in block_topk
  at::Tensor probability;        // [S, K, k]
  at::Tensor union_size;         // [S, K] int32, as in token_topk
  at::Tensor token_index;        // [S, K, T, k] as in token_topk; undefined without `with_tokens`
  at::Tensor token_probability;  // [S, K, T, k]
};

// block_topk and token_topk in one walk over the keys. Even cheaper without the tokens' own sets.
// C++ only, because registered operators can't leave results out.
TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens);

// The same, from the weights that split_attention kept; the keys are not read again.
TopKSets topk_sets(const ExternalWeights& kept, const at::Tensor& ext_len, const at::Tensor& lse,
                   int64_t k, bool with_tokens);

struct PageBounds {
  at::Tensor max;  // [S, K, P, D] dtype of k_ext: the largest value of each channel in a page,
  at::Tensor min;  // [S, K, P, D]                 and the smallest; 0 in pages after ext_len[s]
};

// Channel-wise bounds of pages of `page_size` keys (Quest, arXiv 2406.10774, section 3.3). P =
// ceil(N / page_size); the last page of a sequence may hold fewer keys. Committed keys never
// change, so a caller that keeps bounds needs only the pages from the last short one on.
PageBounds page_bounds(const at::Tensor& k_ext, const at::Tensor& ext_len, int64_t page_size);

// Upper bounds of the scores in a page, [S, K, P] float32: the mean over the G * T queries of a KV
// head of sum_d max(q_d * max_d, q_d * min_d), without the softmax scale. -inf in pages after
// ceil(ext_len[s] / page_size). With q = q+ + q- (its positive and negative parts), the sum is q+ .
// max + q- . min, which is linear in both parts. The mean over queries therefore costs one query
// per page.
at::Tensor page_scores(const at::Tensor& q, const PageBounds& bounds, const at::Tensor& ext_len,
                       int64_t page_size);

// The same for each query token separately, [S, K, T, P]: the mean over its G queries.
at::Tensor token_page_scores(const at::Tensor& q, const PageBounds& bounds,
                             const at::Tensor& ext_len, int64_t page_size);

// cos[...] float32 between a[..., D] and b[..., D] of one shape and dtype, accumulated in double. 0
// if a vector is exactly zero (an empty prefix has A_out = 0). NaN stays NaN.
at::Tensor cross_step_similarity(const at::Tensor& a, const at::Tensor& b);

// The operators that have kernels for devices. device_operators.h and fallback_operators.h declare
// them from this list.
#define BLOCKSCOPE_OPERATORS(OPERATOR) \
  OPERATOR(split_attention)            \
  OPERATOR(reuse_attention)            \
  OPERATOR(gather_attention)           \
  OPERATOR(unselected_attention)       \
  OPERATOR(prefill_attention)          \
  OPERATOR(merge_attention)            \
  OPERATOR(block_topk)                 \
  OPERATOR(token_topk)                 \
  OPERATOR(page_bounds)                \
  OPERATOR(page_scores)                \
  OPERATOR(token_page_scores)          \
  OPERATOR(cross_step_similarity)

// While one lives, operators that this thread calls run only on this thread.
class SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  bool before_;
};

// While one lives, this thread's gather_attention and unselected_attention calls on a device don't
// wait for the check of the positions. Positions that the check would refuse are ignored. Use it
// for sets that come from these operators. On the CPU, sets are always checked.
class TrustedSetsScope {
 public:
  TrustedSetsScope();
  ~TrustedSetsScope();
  TrustedSetsScope(const TrustedSetsScope&) = delete;
  TrustedSetsScope& operator=(const TrustedSetsScope&) = delete;

 private:
  bool before_;
};

// The instruction set that the operators use on this machine: "amx_bf16", "avx512_bf16", "avx512",
// "avx2" or "baseline".
std::string instruction_set();

}  // namespace blockscope
