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
                              const ReuseMasks& masks, const LayerSizes& shape,
                              const std::optional<ErrorBound>& bound) {
  // For each range's mask, of the heads in it: key rows that they don't read, products that they
  // don't compute. By layer, as layers may see only a part of the prefix.
  const auto layers = static_cast<size_t>(shape.num_layers);
  const size_t ranges = masks.heads.size();
  std::vector<int64_t> all(layers), products(layers);
  std::vector<std::vector<int64_t>> unread(layers, std::vector<int64_t>(ranges)), saved = unread;
  const auto each_layer = [&](const PassRow& row, const auto& add) {
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      add(static_cast<size_t>(layer), shape.external_keys(layer, row.context_length));
    }
  };
  ExternalReads reads(shape);
  int64_t since_read = 0;  // as the decoder counts: a step that reads no row does not end the count
  std::vector<bool> changed;  // rows of the block, since they last read the prefix
  for (const PassRow& row : rows) {
    if (row.commit) {
      each_layer(row, [&](size_t layer, int64_t length) {
        reads.commit_rows[layer] += length * shape.kv_heads_of(static_cast<int64_t>(layer));
      });
      continue;
    }
    const auto block = static_cast<int64_t>(row.changed_rows.size());
    const size_t range = masks.ranges.of(row.step);
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
    each_layer(row, [&](size_t layer, int64_t length) {
      all[layer] += length;
      products[layer] += length * block;
      if (reading == 0) unread[layer][range] += length;
      saved[layer][range] += length * (block - reading);
    });
    if (reading == 0) continue;
    changed.assign(changed.size(), false);
    since_read = 0;
  }
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const int64_t kv_heads = shape.kv_heads_of(layer);
    const int64_t group = shape.group_size(layer);
    const auto of_kv = static_cast<std::ptrdiff_t>(layer * shape.num_kv_heads);
    const auto of_head = static_cast<std::ptrdiff_t>(layer * shape.num_heads);
    std::fill_n(reads.rows.begin() + of_kv, kv_heads, all[l]);
    std::fill_n(reads.rows_read.begin() + of_kv, kv_heads, all[l]);
    std::fill_n(reads.products.begin() + of_head, shape.num_heads, products[l]);
    for (size_t range = 0; range < ranges; ++range) {
      const std::vector<bool>& heads = masks.heads[range][l];
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        if (!heads[static_cast<size_t>(h)]) continue;
        reads.products_skipped[static_cast<size_t>(of_head + h)] += saved[l][range];
      }
      for (int64_t k = 0; k < kv_heads; ++k) {
        const auto first = heads.begin() + k * group;
        if (!std::all_of(first, first + group, [](bool reuse) { return reuse; })) continue;
        reads.rows_read[static_cast<size_t>(of_kv + k)] -= unread[l][range];
      }
    }
  }
  return reads;
}

std::optional<ExternalReads> predicted_set_reads(const std::vector<PassRow>& rows,
                                                 const PolicyOptions& policy,
                                                 const LayerSizes& shape) {
  const std::optional<SetReads> of_layer = set_reads(rows, policy);
  if (!of_layer) return std::nullopt;
  ExternalReads reads(shape);
  const int64_t exact = std::min(policy.exact_layers, shape.num_layers);
  const int64_t block = rows.empty() ? 0 : std::ssize(rows.front().changed_rows);
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const int64_t kv_heads = shape.kv_heads_of(layer);
    const bool windowed = shape.window_of(layer) > 0;  // read as a whole
    int64_t all = 0;
    for (const PassRow& row : rows) {
      const int64_t length = shape.external_keys(layer, row.context_length);
      if (row.commit) {
        reads.commit_rows[l] += length * kv_heads;
      } else {
        all += length;
      }
    }
    const bool chooses = layer >= exact && !windowed;
    const int64_t read = chooses ? of_layer->read : all;
    const auto of_kv = static_cast<std::ptrdiff_t>(layer * shape.num_kv_heads);
    const auto of_head = static_cast<std::ptrdiff_t>(layer * shape.num_heads);
    std::fill_n(reads.rows.begin() + of_kv, kv_heads, all);
    std::fill_n(reads.rows_read.begin() + of_kv, kv_heads, read);
    std::fill_n(reads.products.begin() + of_head, shape.num_heads, all * block);
    std::fill_n(reads.products_skipped.begin() + of_head, shape.num_heads, (all - read) * block);
    if (chooses) reads.choice_rows[l] = kv_heads * of_layer->choice;
  }
  return reads;
}

}  // namespace blockscope
