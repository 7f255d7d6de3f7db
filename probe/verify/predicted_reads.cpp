#include "probe/verify/predicted_reads.h"

#include <algorithm>

#include "probe/policies/sparsed_policy.h"

namespace blockscope {
namespace {

/// What each KV head of a layer with sets reads over one sequence's passes.
struct SetReads {
  int64_t all = 0;     // key rows of the prefix over the denoising steps
  int64_t read = 0;    // key rows read for attention
  int64_t choice = 0;  // rows read to choose
};

std::optional<SetReads> set_reads(const std::vector<PassRow>& rows, const PolicyOptions& policy) {
  const PolicyEntry& entry = policy_entry(policy);
  const SelectionOptions options = selection_options(policy, 0);
  const SetsFrom from = entry.sets_from(policy);
  SetReads reads;
  int64_t captured = 0;  // keys of the set that is kept for the run
  for (const PassRow& row : rows) {
    if (row.commit) continue;
    const int64_t length = row.context_length;
    const int64_t size = options.set_size(length);
    const int64_t capture =
        from == SetsFrom::once_a_run ? sparsed_capture_step(row.planned_steps) : 1;
    const int64_t step = from == SetsFrom::once_a_run ? row.run_step : row.step;
    const bool captures = from != SetsFrom::every_step && step == capture;
    const bool dense = from != SetsFrom::every_step && step <= capture;
    reads.all += length;
    if (captures) {
      captured = size;
      reads.choice += length + (options.residual ? 2 * (length - size) : 0);
    }
    if (dense) {
      reads.read += length;
      continue;
    }
    const auto step_reads =
        entry.reads(policy, length, from == SetsFrom::once_a_run ? captured : size);
    if (!step_reads) return std::nullopt;
    reads.read += step_reads->read;
    reads.choice += step_reads->scored;
  }
  return reads;
}

}  // namespace

ExternalReads predicted_reads(const std::vector<PassRow>& rows, const ReuseRule& rule,
                              const ReuseMasks& masks, const ReadShape& shape,
                              const std::optional<ErrorBound>& bound) {
  int64_t since_read = 0;  // as the decoder counts: a step that reads no row does not end the count
  int64_t all = 0;         // key rows of one KV head over the denoising steps
  int64_t products = 0;    // of one query head
  int64_t commits = 0;
  // Of the heads of a range's mask: key rows that they don't read, products that they don't
  // compute.
  std::vector<int64_t> unread(masks.heads.size()), saved(masks.heads.size());
  std::vector<bool> changed;  // rows of the block, since they last read the prefix
  for (const PassRow& row : rows) {
    const int64_t length = row.context_length;
    if (row.commit) {
      commits += length;
      continue;
    }
    const auto block = static_cast<int64_t>(row.changed_rows.size());
    const size_t range = masks.ranges.of(row.step);
    all += length;
    products += length * block;
    if (row.step == 1) {
      changed.assign(row.changed_rows.size(), false);
      since_read = 0;
    }
    since_read += row.decided;
    for (size_t i = 0; i < row.changed_rows.size(); ++i) {
      if (row.changed_rows[i]) changed[i] = true;
    }
    const bool reuses = bound ? bound->reuses(row.step, row.masked, changed)
                              : reuses_external(rule, row.step, row.changed, since_read);
    int64_t reading = reuses ? 0 : block;
    if (!reuses && row.step > 1) {
      const std::vector<bool> read = refreshed_rows(rule.refresh, changed, row.masked);
      reading = std::count(read.begin(), read.end(), true);
    }
    if (reading == 0) unread[range] += length;
    saved[range] += length * (block - reading);
    if (reading == 0) continue;
    changed.assign(changed.size(), false);
    since_read = 0;
  }
  ExternalReads reads(shape);
  reads.commit_rows = commits * shape.num_layers * shape.num_kv_heads;
  std::fill(reads.rows.begin(), reads.rows.end(), all);
  std::fill(reads.rows_read.begin(), reads.rows_read.end(), all);
  std::fill(reads.products.begin(), reads.products.end(), products);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  for (size_t range = 0; range < masks.heads.size(); ++range) {
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::vector<bool>& heads = masks.heads[range][static_cast<size_t>(layer)];
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        if (!heads[static_cast<size_t>(h)]) continue;
        reads.products_skipped[static_cast<size_t>(layer * shape.num_heads + h)] += saved[range];
      }
      for (int64_t k = 0; k < shape.num_kv_heads; ++k) {
        const auto first = heads.begin() + k * group;
        if (!std::all_of(first, first + group, [](bool reuse) { return reuse; })) continue;
        reads.rows_read[static_cast<size_t>(layer * shape.num_kv_heads + k)] -= unread[range];
      }
    }
  }
  return reads;
}

std::optional<ExternalReads> predicted_set_reads(const std::vector<PassRow>& rows,
                                                 const PolicyOptions& policy,
                                                 const ReadShape& shape) {
  const std::optional<SetReads> of_layer = set_reads(rows, policy);
  if (!of_layer) return std::nullopt;
  ExternalReads reads(shape);
  for (const PassRow& row : rows) {
    if (row.commit) reads.commit_rows += row.context_length * shape.num_layers * shape.num_kv_heads;
  }
  const int64_t exact = std::min(policy.exact_layers, shape.num_layers);
  const auto from_layer = [exact](auto& counts, int64_t heads, int64_t exact_count, int64_t count) {
    const auto first = counts.begin() + exact * heads;
    std::fill(counts.begin(), first, exact_count);
    std::fill(first, counts.end(), count);
  };
  from_layer(reads.rows, shape.num_kv_heads, of_layer->all, of_layer->all);
  from_layer(reads.rows_read, shape.num_kv_heads, of_layer->all, of_layer->read);
  const int64_t block = rows.empty() ? 0 : std::ssize(rows.front().changed_rows);
  from_layer(reads.products, shape.num_heads, of_layer->all * block, of_layer->all * block);
  from_layer(reads.products_skipped, shape.num_heads, 0, (of_layer->all - of_layer->read) * block);
  reads.choice_rows = (shape.num_layers - exact) * shape.num_kv_heads * of_layer->choice;
  return reads;
}

}  // namespace blockscope
