#include "probe/caches/cache_options.h"

#include <array>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::array<std::pair<CacheKind, const char*>, 8> kCacheNames{{
    {CacheKind::kCommit, "commit"},
    {CacheKind::kBlockd, "blockd"},
    {CacheKind::kBlock, "block"},
    {CacheKind::kNone, "none"},
    {CacheKind::kPrefix, "prefix"},
    {CacheKind::kDual, "dual"},
    {CacheKind::kDllm, "dllm-cache"},
    {CacheKind::kD2, "d2cache"},
}};

}  // namespace

CacheKind parse_cache(const std::string& name) {
  std::string known;
  for (const auto& [kind, text] : kCacheNames) {
    if (name == text) return kind;
    known += known.empty() ? text : std::string(", ") + text;
  }
  throw UsageError("--cache: expected one of " + known + ", got '" + name +
                   "'. HINT: write the name as it stands here, or leave the option out, which "
                   "approximates nothing");
}

std::string cache_name(CacheKind kind) {
  for (const auto& [value, text] : kCacheNames) {
    if (value == kind) return text;
  }
  return "unknown";
}

}  // namespace blockscope
