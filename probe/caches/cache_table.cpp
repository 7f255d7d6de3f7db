#include "probe/caches/cache_table.h"

#include "decode_record/base/error.h"

namespace blockscope {

// Each is defined in its cache's file. The decoding loop itself implements the caches of
// block-causal models, so their entries are below.
CacheEntry none_entry();
CacheEntry prefix_entry();
CacheEntry dual_entry();
CacheEntry dllm_cache_entry();
CacheEntry d2_cache_entry();

namespace {

constexpr std::string_view kKindOfCache = "cache";

CacheEntry causal_entry(ChoiceFacts facts, CacheModel model) {
  CacheEntry entry;
  static_cast<ChoiceFacts&>(entry) = std::move(facts);
  entry.model = model;
  entry.approximates = false;
  return entry;
}

CacheEntry commit_entry() {
  CacheEntry entry = causal_entry({"commit", "finished blocks are committed by a pass of their own",
                                   "SDAR, generate.py:block_diffusion_generate", "commit"},
                                  CacheModel::block_causal);
  entry.any_causal = true;
  return entry;
}

CacheEntry blockd_entry() {
  CacheEntry entry = causal_entry(
      {"blockd", "finished blocks are committed by the pass of the next block's first step",
       "ours: the passes of commit, fused", "blockd"},
      CacheModel::block_causal);
  entry.fuses_commits = true;
  return entry;
}

CacheEntry block_entry() {
  CacheEntry entry =
      causal_entry({"block", "keys of the block's other sub-blocks are kept within the block",
                    "Fast-dLLM v2, use_block_cache", "block"},
                   CacheModel::sub_blocks);
  entry.keeps_sub_blocks = true;
  entry.single_rows = true;
  entry.approximates = true;
  return entry;
}

std::vector<CacheEntry>& caches() {
  static std::vector<CacheEntry> table{commit_entry(),     blockd_entry(),  block_entry(),
                                       none_entry(),       prefix_entry(),  dual_entry(),
                                       dllm_cache_entry(), d2_cache_entry()};
  return table;
}

}  // namespace

const std::vector<CacheEntry>& cache_table() { return caches(); }

void add_cache(CacheEntry entry) { add_plugin(kKindOfCache, caches(), std::move(entry)); }

const CacheEntry& cache_entry(const CacheOptions& options) {
  return entry_named(kKindOfCache, cache_table(), options.cache, options.cache);
}

CacheOptions read_cache(std::string_view text) {
  CacheOptions options;
  const CacheEntry& entry = read_choice(kKindOfCache, cache_table(), text, options);
  options.cache = entry.name;
  check_choice(kKindOfCache, text, [&] { entry.check(options); });
  return options;
}

std::string cache_text(const CacheOptions& options) {
  return choice_text(cache_entry(options), options);
}

std::string caches_of(CacheModel model) {
  std::vector<std::string> names;
  for (const CacheEntry& entry : cache_table()) {
    if (entry.model == model || (entry.any_causal && model == CacheModel::sub_blocks)) {
      names.push_back(entry.name);
    }
  }
  return list_of(names);
}

}  // namespace blockscope
