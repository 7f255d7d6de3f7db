// The attention operators of Blockscope: plain C++ functions over torch tensors. The same functions
// are registered as torch custom operators: blockscope.ops (Python) loads libblockscope_kernels.so
// and adds names, defaults and gradients; torch.ops.blockscope.<name> takes the same arguments as
// here and gives the members of the result structs as a tuple, in the order of their declaration.
//
// Dimension names: S sequences, H query heads, K KV heads (H = K * G; query head h reads KV head
// h / G), T query tokens, B block_length, N capacity of the external cache, D head_dim.
// q, k, v share one dtype: float32, float16 or bfloat16. They may be strided views: only the last
// dimension must be contiguous. Products are accumulated in float32; every lse is float32 and the
// natural logarithm of sum(exp(q . k * scale)).
//
// Empty sides: no keys, or only -inf scores, give output 0 and lse -inf, and a merge with such a
// side returns the other side bit for bit. NaN in a query gives NaN in that row (query head and
// token) only, NaN in a key in the rows that see it. NaN or infinity in channel d of a value gives
// one of them in channel d of the rows that see it, and in prefill_attention also of rows before
// it: a row that doesn't see a key weighs its value with 0, and up to 128 rows of a KV head walk
// the keys together. Results depend on the instruction set, never on the number of threads or on
// the other sequences of the batch.
// Tolerance against float64: lse 2e-5 * max(1, max |score|), float32 outputs 2e-5 * max |v| *
// max(1, max |score|); an `out` in bfloat16 / float16 is the float32 result rounded once. On the
// instruction set "amx_bf16" products of a weight and a bfloat16 value below 2^-126 are 0.
// Wrong shape, dtype, device, layout or length throws c10::Error naming the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct SplitAttention {
  at::Tensor out;           // [S, H, T, D] dtype of q, stored [S, T, H, D]: over all the keys
  at::Tensor external;      // [S, H, T, D] float32: A_out, over the external keys alone
  at::Tensor lse_external;  // [S, H, T] float32: L_out
  at::Tensor internal;      // [S, H, T, D] float32: A_in, over the internal keys alone
  at::Tensor lse_internal;  // [S, H, T] float32: L_in
};

// What an exact step weighed its external keys with, before it knew their sum: under any lse,
// weight * exp(max - lse) is the probability of a key. Tiles of 64 keys; row g * T + t of a KV
// head.
struct ExternalWeights {
  at::Tensor weight;  // [S, K, ceil(N / 64), G * T, 64] float32: exp(q . k * scale - max); nothing
                      // is written behind ext_len[s]
  at::Tensor max;     // [S, K, ceil(N / 64), G * T] float32
  bool defined() const { return weight.defined(); }
};

// Attention split at the block boundary (FlashBlock, arXiv 2602.05305, eqs. 3-7), in one pass over
// the keys: external keys first, then a fresh accumulator for the internal ones; no subtraction.
//   q [S, H, T, D]; k_ext, v_ext [S, K, N, D]; ext_len [S] int64 on the CPU, 0 <= ext_len <= N;
//   k_in, v_in [S, K, T_in, D]. Every query sees the first ext_len[s] external keys and all T_in
//   internal keys; nothing behind ext_len[s] is read.
//   kept (may be null; C++ only): gets the weights, which topk_sets chooses from without a second
//   walk over the keys. Stays undefined on a GPU: writing them would take longer than the walk.
SplitAttention split_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                               ExternalWeights* kept = nullptr);

// With the external pair that was used.
struct SourcedAttention : SplitAttention {
  at::Tensor keys_read;  // [S, K] int64: external keys read
};

// split_attention in which the external pair of some query heads is taken from an earlier step
// (FlashBlock section 4.2): O(T * T_in) for those heads; a KV head's prefix is read only if one of
// its query heads needs it, and keys_read is 0 elsewhere. With an all-false mask: bit for bit
// split_attention.
//   cached_external [S, H, T, D] and cached_lse [S, H, T], float32 (may be undefined if no head
//   reuses); reuse_mask [H] or [S, H] bool on the CPU.
SourcedAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                 const at::Tensor& v_ext, const at::Tensor& ext_len,
                                 const at::Tensor& k_in, const at::Tensor& v_in,
                                 const at::Tensor& cached_external, const at::Tensor& cached_lse,
                                 const at::Tensor& reuse_mask, double scale);

// split_attention over a selection of the external keys (MAGE, algorithm 1, phase 2): every query
// of a KV head sees the keys of its set and all internal keys; nothing else is read.
//   index [S, K, k] int32, in any order, each -1 (none) or in [0, ext_len[s]), no key twice;
//   dense [S] bool on the CPU (may be undefined): sequences that read their whole prefix, whatever
//   their index holds.
//   residual [S, H, T, D] and lse_residual [S, H, T] float32 (may be undefined): attention over
//   keys outside the set, taken at an earlier step; merged into `out` as a third part (FlashBlock,
//   appendix D). lse -inf: none.
// A set that holds the whole prefix gives split_attention bit for bit.
SourcedAttention gather_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                  const at::Tensor& v_ext, const at::Tensor& ext_len,
                                  const at::Tensor& index, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale,
                                  const at::Tensor& dense = {}, const at::Tensor& residual = {},
                                  const at::Tensor& lse_residual = {});

struct PartialAttention {
  at::Tensor output;  // [S, H, T, D] float32
  at::Tensor lse;     // [S, H, T] float32
};

// Attention over the external keys that are not in the set: the residual that gather_attention
// takes at later steps. `index` as there. Never by subtraction: the keys are read.
PartialAttention unselected_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& index, double scale);

// Block-causal attention over a sequence's own keys: the query at position p = query_start + t sees
// keys [0, min(len[s], (p / block_length + 1) * block_length)); block_length 1 is causal.
//   q [S, H, T, D]; k, v [S, K, N, D]; len [S] int64 on the CPU, 0 <= len <= N.
//   Returns out [S, H, T, D], dtype of q. Rows that see no key are 0.
at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& len, int64_t block_length, double scale,
                             int64_t query_start = 0);

struct MergedAttention {
  at::Tensor out;  // [..., D] dtype of the parts
  at::Tensor lse;  // [...] float32
};

// Merges attention over disjoint key sets (FlashBlock eqs. 8-9, for any number of parts):
// lse = log sum exp(lse_i), out = sum exp(lse_i - lse) out_i, the largest lse subtracted first.
// At least one part; outputs[i] [..., D] of one dtype, lses[i] [...] float32. A part whose lse is
// -inf is skipped, whatever its output holds.
MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& lses);

struct TopK {
  at::Tensor index;        // [S, K, k] int32, falling probability, ties to the lower position; -1
  at::Tensor probability;  // [S, K, k] float32                     and 0 where ext_len[s] < k
};

// The k external keys with the largest mean softmax probability over the G * T queries of a KV head
// (MAGE eqs. 2-3): mean over queries of exp(q . k * scale - lse). Streams the keys: O(N) memory per
// KV head. `lse` [S, H, T] float32 is the normaliser: lse_external (the prefix alone) or the merged
// lse (prefix + block). k > 0. NaN probabilities rank last.
TopK block_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                const at::Tensor& lse, int64_t k, double scale);

struct TokenTopK {
  at::Tensor index;        // [S, K, T, k] int32, per query token: mean over its G queries
  at::Tensor probability;  // [S, K, T, k] float32
  at::Tensor union_size;   // [S, K] int32: distinct positions in the T sets
};

// block_topk for each query token alone; the same order, padding and normaliser.
TokenTopK token_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                     const at::Tensor& lse, int64_t k, double scale);

struct TopKSets {
  at::Tensor index;              // [S, K, k] as block_topk
  at::Tensor probability;        // [S, K, k]
  at::Tensor union_size;         // [S, K] int32, as token_topk
  at::Tensor token_index;        // [S, K, T, k] as token_topk; undefined without `with_tokens`
  at::Tensor token_probability;  // [S, K, T, k]
};

// block_topk and token_topk in one walk over the keys; cheaper still without the tokens' own sets.
// C++ only: the registered operators can't leave results out.
TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens);

// The same of the weights that split_attention kept of q and k_ext, whose keys are not read again.
TopKSets topk_sets(const ExternalWeights& kept, const at::Tensor& ext_len, const at::Tensor& lse,
                   int64_t k, bool with_tokens);

struct PageBounds {
  at::Tensor max;  // [S, K, P, D] dtype of k_ext: the largest value of each channel in a page,
  at::Tensor min;  // [S, K, P, D]                 and the least; 0 in pages behind ext_len[s]
};

// Channel-wise bounds of pages of `page_size` keys (Quest, arXiv 2406.10774, section 3.3); P =
// ceil(N / page_size), the last page of a sequence may hold fewer keys. Keys never change once they
// are committed, so a caller that keeps bounds only asks for pages from the last short one on.
PageBounds page_bounds(const at::Tensor& k_ext, const at::Tensor& ext_len, int64_t page_size);

// Upper bounds of the scores in a page, [S, K, P] float32: the mean over the G * T queries of a KV
// head of sum_d max(q_d * max_d, q_d * min_d); not multiplied by the softmax scale. -inf in pages
// behind ceil(ext_len[s] / page_size). With q = q+ + q- (its positive and negative part) the sum is
// q+ . max + q- . min, linear in both parts: the mean over queries costs one query per page.
at::Tensor page_scores(const at::Tensor& q, const PageBounds& bounds, const at::Tensor& ext_len,
                       int64_t page_size);

// The same for each query token alone, [S, K, T, P]: mean over its G queries.
at::Tensor token_page_scores(const at::Tensor& q, const PageBounds& bounds,
                             const at::Tensor& ext_len, int64_t page_size);

// cos[...] float32 between a[..., D] and b[..., D] of one shape and dtype, accumulated in double.
// 0 where either vector is exactly zero (an empty prefix has A_out = 0); NaN stays NaN.
at::Tensor cross_step_similarity(const at::Tensor& a, const at::Tensor& b);

// The operators with kernels for devices: device_operators.h and fallback_operators.h declare them
// from this list.
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

// While it lives, the operators called on this thread run on this thread alone.
class SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  bool before_;
};

// While one lives, gather_attention and unselected_attention calls of this thread on a device other
// than the CPU don't wait for its verdict on the positions of their sets: those that they would
// refuse are left out. For sets that come from these operators. On the CPU they are checked all the
// same.
class TrustedSetsScope {
 public:
  TrustedSetsScope();
  ~TrustedSetsScope();
  TrustedSetsScope(const TrustedSetsScope&) = delete;
  TrustedSetsScope& operator=(const TrustedSetsScope&) = delete;

 private:
  bool before_;
};

// The instruction set the operators use here: "amx_bf16", "avx512_bf16", "avx512", "avx2" or
// "baseline".
std::string instruction_set();

}  // namespace blockscope
