#include "decode_record/schema/layer_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace blockscope {
namespace {

/// "8", or "2 or 8" where layers differ.
std::string distinct(const std::vector<std::int64_t>& values, std::int64_t otherwise) {
  if (values.empty()) return std::to_string(otherwise);
  return fmt::format("{}", fmt::join(std::set<std::int64_t>(values.begin(), values.end()), " or "));
}

}  // namespace

std::string LayerSizes::kv_heads_text() const {
  const bool one = num_kv_heads == 1;  // then every layer has one
  return fmt::format("{} KV head{}", distinct(layer_kv_heads, num_kv_heads), one ? "" : "s");
}

std::string LayerSizes::head_dim_text() const { return distinct(layer_head_dim, head_dim); }

std::string LayerSizes::window_text() const {
  std::vector<std::int64_t> windows = layer_window;
  std::erase(windows, 0);
  if (windows.empty()) return "";
  return fmt::format("window {} in {} of {} layers", distinct(windows, 0), windows.size(),
                     num_layers);
}

}  // namespace blockscope
