#include "probe/caches/block_caches.h"

#include <numeric>
#include <optional>
#include <vector>

#include "probe/caches/cache_table.h"

namespace blockscope {
namespace {

enum class Recomputes { kEverything, kFromBlock, kBlock };

class BlockCache : public CanvasCache {
 public:
  explicit BlockCache(Recomputes recomputes) : recomputes_(recomputes) {}

  std::vector<int64_t> rows(const CanvasState& state) override {
    int64_t begin = 0;
    int64_t end = state.length;
    if (state.step > 1 && recomputes_ != Recomputes::kEverything) begin = state.block_start;
    if (state.step > 1 && recomputes_ == Recomputes::kBlock) end = state.block_end();
    rows_.resize(static_cast<size_t>(end - begin));
    std::iota(rows_.begin(), rows_.end(), begin);
    return rows_;
  }

  std::optional<std::vector<int64_t>> repeats() const override { return std::vector<int64_t>(); }

  /// With a token shift, later passes lack the row that predicts the block's first position: the
  /// first pass decides it, whatever its confidence, and nothing else.
  bool decides_first_position_only(const CanvasState& state) const override {
    return recomputes_ != Recomputes::kEverything && state.logit_shift > 0 && state.step == 1;
  }

 private:
  Recomputes recomputes_;
};

}  // namespace

std::unique_ptr<CanvasCache> make_no_cache() {
  return std::make_unique<BlockCache>(Recomputes::kEverything);
}

std::unique_ptr<CanvasCache> make_prefix_cache() {
  return std::make_unique<BlockCache>(Recomputes::kFromBlock);
}

std::unique_ptr<CanvasCache> make_dual_cache() {
  return std::make_unique<BlockCache>(Recomputes::kBlock);
}

CacheEntry none_entry() {
  CacheEntry entry;
  entry.name = entry.example = "none";
  entry.meaning = "every pass computes the whole canvas";
  entry.source = "LLaDA";
  entry.approximates = false;
  entry.make = [](const CacheOptions&) { return make_no_cache(); };
  entry.later_keys = [](int64_t, int64_t total, bool) { return total; };
  return entry;
}

CacheEntry prefix_entry() {
  CacheEntry entry;
  entry.name = entry.example = "prefix";
  entry.meaning = "keys before the block stay as of its first pass";
  entry.source = "Fast-dLLM, arXiv 2505.22618, section 3.2; generate_with_prefix_cache";
  entry.make = [](const CacheOptions&) { return make_prefix_cache(); };
  entry.later_keys = [](int64_t start, int64_t total, bool last_block) {
    return last_block ? 0 : total - start;
  };
  return entry;
}

CacheEntry dual_entry() {
  CacheEntry entry;
  entry.name = entry.example = "dual";
  entry.meaning = "keys outside the block stay as of its first pass";
  entry.source = "Fast-dLLM, arXiv 2505.22618, section 3.3; generate_with_dual_cache";
  entry.make = [](const CacheOptions&) { return make_dual_cache(); };
  return entry;
}

}  // namespace blockscope
