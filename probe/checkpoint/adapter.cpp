// See adapter.h. The keys are those of PEFT's LoraConfig (peft/tuners/lora/config.py) and
// PeftConfig.
#include "probe/checkpoint/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/json_object.h"

namespace blockscope {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kMostConfigBytes = 10'000'000;
constexpr std::int64_t kMostRank = 1 << 20;
constexpr double kMostAlpha = 1e9;

/// Keys that decide how an adapter is trained or found, and none of its numbers.
const std::set<std::string> kIrrelevant = {"base_model_name_or_path",
                                           "revision",
                                           "task_type",
                                           "auto_mapping",
                                           "peft_version",
                                           "inference_mode",
                                           "lora_dropout",
                                           "megatron_core",
                                           "megatron_config",
                                           "eva_config",
                                           "runtime_config",
                                           "qalora_group_size",
                                           "layers_pattern",
                                           "loftq_config",
                                           "corda_config",
                                           "lora_ga_config"};

bool is_neutral(const json& value) {
  return value.is_null() || value == json(false) ||
         ((value.is_object() || value.is_array()) && value.empty());
}

/// Whether PEFT applies `name` of target_modules or of a pattern to the module.
bool names_module(const std::string& name, const std::string& module) {
  return module == name || module.ends_with("." + name);
}

/// target_modules: a list of names. Each must name projections that an adapter may change.
std::vector<std::string> read_target_modules(const JsonObject& config,
                                             const std::vector<AdapterTarget>& targets) {
  const char* key = "target_modules";
  const json& value = config.has(key) ? config.raw()[key] : json();
  if (!value.is_array() || value.empty()) {
    config.fail(key, "a list of module names", "a pattern is not supported: list the modules");
  }
  std::vector<std::string> names;
  for (const json& name : value) {
    const bool fits = name.is_string() && std::ranges::any_of(targets, [&](const auto& target) {
                        return names_module(name.get<std::string>(), target.module());
                      });
    if (!fits) {
      throw CheckpointError(fmt::format(
          "{}: key \"{}\": expected only attention projections, such as {}, got {}. HINT: merge "
          "adapters of other modules with PEFT's merge_and_unload()",
          config.where(), key, targets.front().module(), json_excerpt(name)));
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

/// layers_to_transform: a layer or a list of layers; unset: all.
std::optional<std::set<std::int64_t>> read_layers(const JsonObject& config, std::int64_t count) {
  const char* key = "layers_to_transform";
  if (!config.has(key)) return std::nullopt;
  const json& value = config.raw()[key];
  std::set<std::int64_t> layers;
  for (const json& layer : value.is_array() ? value : json::array({value})) {
    if (!layer.is_number_integer() || layer < 0 || layer >= count) {
      config.fail(key, fmt::format("layers from 0 to {}", count - 1));
    }
    layers.insert(layer.get<std::int64_t>());
  }
  return layers;
}

/// The number for a module: that of the pattern which names it, else `usual`.
double from_pattern(const JsonObject& config, const char* key, const std::string& module,
                    double usual, bool whole) {
  const auto pattern = config.optional_object(key);
  if (!pattern) return usual;
  std::optional<double> found;
  for (const auto& [name, value] : pattern->raw().items()) {
    const bool plain = std::ranges::all_of(
        name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
    if (!plain) pattern->fail(name, "the name of a module, not a regular expression");
    if (!names_module(name, module)) continue;
    const double number = whole ? static_cast<double>(pattern->integer(name, 1, kMostRank))
                                : pattern->number(name, 0.0, kMostAlpha);
    if (found && *found != number) {
      config.fail(key, fmt::format("one value for {}", module), "leave the shorter name out");
    }
    found = number;
  }
  return found.value_or(usual);
}

void check_keys(const JsonObject& config) {
  if (config.optional_string("peft_type").value_or("") != "LORA") {
    config.fail("peft_type", "\"LORA\"");
  }
  if (config.optional_string("bias").value_or("none") != "none") {
    config.fail("bias", "\"none\"", "merge trained biases with PEFT's merge_and_unload()");
  }
  if (config.has("init_lora_weights")) {  // PiSSA, OLoRA, CorDA and LoftQ also change the base
    const json& value = config.raw()["init_lora_weights"];
    const std::set<json> fits = {true, false, "gaussian", "eva", "orthogonal"};
    if (fits.count(value) == 0) {
      config.fail("init_lora_weights", "an initialisation that leaves the base weights alone",
                  "convert it with PEFT (path_initial_model_for_weight_conversion)");
    }
  }
  const std::set<std::string> used = {"peft_type",         "bias",
                                      "init_lora_weights", "r",
                                      "lora_alpha",        "alpha_pattern",
                                      "use_rslora",        "rank_pattern",
                                      "target_modules",    "layers_to_transform"};
  for (const auto& [key, value] : config.raw().items()) {
    if (used.count(key) > 0 || kIrrelevant.count(key) > 0 || is_neutral(value)) continue;
    config.fail(key, "a plain LoRA adapter, without this key",
                "merge such an adapter with PEFT's merge_and_unload()");
  }
}

const TensorInfo& tensor_of(const SafetensorsFile& file, const std::string& name,
                            const std::vector<std::int64_t>& shape) {
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) {
    throw CheckpointError(fmt::format(
        "{}: expected tensor \"{}\" {}, got none of this name. HINT: adapter_config.json names its "
        "module; save the adapter again",
        file.path().string(), name, shape_text(shape)));
  }
  if (tensor->shape != shape || !is_weight_dtype(tensor->dtype)) {
    throw CheckpointError(fmt::format(
        "{}: tensor \"{}\": expected F32, F16 or BF16 {}, got {} {}. HINT: the rank is in "
        "adapter_config.json, the other size is the model's",
        file.path().string(), name, shape_text(shape), tensor_dtype_name(tensor->dtype),
        shape_text(tensor->shape)));
  }
  return *tensor;
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

std::string AdapterTarget::module() const {
  return weight.substr(0, weight.size() - std::string(".weight").size());
}
std::string AdapterTarget::a() const {
  return fmt::format("base_model.model.{}.lora_A.weight", module());
}
std::string AdapterTarget::b() const {
  return fmt::format("base_model.model.{}.lora_B.weight", module());
}

std::vector<AdapterTarget> adapter_targets(const ModelConfig& config, std::string_view modules) {
  const WeightNames& names = family_of(config).weights;
  if (!names.qkv.empty()) {
    throw CheckpointError(
        fmt::format("{}: adapters: expected a family with separate q, k and v, got {}. HINT: merge "
                    "the adapter with PEFT's merge_and_unload()",
                    config.where, config.model_type));
  }
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.num_heads * config.head_dim;
  const std::int64_t key = config.num_kv_heads * config.head_dim;
  struct Part {
    char letter;
    const std::string& name;
    std::int64_t out, in;
  };
  const std::array<Part, 4> parts{{{'q', names.q, query, hidden},
                                   {'k', names.k, key, hidden},
                                   {'v', names.v, key, hidden},
                                   {'o', names.o, hidden, query}}};
  std::vector<AdapterTarget> targets;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const Part& part : parts) {
      if (modules.find(part.letter) == std::string_view::npos) continue;
      targets.push_back({names.layer_prefix(layer) + part.name + ".weight", part.out, part.in});
    }
  }
  return targets;
}

Adapter Adapter::open(const std::filesystem::path& folder, const ModelConfig& model) {
  const std::vector<AdapterTarget> targets = adapter_targets(model, kAdapterModules);
  const std::filesystem::path path = folder / kAdapterConfigName;
  const JsonObject config =
      JsonObject::parse(read_checkpoint_text(path, kMostConfigBytes), path.string());
  check_keys(config);
  const std::vector<std::string> names = read_target_modules(config, targets);
  const auto layers = read_layers(config, model.num_layers);
  const auto rank = static_cast<double>(config.integer("r", 1, kMostRank));
  const double alpha = config.number("lora_alpha", 0.0, kMostAlpha);
  const bool root = config.optional_boolean("use_rslora").value_or(false);

  Adapter adapter(SafetensorsFile::open(folder / kAdapterWeightsName));
  adapter.folder_ = folder;
  std::set<std::string> known;
  const std::size_t per_layer = targets.size() / static_cast<std::size_t>(model.num_layers);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const AdapterTarget& target = targets[i];
    const std::string module = target.module();
    const bool named = std::ranges::any_of(
        names, [&](const std::string& name) { return names_module(name, module); });
    if (!named || (layers && layers->count(static_cast<std::int64_t>(i / per_layer)) == 0)) {
      continue;
    }
    const double r = from_pattern(config, "rank_pattern", module, rank, true);
    const double own_alpha = from_pattern(config, "alpha_pattern", module, alpha, false);
    const auto size = static_cast<std::int64_t>(r);
    AdaptedWeight weight{target, nullptr, nullptr, own_alpha / (root ? std::sqrt(r) : r)};
    weight.a = &tensor_of(adapter.file_, target.a(), {size, target.in});
    weight.b = &tensor_of(adapter.file_, target.b(), {target.out, size});
    known.insert({target.a(), target.b()});
    adapter.weights_.push_back(std::move(weight));
  }
  for (const TensorInfo& tensor : adapter.file_.tensors()) {
    if (known.count(tensor.name) > 0) continue;
    throw CheckpointError(fmt::format(
        "{}: tensor \"{}\": expected only lora_A and lora_B of the modules {} in layers 0 to {}, "
        "got this one too. HINT: the adapter is for another model, or has trained more than LoRA",
        adapter.file_.path().string(), tensor.name, fmt::join(names, ", "), model.num_layers - 1));
  }
  return adapter;
}

std::string Adapter::base_digest() const {
  const auto found = file_.metadata().find(kBaseDigestKey);
  return found == file_.metadata().end() ? "" : found->second;
}

std::string Adapter::digest() const {
  Sha256 hash;
  const auto update = [&hash](const void* data, std::size_t size) {
    hash.update({static_cast<const std::uint8_t*>(data), size});
  };
  for (const AdaptedWeight& weight : weights_) {
    for (const TensorInfo* tensor : {weight.a, weight.b}) {
      const std::string text =
          fmt::format("{} {} {} {}\n", tensor->name, weight.scale, tensor_dtype_name(tensor->dtype),
                      shape_text(tensor->shape));
      update(text.data(), text.size());
      update(tensor->data, static_cast<std::size_t>(tensor->size));
    }
  }
  std::string text;
  for (const std::uint8_t byte : hash.finish()) text += fmt::format("{:02x}", byte);
  return text;
}

std::string adapter_config_json(const LoraOptions& options, const ModelConfig& model,
                                const std::string& base) {
  nlohmann::ordered_json modules = nlohmann::ordered_json::array();
  const std::vector<AdapterTarget> targets = adapter_targets(model, options.modules);
  for (std::size_t i = 0; i < options.modules.size(); ++i) {
    modules.push_back(last_part(targets[i].module()));
  }
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", base},
                                   {"revision", nullptr},
                                   {"inference_mode", true},
                                   {"r", options.rank},
                                   {"lora_alpha", options.alpha},
                                   {"lora_dropout", options.dropout},
                                   {"target_modules", std::move(modules)},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", false},
                                   {"init_lora_weights", true},
                                   {"modules_to_save", nullptr},
                                   {"layers_to_transform", nullptr},
                                   {"layers_pattern", nullptr},
                                   {"rank_pattern", nlohmann::ordered_json::object()},
                                   {"alpha_pattern", nlohmann::ordered_json::object()},
                                   {"use_rslora", false},
                                   {"use_dora", false}};
  if (options.alpha == std::floor(options.alpha)) {  // PEFT writes whole numbers as such
    config["lora_alpha"] = static_cast<std::int64_t>(options.alpha);
  }
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace blockscope
