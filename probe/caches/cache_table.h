// The table of decoding caches. Each entry is in its cache's own file; cache_table.cpp lists them.
// docs/caches.md says where released code differs.
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

/// The models that a cache works with.
enum class CacheModel { block_causal, sub_blocks, bidirectional };

struct CacheEntry : Choice<CacheOptions> {
  CacheModel model = CacheModel::bidirectional;
  bool any_causal = false;        // works with all block-causal models, also token by token
  bool fuses_commits = false;     // the next block's first step also commits a block
  bool keeps_sub_blocks = false;  // keys of the block's other sub-blocks are kept (sub_blocks.h)
  bool single_rows = false;       // passes compute single rows of a block
  bool plugin = false;            // added by add_cache()
  bool approximates = true;       // kept entries can differ from newly computed ones
  /// Throws UsageError for options that contradict each other.
  std::function<void(const CacheOptions&)> check = [](const auto&) {};
  /// Makes the cache of one sequence; only for bidirectional models.
  std::function<std::unique_ptr<CanvasCache>(const CacheOptions&)> make;
  /// Two upper limits, for the size of a trace. `ranges`: position ranges that a pass computes at a
  /// layer. `later_keys`: keys that a pass stores after the first pass of the block at `start`.
  std::function<int64_t(const CacheOptions&, int64_t generated, int64_t total)> ranges =
      [](const CacheOptions&, int64_t, int64_t) { return int64_t{1}; };
  std::function<int64_t(int64_t start, int64_t total, bool last_block)> later_keys =
      [](int64_t, int64_t, bool) { return int64_t{0}; };
};

/// The built-in caches, then those that plugins added.
const std::vector<CacheEntry>& cache_table();
/// Adds a plugin's cache, as add_policy() does.
void add_cache(CacheEntry entry);
/// The entry of the cache that the options name. Throws UsageError for an unknown cache.
const CacheEntry& cache_entry(const CacheOptions& options);

/// "dllm-cache,prompt_interval=50". Throws UsageError: an unknown name or option, a value out of
/// range.
CacheOptions read_cache(std::string_view text);
std::string cache_text(const CacheOptions& options);

/// The names of the caches for these models: "none, prefix, dual, dllm-cache or d2cache".
std::string caches_of(CacheModel model);

}  // namespace blockscope
