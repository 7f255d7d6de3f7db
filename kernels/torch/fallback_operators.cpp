#include "kernels/torch/fallback_operators.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace blockscope::fallback {
namespace {

using at::Tensor;

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

/// Attention over one set of keys: out [K, R, D] float32, lse [K, R]. R: rows of a KV head.
struct Part {
  Tensor out, lse;
};

/// q [K, R, D], k and v [K, N, D], float32; `hidden` (may be undefined) broadcasts over [K, R, N].
Part attend(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
            const Tensor& hidden = {}) {
  if (k.size(1) == 0) {
    return {at::zeros_like(q), at::full(q.sizes().slice(0, 2), kMinusInf, q.options())};
  }
  Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(scale);
  if (hidden.defined()) scores.masked_fill_(hidden, kMinusInf);
  const Tensor lse = at::logsumexp(scores, {-1});
  const Tensor none = lse == kMinusInf;  // no visible key: weights of 0, not NaN
  const Tensor weights = scores.sub_(lse.masked_fill(none, 0.0).unsqueeze(-1)).exp_();
  return {at::bmm(weights, v), lse};
}

/// Rows [H, T, D] of any float type as rows of their KV heads: [K, G * T, D] float32.
Tensor by_kv_head(const Tensor& rows, int64_t kv_heads) {
  return rows.to(at::kFloat).reshape({kv_heads, -1, rows.size(-1)});
}

Part in_heads(const Part& part, at::IntArrayRef rows) {  // -> [H, T, D], [H, T]
  return {part.out.reshape(rows), part.lse.reshape(rows.slice(0, 2))};
}

/// Merges parts [..., D] and [...] float32 like merge_attention.
Part merge(const std::vector<Part>& parts) {
  std::vector<Tensor> lses;
  for (const Part& part : parts) lses.push_back(part.lse);
  Part merged{{}, at::logsumexp(at::stack(lses), {0})};
  for (const Part& part : parts) {
    const Tensor skipped = part.lse == kMinusInf;
    const Tensor weight = (part.lse - merged.lse).exp().masked_fill(skipped, 0.0).unsqueeze(-1);
    const Tensor term = part.out.masked_fill(skipped.unsqueeze(-1), 0.0) * weight;
    merged.out = merged.out.defined() ? merged.out + term : term;
  }
  return merged;
}

std::vector<int64_t> lengths_of(const Tensor& lengths) {
  const Tensor dense = lengths.contiguous();
  return {dense.const_data_ptr<int64_t>(), dense.const_data_ptr<int64_t>() + dense.numel()};
}

/// Copies a table of the host to the device of `like`.
Tensor beside(const Tensor& host, const Tensor& like) {
  return host.to(like.device(), /*non_blocking=*/true);
}

/// Collects the results of an operator over a block, sequence by sequence.
struct Sides {
  std::vector<Tensor> out, external, lse_external, internal, lse_internal;

  void add(const Part& ext, const Part& in, const Part& all) {
    out.push_back(all.out);
    external.push_back(ext.out);
    lse_external.push_back(ext.lse);
    internal.push_back(in.out);
    lse_internal.push_back(in.lse);
  }

  template <class Result>
  Result result(at::ScalarType type) const {
    Result made;
    made.out = at::stack(out).to(type);
    made.external = at::stack(external);
    made.lse_external = at::stack(lse_external);
    made.internal = at::stack(internal);
    made.lse_internal = at::stack(lse_internal);
    return made;
  }
};

/// One sequence of the arguments of an operator over a block, in float32.
struct Sequence {
  Tensor q;           // [K, G * T, D]
  Tensor key, value;  // [K, N, D]; the first `length` keys count
  Tensor block_key, block_value;
  int64_t length;
  at::IntArrayRef rows;  // [H, T, D]
  double scale;

  Part external() const {
    return in_heads(attend(q, key.narrow(1, 0, length), value.narrow(1, 0, length), scale), rows);
  }
  Part internal() const { return in_heads(attend(q, block_key, block_value, scale), rows); }
};

class Sequences {
 public:
  Sequences(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext, const Tensor& ext_len,
            const Tensor& k_in, const Tensor& v_in, double scale)
      : q_(q),
        k_ext_(k_ext),
        v_ext_(v_ext),
        k_in_(k_in),
        v_in_(v_in),
        lengths_(lengths_of(ext_len)),
        scale_(scale) {}

  int64_t count() const { return q_.size(0); }
  Sequence at(int64_t s) const {
    const int64_t length = lengths_[static_cast<size_t>(s)];
    // Keys after the length are not read, because they may hold NaN.
    const auto keys = [&](const Tensor& all) {
      return all.select(0, s).narrow(1, 0, length).to(at::kFloat);
    };
    const auto block = [&](const Tensor& all) {
      return all.defined() ? all.select(0, s).to(at::kFloat) : Tensor();
    };
    return {by_kv_head(q_.select(0, s), k_ext_.size(1)),
            keys(k_ext_),
            keys(v_ext_),
            block(k_in_),
            block(v_in_),
            length,
            q_.sizes().slice(1),
            scale_};
  }

 private:
  const Tensor &q_, &k_ext_, &v_ext_, &k_in_, &v_in_;
  std::vector<int64_t> lengths_;
  double scale_;
};

/// Positions of a set [K, k], -1 for none: [K, N] bool.
Tensor marks_of(const Tensor& index, int64_t length) {
  const Tensor at = index.to(at::kLong);
  Tensor marks = at::zeros({index.size(0), length + 1}, index.options().dtype(at::kBool));
  // -1 marks an extra place after the last key.
  marks.scatter_(1, at::where(at < 0, length, at), true);
  return marks.narrow(1, 0, length);
}

/// `pair` [H, T, D], [H, T] with attention over the prefix in the rows [T] of all heads.
Part with_fresh_rows(const Part& pair, const Sequence& of, const Tensor& rows) {
  const Tensor at = beside(rows.nonzero().squeeze(-1), of.q);
  if (at.numel() == 0) return pair;
  const Tensor q = of.q.reshape({of.q.size(0), -1, of.rows[1], of.rows[2]})
                       .index_select(2, at)
                       .reshape({of.q.size(0), -1, of.rows[2]});
  const Part fresh = in_heads(
      attend(q, of.key.narrow(1, 0, of.length), of.value.narrow(1, 0, of.length), of.scale),
      {of.rows[0], at.numel(), of.rows[2]});
  return {pair.out.index_copy(1, at, fresh.out), pair.lse.index_copy(1, at, fresh.lse)};
}

Part over_set(const Sequence& of, const Tensor& index) {
  if (of.length == 0 || index.size(1) == 0) {
    return in_heads(attend(of.q, of.key.narrow(1, 0, 0), of.value.narrow(1, 0, 0), of.scale),
                    of.rows);
  }
  const Tensor at = index.to(at::kLong).clamp_min(0).unsqueeze(-1).expand({-1, -1, of.key.size(2)});
  const Tensor hidden = (index < 0).unsqueeze(1);
  return in_heads(attend(of.q, of.key.gather(1, at), of.value.gather(1, at), of.scale, hidden),
                  of.rows);
}

struct Ranked {
  Tensor index, probability;  // [..., k]
};

/// The k best of [..., N], falling, ties to the lower position, NaN last. -1 and 0 fill the rest if
/// there are fewer.
Ranked best_of(const Tensor& values, int64_t k) {
  const int64_t count = std::min(k, values.size(-1));
  // Probabilities are never below 0.
  const Tensor ranked = at::where(at::isnan(values), -1.0, values);
  const Tensor order =
      std::get<1>(ranked.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, count);
  return {at::constant_pad_nd(order.to(at::kInt), {0, k - count}, -1),
          at::constant_pad_nd(values.gather(-1, order), {0, k - count}, 0)};
}

int64_t pages_of(int64_t keys, int64_t page_size) { return (keys + page_size - 1) / page_size; }

}  // namespace

SplitAttention split_attention(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                               const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in,
                               double scale, ExternalWeights* /*kept*/, WeightSpread* spread) {
  const Sequences sequences(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  Sides sides;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    const Sequence one = sequences.at(s);
    const Part external = one.external();
    const Part internal = one.internal();
    sides.add(external, internal, merge({external, internal}));
  }
  if (spread != nullptr) fill_spread(q, k_ext, ext_len, k_in, scale, {}, *spread);
  return sides.result<SplitAttention>(q.scalar_type());
}

SourcedAttention reuse_attention(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                                 const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in,
                                 const Tensor& cached_external, const Tensor& cached_lse,
                                 const Tensor& reuse_mask, double scale, WeightSpread* spread,
                                 const Tensor& refresh_rows) {
  const Sequences sequences(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  const int64_t kv_heads = k_ext.size(1);
  const Tensor mask = reuse_mask.expand({q.size(0), q.size(1)});
  const Tensor whole_groups = mask.reshape({q.size(0), kv_heads, -1}).all(-1);  // on the CPU
  const Tensor rows =
      refresh_rows.defined() ? refresh_rows : at::zeros({q.size(0), q.size(2)}, mask.options());
  const Tensor keys_read =
      ext_len.unsqueeze(1) * whole_groups.logical_and(~rows.any(-1, true)).logical_not();
  const Tensor reused = mask.unsqueeze(-1).logical_and(~rows.unsqueeze(1));  // [S, H, T]
  const Tensor taken = beside(reused, q);
  Sides sides;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    const Sequence one = sequences.at(s);
    const bool any = reused.select(0, s).any().item<bool>();
    const bool all = any && whole_groups.select(0, s).all().item<bool>();
    Part external;
    if (!all) external = one.external();
    if (any) {
      const Part cached{cached_external.select(0, s), cached_lse.select(0, s)};
      const Tensor here = taken.select(0, s);
      external = all ? with_fresh_rows(cached, one, rows.select(0, s))
                     : Part{at::where(here.unsqueeze(-1), cached.out, external.out),
                            at::where(here, cached.lse, external.lse)};
    }
    const Part internal = one.internal();
    sides.add(external, internal, merge({external, internal}));
  }
  SourcedAttention result = sides.result<SourcedAttention>(q.scalar_type());
  result.keys_read = beside(keys_read, q);
  if (spread != nullptr) {
    fill_spread(q, k_ext, ext_len, k_in, scale, {.reused = reused.any(-1)}, *spread);
  }
  return result;
}

SourcedAttention gather_attention(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                                  const Tensor& ext_len, const Tensor& index, const Tensor& k_in,
                                  const Tensor& v_in, double scale, const Tensor& dense,
                                  const Tensor& residual, const Tensor& lse_residual,
                                  WeightSpread* spread) {
  const Sequences sequences(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  Sides sides;
  std::vector<Tensor> read;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    const Sequence one = sequences.at(s);
    const bool whole = dense.defined() && dense[s].item<bool>();
    const Tensor set = index.select(0, s);
    const Part external = whole ? one.external() : over_set(one, set);
    read.push_back(whole ? at::full({k_ext.size(1)}, one.length, set.options().dtype(at::kLong))
                         : (set >= 0).sum(-1));
    const Part internal = one.internal();
    std::vector<Part> parts{external, internal};
    if (residual.defined()) parts.push_back({residual.select(0, s), lse_residual.select(0, s)});
    sides.add(external, internal, merge(parts));
  }
  SourcedAttention result = sides.result<SourcedAttention>(q.scalar_type());
  result.keys_read = at::stack(read);
  if (spread != nullptr) {
    fill_spread(q, k_ext, ext_len, k_in, scale, {.index = index, .dense = dense}, *spread);
  }
  return result;
}

PartialAttention unselected_attention(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                                      const Tensor& ext_len, const Tensor& index, double scale) {
  const Tensor none;
  const Sequences sequences(q, k_ext, v_ext, ext_len, none, none, scale);
  std::vector<Tensor> outputs;
  std::vector<Tensor> lses;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    const Sequence one = sequences.at(s);
    const Tensor hidden = marks_of(index.select(0, s), one.length).unsqueeze(1);
    const Part part = in_heads(attend(one.q, one.key, one.value, scale, hidden), one.rows);
    outputs.push_back(part.out);
    lses.push_back(part.lse);
  }
  return {at::stack(outputs), at::stack(lses)};
}

Tensor prefill_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& len,
                         int64_t block_length, double scale, int64_t query_start) {
  constexpr int64_t kRows = 512;  // query tokens at a time, because their scores are stored
  const Tensor none;
  const Sequences sequences(q, k, v, len, none, none, scale);
  std::vector<Tensor> outputs;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    const Sequence one = sequences.at(s);
    const Tensor heads = q.select(0, s);
    std::vector<Tensor> parts;
    for (int64_t begin = 0; begin < q.size(2); begin += kRows) {
      const int64_t rows = std::min(kRows, q.size(2) - begin);
      const int64_t last_block = (query_start + begin + rows - 1) / block_length + 1;
      const int64_t seen = std::min(one.length, last_block * block_length);
      const auto counted = q.options().dtype(at::kLong);
      const Tensor position = at::arange(query_start + begin, query_start + begin + rows, counted);
      const Tensor end = (at::div(position, block_length, "floor") + 1) * block_length;
      const Tensor hidden =
          at::arange(seen, counted).unsqueeze(0) >= end.unsqueeze(1);  // [rows, seen]
      const int64_t group = q.size(1) / k.size(1);
      const Tensor part = by_kv_head(heads.narrow(1, begin, rows), k.size(1));
      parts.push_back(attend(part, one.key.narrow(1, 0, seen), one.value.narrow(1, 0, seen), scale,
                             hidden.repeat({group, 1}).unsqueeze(0))
                          .out.reshape({q.size(1), rows, q.size(3)}));
    }
    outputs.push_back(parts.empty() ? heads.to(at::kFloat) : at::cat(parts, 1));
  }
  return at::stack(outputs).to(q.scalar_type());
}

MergedAttention merge_attention(const std::vector<Tensor>& outputs,
                                const std::vector<Tensor>& lses) {
  std::vector<Part> parts;
  for (size_t i = 0; i < outputs.size(); ++i) parts.push_back({outputs[i].to(at::kFloat), lses[i]});
  const Part merged = merge(parts);
  return {merged.out.to(outputs.front().scalar_type()), merged.lse};
}

TopKSets topk_sets(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len, const Tensor& lse,
                   int64_t k, double scale, bool with_tokens) {
  const std::vector<int64_t> lengths = lengths_of(ext_len);
  const int64_t kv_heads = k_ext.size(1);
  const int64_t tokens = q.size(2);
  std::vector<Tensor> index;
  std::vector<Tensor> probability;
  std::vector<Tensor> union_size;
  std::vector<Tensor> token_index;
  std::vector<Tensor> token_probability;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const int64_t length = lengths[static_cast<size_t>(s)];
    const Tensor key = k_ext.select(0, s).narrow(1, 0, length).to(at::kFloat);
    const Tensor rows = by_kv_head(q.select(0, s), kv_heads);
    const Tensor scores = at::bmm(rows, key.transpose(1, 2)).mul_(scale);
    const Tensor normaliser = lse.select(0, s).reshape({kv_heads, -1, 1});
    const Tensor p =
        (scores - normaliser).exp_().reshape({kv_heads, q.size(1) / kv_heads, tokens, length});
    const Tensor by_token = p.mean(1);  // [K, T, N]
    const Ranked block = best_of(by_token.mean(1), k);
    const Ranked each = best_of(by_token, k);
    index.push_back(block.index);
    probability.push_back(block.probability);
    union_size.push_back(marks_of(each.index.flatten(1), length).sum(-1).to(at::kInt));
    token_index.push_back(each.index);
    token_probability.push_back(each.probability);
  }
  TopKSets result{at::stack(index), at::stack(probability), at::stack(union_size), {}, {}};
  if (with_tokens) {
    result.token_index = at::stack(token_index);
    result.token_probability = at::stack(token_probability);
  }
  return result;
}

TopK block_topk(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len, const Tensor& lse,
                int64_t k, double scale) {
  TopKSets sets = topk_sets(q, k_ext, ext_len, lse, k, scale, /*with_tokens=*/false);
  return {std::move(sets.index), std::move(sets.probability)};
}

TokenTopK token_topk(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len, const Tensor& lse,
                     int64_t k, double scale) {
  TopKSets sets = topk_sets(q, k_ext, ext_len, lse, k, scale, /*with_tokens=*/true);
  return {std::move(sets.token_index), std::move(sets.token_probability),
          std::move(sets.union_size)};
}

PageBounds page_bounds(const Tensor& k_ext, const Tensor& ext_len, int64_t page_size) {
  const std::vector<int64_t> lengths = lengths_of(ext_len);
  const int64_t pages = pages_of(k_ext.size(2), page_size);
  std::vector<int64_t> shape = k_ext.sizes().vec();
  shape[2] = pages;
  const PageBounds bounds{at::zeros(shape, k_ext.options()), at::zeros(shape, k_ext.options())};
  for (int64_t s = 0; s < k_ext.size(0); ++s) {
    const int64_t length = lengths[static_cast<size_t>(s)];
    for (int64_t begin = 0; begin < length; begin += page_size) {
      const Tensor page = k_ext.select(0, s).narrow(1, begin, std::min(page_size, length - begin));
      bounds.max.select(0, s).select(1, begin / page_size).copy_(page.amax(1));
      bounds.min.select(0, s).select(1, begin / page_size).copy_(page.amin(1));
    }
  }
  return bounds;
}

namespace {

/// [S, K, P], or [S, K, T, P] for each token separately.
Tensor scores_of_pages(const Tensor& q, const PageBounds& bounds, const Tensor& ext_len,
                       int64_t page_size, bool per_token) {
  const std::vector<int64_t> lengths = lengths_of(ext_len);
  const int64_t kv_heads = bounds.max.size(1);
  const Tensor rows = q.to(at::kFloat).reshape({q.size(0), kv_heads, -1, q.size(2), q.size(3)});
  const auto mean_of = [&](const Tensor& part) {  // [S, K, T, D]
    return per_token ? part.mean(2) : part.mean({2, 3}).unsqueeze(2);
  };
  const auto against = [](const Tensor& part, const Tensor& bound) {
    return at::matmul(part, bound.to(at::kFloat).transpose(2, 3));
  };
  const Tensor scores = against(mean_of(rows.clamp_min(0.0)), bounds.max) +
                        against(mean_of(rows.clamp_max(0.0)), bounds.min);
  for (int64_t s = 0; s < q.size(0); ++s) {
    const int64_t used = pages_of(lengths[static_cast<size_t>(s)], page_size);
    scores.select(0, s).narrow(2, used, scores.size(3) - used).fill_(kMinusInf);
  }
  return per_token ? scores : scores.squeeze(2);
}

}  // namespace

Tensor page_scores(const Tensor& q, const PageBounds& bounds, const Tensor& ext_len,
                   int64_t page_size) {
  return scores_of_pages(q, bounds, ext_len, page_size, false);
}

Tensor token_page_scores(const Tensor& q, const PageBounds& bounds, const Tensor& ext_len,
                         int64_t page_size) {
  return scores_of_pages(q, bounds, ext_len, page_size, true);
}

Tensor cross_step_similarity(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(at::kDouble);
  const Tensor y = b.to(at::kDouble);
  const Tensor norm_x = x.norm(2, {-1});
  const Tensor norm_y = y.norm(2, {-1});
  const Tensor cosine = (x * y).sum(-1) / (norm_x * norm_y);
  return cosine.masked_fill((norm_x == 0.0).logical_or(norm_y == 0.0), 0.0).to(at::kFloat);
}

}  // namespace blockscope::fallback
