#include "probe/policies/quest_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

int64_t pages_of(int64_t keys, int64_t page_size) { return (keys + page_size - 1) / page_size; }

/// The keys of the `taken` best pages of each row: scores [1, K, P] -> [K, n] int32. A row that
/// took the short last page ends with -1.
at::Tensor best_pages(const at::Tensor& scores, int64_t taken, int64_t page_size, int64_t length) {
  const int64_t kv_heads = scores.size(1);
  const int64_t pages = scores.size(2);
  const float* score = scores.const_data_ptr<float>();
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(kv_heads));
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (int64_t head = 0; head < kv_heads; ++head, score += pages) {
    for (size_t p = 0; p < order.size(); ++p) order[p] = static_cast<int32_t>(p);
    // NaN ranks last: it compares false with everything else.
    const auto better = [&](int32_t a, int32_t b) {
      const bool a_nan = score[a] != score[a];
      const bool b_nan = score[b] != score[b];
      if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
      return score[a] != score[b] ? score[a] > score[b] : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + taken, order.end(), better);
    std::vector<int32_t>& row = rows[static_cast<size_t>(head)];
    for (int64_t i = 0; i < taken; ++i) {
      const int64_t begin = order[static_cast<size_t>(i)] * page_size;
      for (int64_t n = begin; n < std::min(begin + page_size, length); ++n) {
        row.push_back(static_cast<int32_t>(n));
      }
    }
  }
  // KV heads that took the short last page have fewer keys.
  size_t widest = 0;
  for (const auto& row : rows) widest = std::max(widest, row.size());
  at::Tensor index = at::full({kv_heads, static_cast<int64_t>(widest)}, -1, at::kInt);
  auto* out = index.mutable_data_ptr<int32_t>();
  for (size_t head = 0; head < rows.size(); ++head) {
    std::copy(rows[head].begin(), rows[head].end(), out + head * widest);
  }
  return index;
}

/// The same on a device, without waiting for it. NaN ranks last: it becomes -infinity, and
/// -infinity the lowest finite number.
at::Tensor best_pages_there(const at::Tensor& scores, int64_t taken, int64_t page_size,
                            int64_t length) {
  const at::Tensor rows = scores.squeeze(0);
  const at::Tensor ranked =
      rows.clamp_min(std::numeric_limits<float>::lowest())
          .masked_fill(rows.ne(rows), -std::numeric_limits<double>::infinity());
  const at::Tensor order =
      std::get<1>(ranked.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(1, 0, taken);
  const at::Tensor keys = at::arange(page_size, order.options());
  const at::Tensor index = (order.unsqueeze(-1) * page_size + keys).flatten(1).to(at::kInt);
  const at::Tensor behind = index.ge(length);
  const at::Tensor kept_first = std::get<1>(behind.to(at::kInt).sort(/*stable=*/true, -1, false));
  return index.masked_fill(behind, -1).gather(1, kept_first);
}

class QuestPolicy : public SelectionPolicy {
 public:
  QuestPolicy(const SelectionOptions& options, int64_t page_size)
      : SelectionPolicy("quest", options), page_size_(page_size) {}

  int64_t selected_size(int64_t longest) const override {
    return pages_of(SelectionPolicy::selected_size(longest), page_size_) * page_size_;
  }

 protected:
  bool dense(const SequencePass& /*pass*/) const override { return false; }

  void choose(const SequenceAttention& at, KeySelection& selection) override {
    const int64_t length = at.external.key.size(2);
    const int64_t kv_heads = at.external.key.size(1);
    if (length == 0) {
      selection.index = at::empty({kv_heads, 0}, at.external.key.options().dtype(at::kInt));
      return;
    }
    const PageBounds bounds = grown_bounds(at, length);
    const at::Tensor scores = page_scores(at.q, bounds, at.external.length, page_size_);
    const int64_t taken = pages_of(options().set_size(length), page_size_);
    selection.index =
        (scores.is_cpu() ? best_pages : best_pages_there)(scores, taken, page_size_, length);
  }

  /// Every KV head reads the largest and the least key of every page.
  int64_t rows_scored(const SequencePass& /*pass*/, int64_t length) const override {
    return 2 * pages_of(length, page_size_);
  }

  void reset_slot(int64_t slot) override {
    if (bounds_.size() <= static_cast<size_t>(slot)) bounds_.resize(static_cast<size_t>(slot) + 1);
    bounds_[static_cast<size_t>(slot)].assign(static_cast<size_t>(options().num_layers), {});
  }
  void move_slot(int64_t from, int64_t to) override {
    bounds_[static_cast<size_t>(to)] = std::move(bounds_[static_cast<size_t>(from)]);
  }

 private:
  struct LayerBounds {
    at::Tensor max, min;  // [1, K, capacity, D]
    int64_t length = 0;   // keys they cover
  };

  /// Bounds of the pages up to `length` keys. Only those from the last short page on are made anew.
  PageBounds grown_bounds(const SequenceAttention& at, int64_t length) {
    LayerBounds& kept = bounds_[static_cast<size_t>(at.slot)][static_cast<size_t>(at.layer)];
    const int64_t pages = pages_of(length, page_size_);
    if (kept.length < length) {
      if (!kept.max.defined() || kept.max.size(2) < pages) {
        const int64_t capacity = std::max<int64_t>(2 * pages, 16);
        const auto grow = [&](at::Tensor& tensor) {
          at::Tensor larger =
              at::empty({1, at.external.key.size(1), capacity, at.external.key.size(3)},
                        at.external.key.options());
          if (tensor.defined()) larger.narrow(2, 0, tensor.size(2)).copy_(tensor);
          tensor = std::move(larger);
        };
        grow(kept.max);
        grow(kept.min);
      }
      const int64_t first = kept.length / page_size_;
      const int64_t begin = first * page_size_;
      const PageBounds fresh = page_bounds(at.external.key.narrow(2, begin, length - begin),
                                           at::full({1}, length - begin, at::kLong), page_size_);
      kept.max.narrow(2, first, pages - first).copy_(fresh.max);
      kept.min.narrow(2, first, pages - first).copy_(fresh.min);
      kept.length = length;
    }
    return {kept.max.narrow(2, 0, pages), kept.min.narrow(2, 0, pages)};
  }

  int64_t page_size_;
  std::vector<std::vector<LayerBounds>> bounds_;  // by slot and layer
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_quest_policy(const SelectionOptions& options,
                                                   int64_t page_size) {
  if (page_size < 1) {
    throw UsageError(fmt::format("page: expected at least 1 key, got {}", page_size));
  }
  return std::make_unique<QuestPolicy>(options, page_size);
}

PolicyEntry quest_entry() {
  PolicyEntry entry = sparse_entry(
      {"quest", "at every step, the pages of keys with the largest bound on their score",
       "Quest, arXiv 2406.10774; mit-han-lab/Quest 01c1623", "quest,k=512,page=16"},
      {whole_option("page", &PolicyOptions::page, 1, "number of keys in a page")});
  entry.refuses = [](const PolicyOptions&, const PolicySite& site) -> std::string {
    if (!site.bidirectional) return "";
    return "keeps bounds of committed keys, but a bidirectional model's keys change. HINT: use "
           "another policy";
  };
  entry.reads = [](const PolicyOptions& options, int64_t length,
                   int64_t size) -> std::optional<StepReads> {
    const int64_t pages = (length + options.page - 1) / options.page;
    const int64_t taken = (size + options.page - 1) / options.page;
    // Nobody knows beforehand whether the short last page is among them.
    if (taken < pages && length % options.page != 0) return std::nullopt;
    return StepReads{std::min(taken * options.page, length), 2 * pages};
  };
  entry.scoring_flops = [](double) { return 2.0; };  // one mean query on the bounds
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_quest_policy(selection_options(options, model.num_layers), options.page);
  };
  return entry;
}

}  // namespace blockscope
