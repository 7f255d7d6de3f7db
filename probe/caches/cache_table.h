// The decoding caches by their names: one entry each, in the cache's own file, and the list of them
// in cache_table.cpp. What released code does differently is in docs/caches.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "probe/caches/cache_options.h"
#include "probe/caches/canvas_cache.h"
#include "probe/choices/choice.h"

namespace blockscope {

/// Which models a cache is of.
enum class CacheModel { block_causal, sub_blocks, bidirectional };

struct CacheEntry : Choice<CacheOptions> {
  CacheModel model = CacheModel::bidirectional;
  bool any_causal = false;        // block-causal models of all kinds, token by token too
  bool fuses_commits = false;     // a block is committed by the pass of the next one's first step
  bool keeps_sub_blocks = false;  // keys of the block's other sub-blocks are kept (sub_blocks.h)
  bool single_rows = false;       // passes compute single rows of a block
  bool approximates = true;       // what it keeps can differ from what would be computed
  /// Of a bidirectional model, for one sequence.
  std::function<std::unique_ptr<CanvasCache>(const CacheOptions&)> make;
  /// For the size of a trace: ranges of positions that a pass computes at a layer, at most, and
  /// keys that a pass after a block's first one stores, of a block from `start` on.
  std::function<int64_t(const CacheOptions&, int64_t generated, int64_t total)> ranges =
      [](const CacheOptions&, int64_t, int64_t) { return int64_t{1}; };
  std::function<int64_t(int64_t start, int64_t total, bool last_block)> later_keys =
      [](int64_t, int64_t, bool) { return int64_t{0}; };
};

const std::vector<CacheEntry>& cache_table();
/// Of the cache that the options name. Throws UsageError for an unknown one.
const CacheEntry& cache_entry(const CacheOptions& options);

/// "dllm-cache,prompt_interval=50". Throws UsageError: an unknown name or option, a value out of
/// range.
CacheOptions read_cache(std::string_view text);
std::string cache_text(const CacheOptions& options);

/// "none, prefix, dual, dllm-cache or d2cache": those of such models.
std::string caches_of(CacheModel model);

}  // namespace blockscope
