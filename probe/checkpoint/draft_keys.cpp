// The official code looks for most of these keys in dflash_config and, if they are not there,
// outside of it (`dflash/model.py:_draft_value`).
#include "probe/checkpoint/draft_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {

// Only a DFlash 2 draft has them.
constexpr const char* kDflash2Keys[] = {"conv_kernel_size", "conv_group_size", "selector_rank",
                                        "selector_top_k"};
constexpr double kMostFactor = 1e6;
constexpr const char* kSliding = "sliding_attention";

template <typename Value>
std::optional<Value> agreed(const JsonObject& keys, const std::string& key,
                            const std::optional<Value>& outer, const std::optional<Value>& inner) {
  if (outer && inner && *outer != *inner) {
    keys.fail(key, fmt::format("{} as outside of it", *outer));
  }
  return inner ? inner : outer;
}

std::optional<double> agreed_number(const JsonObject& file, const JsonObject& keys,
                                    const std::string& key, double low) {
  const auto outer = file.optional_number(key, low, kMostFactor);
  return agreed(keys, key, outer, keys.optional_number(key, low, kMostFactor));
}

bool is_second(const JsonObject& file) {
  return file.has("architectures") && file.raw().at("architectures").front() == kDflash2Class;
}

/// Which layers slide, as transformers' Qwen3Config says it.
std::vector<bool> sliding_layers(const JsonObject& keys, std::int64_t num_layers, bool windows) {
  constexpr std::int64_t kFirstWindowLayer = 28;  // Qwen3Config's default of max_window_layers
  std::vector<bool> slides;
  if (!keys.has("layer_types")) {
    const std::int64_t first =
        keys.optional_integer("max_window_layers", 0, kMaxLayers).value_or(kFirstWindowLayer);
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      slides.push_back(windows && layer >= first);
    }
    return slides;
  }
  const nlohmann::json& types = keys.raw().at("layer_types");
  const std::string expected =
      fmt::format("\"{}\" or \"full_attention\" for each of the {} layers", kSliding, num_layers);
  if (!types.is_array() || std::ssize(types) != num_layers) keys.fail("layer_types", expected);
  for (const nlohmann::json& type : types) {
    if (type != kSliding && type != "full_attention") {
      keys.fail("layer_types", expected, "other layer types are not supported");
    }
    slides.push_back(type == kSliding);
  }
  return slides;
}

/// Whether a layer is causal. z-lab's drafts: what is_causal, else dflash_config.causal says, else
/// the layers that slide. speculators': the layers that slide, unless the file says otherwise.
std::vector<bool> causal_layers(const JsonObject& file, const std::vector<bool>& slides) {
  const auto all = [&](bool causal) { return std::vector<bool>(slides.size(), causal); };
  if (!file.has("dflash_config")) {
    const bool whole = file.optional_boolean("sliding_window_non_causal").value_or(is_second(file));
    return whole ? all(false) : slides;
  }
  const auto outer = file.optional_boolean("is_causal");
  const auto inner = file.optional_object("dflash_config")->optional_boolean("causal");
  if (outer || inner) return all(outer.value_or(inner.value_or(false)));
  return slides;
}

}  // namespace

std::optional<std::int64_t> agreed_integer(const JsonObject& file, const JsonObject& keys,
                                           const std::string& key, std::int64_t low,
                                           std::int64_t high) {
  const auto outer = file.optional_integer(key, low, high);
  return agreed(keys, key, outer, keys.optional_integer(key, low, high));
}

void read_factors(const JsonObject& file, const JsonObject& keys, DraftConfig& draft) {
  constexpr double kLeast = 1e-6;  // the best tokens are those of the unscaled logits
  draft.embedding_scale = agreed_number(file, keys, "input_embedding_scale", kLeast).value_or(1.0);
  draft.output_multiplier = agreed_number(file, keys, "output_multiplier", kLeast).value_or(1.0);
  draft.soft_cap = agreed_number(file, keys, "final_logit_softcapping", 0.0).value_or(0.0);
}

std::optional<Dflash2Config> read_second(const JsonObject& file, const JsonObject& keys,
                                         const ModelConfig& model, std::int64_t block_size) {
  if (!is_second(file)) {
    for (const char* key : kDflash2Keys) {
      for (const JsonObject* object : {&file, &keys}) {
        if (!object->has(key)) continue;
        object->fail(key, fmt::format("nothing, or architectures [\"{}\"]", kDflash2Class),
                     "only a DFlash 2 draft has convolutions and a selector");
      }
    }
    return std::nullopt;
  }
  const auto required = [&](const char* key, std::int64_t most) {
    const auto value = agreed_integer(file, keys, key, 1, most);
    if (!value) keys.fail(key, "an integer, which a DFlash 2 draft needs");
    return *value;
  };
  Dflash2Config second;
  second.conv_taps = required("conv_kernel_size", block_size);
  second.conv_group = required("conv_group_size", model.hidden_size);
  if (model.hidden_size % second.conv_group != 0) {
    (keys.has("conv_group_size") ? keys : file)
        .fail("conv_group_size", fmt::format("a divisor of hidden_size ({})", model.hidden_size));
  }
  second.selector_rank = required("selector_rank", kMaxWidth);
  second.candidates = required("selector_top_k", model.vocab_size);
  return second;
}

void read_draft_windows(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  DraftConfig& draft = *config.draft;
  // Without use_sliding_window, Qwen3Config forgets the window.
  const bool windows =
      keys.optional_boolean("use_sliding_window").value_or(false) && keys.has("sliding_window");
  const std::vector<bool> slides = sliding_layers(keys, config.num_layers, windows);
  const std::vector<bool> causal = causal_layers(file.whole, slides);
  if (std::ranges::count(causal, true) > 0) draft.causal_layers = causal;
  if (std::ranges::count(slides, true) == 0) return;
  if (!windows) {
    keys.fail("layer_types", "no sliding layers without use_sliding_window and sliding_window",
              "the official code would run them without a window");
  }
  const std::int64_t least = draft.longest_round();
  const std::int64_t window = keys.integer("sliding_window", 1, kMaxPositions);
  if (window < least) {
    keys.fail("sliding_window", fmt::format("at least the {} positions of a round", least));
  }
  for (const bool slide : slides) {
    config.layer_shapes.push_back(
        {config.num_kv_heads, config.head_dim, slide ? window : 0, false, config.rope});
  }
}

void record_draft_keys(ModelConfig& config) {
  const DraftConfig& draft = *config.draft;
  const auto unless = [&config](double usual, const std::string& key, double value) {
    if (value != usual) add_resolved(config, "draft_" + key, value, "config.json:" + key);
  };
  unless(1.0, "input_embedding_scale", draft.embedding_scale);
  unless(1.0, "output_multiplier", draft.output_multiplier);
  unless(0.0, "final_logit_softcapping", draft.soft_cap);
  if (draft.from_anchor) {
    add_resolved(config, "draft_sample_from_anchor", true, "config.json:sample_from_anchor");
  }
  if (!config.layer_shapes.empty()) {
    std::vector<std::int64_t> windows;
    for (const LayerShape& layer : config.layer_shapes) windows.push_back(layer.window);
    add_resolved(config, "layer_window", windows, "config.json:layer_types, sliding_window");
  }
  if (!draft.causal_layers.empty()) {
    add_resolved(config, "draft_causal_layers", draft.causal_layers,
                 "config.json:is_causal or layer_types");
  }
  if (!draft.second) return;
  const std::int64_t values[] = {draft.second->conv_taps, draft.second->conv_group,
                                 draft.second->selector_rank, draft.second->candidates};
  for (std::size_t i = 0; i < std::size(values); ++i) {
    add_resolved(config, fmt::format("draft_{}", kDflash2Keys[i]), values[i],
                 fmt::format("config.json:{}", kDflash2Keys[i]));
  }
}

}  // namespace blockscope
