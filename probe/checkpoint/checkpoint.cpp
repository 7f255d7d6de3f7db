// See checkpoint.h.
#include "probe/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/json_object.h"

namespace blockscope {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kListed = 10;
constexpr std::uintmax_t kMaxIndexBytes = 100'000'000;
constexpr const char* kIndexHint =
    "index and shards come from different saves: fetch the checkpoint again, or save it again";
const char* const kIndexName = "model.safetensors.index.json";
const char* const kSingleName = "model.safetensors";

/// Accepts only shards in the checkpoint's own folder, because an index could name any file.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

/// {"weight_map": {"<tensor>": "<shard>", ...}}
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const JsonObject index =
      JsonObject::parse(read_checkpoint_text(path, kMaxIndexBytes), path.string());
  const auto map = index.optional_object("weight_map");
  if (!map || map->raw().empty()) index.fail("weight_map", "an object of tensor to file name");
  std::map<std::string, std::string> result;
  for (const auto& [tensor, shard] : map->raw().items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get<std::string>())) {
      map->fail(tensor, "the name of a file in the checkpoint's folder");
    }
    result[tensor] = shard.get<std::string>();
  }
  return result;
}

std::vector<SafetensorsFile> open_shards(const fs::path& folder,
                                         const std::map<std::string, std::string>& weight_map) {
  std::set<std::string> names;
  for (const auto& [tensor, shard] : weight_map) names.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!fs::exists(folder / name)) missing.push_back(name);
  }
  if (!missing.empty()) {
    throw CheckpointError(fmt::format(
        "{}: expected {} shards, {} missing, first \"{}\". HINT: fetch the rest of the checkpoint",
        folder.string(), names.size(), missing.size(), missing.front()));
  }
  std::vector<SafetensorsFile> files;
  for (const std::string& name : names) files.push_back(SafetensorsFile::open(folder / name));
  return files;
}

/// Checks that the index and the shards' headers agree.
void check_weight_map(const std::vector<SafetensorsFile>& files,
                      const std::map<std::string, std::string>& weight_map,
                      const std::string& index_path) {
  std::set<std::pair<std::string, std::string>> present;
  for (const SafetensorsFile& file : files) {
    const std::string shard = file.path().filename().string();
    for (const TensorInfo& tensor : file.tensors()) {
      present.emplace(tensor.name, shard);
      const auto entry = weight_map.find(tensor.name);
      if (entry == weight_map.end() || entry->second != shard) {
        throw CheckpointError(fmt::format(
            "{}: tensor \"{}\" is in {}, expected the index to name this file, got {}. HINT: {}",
            index_path, tensor.name, shard, entry == weight_map.end() ? "nothing" : entry->second,
            kIndexHint));
      }
    }
  }
  for (const auto& item : weight_map) {
    if (present.count({item.first, item.second}) != 0) continue;
    throw CheckpointError(
        fmt::format("{}: expected tensor \"{}\" in {}, got a shard without it. HINT: {}",
                    index_path, item.first, item.second, kIndexHint));
  }
}

bool is_harmless_extra(const std::string& name, const ModelConfig& config) {
  const std::string suffix = "rotary_emb.inv_freq";
  const bool rotary = name.size() >= suffix.size() &&
                      name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  // d2t and t2d are whole numbers, which the draft's loader reads itself. The others are what its
  // trainer needs of the target.
  const bool of_draft =
      config.draft && (name == "d2t" || name == "t2d" || name.starts_with("verifier_"));
  const bool ignored =
      std::ranges::any_of(family_of(config).ignored_tensors,
                          [&](const std::string& prefix) { return name.starts_with(prefix); });
  return rotary || of_draft || ignored ||
         (config.tie_word_embeddings && name == family_of(config).weights.lm_head);
}

/// With a tied embedding, an LM head in the files must be its copy. If it is not, the files have
/// two meanings: transformers 4 uses the embedding, transformers 5 the head.
void check_tied_head(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const WeightNames& names = family_of(config).weights;
  const TensorInfo* head = checkpoint.find(names.lm_head);
  if (!config.tie_word_embeddings || head == nullptr) return;
  const TensorInfo& embed = checkpoint.at(names.embed);
  if (head->dtype == embed.dtype && head->shape == embed.shape &&
      std::memcmp(head->data, embed.data, static_cast<std::size_t>(embed.size)) == 0) {
    return;
  }
  throw CheckpointError(
      fmt::format("{}: tensor \"{}\": expected none, or a copy of \"{}\", because {} is true, got "
                  "other values. "
                  "HINT: set the key to false if the head was trained, or leave the tensor out",
                  checkpoint.folder().string(), names.lm_head, names.embed,
                  family_of(config).key("tie_word_embeddings")));
}

void append_list(std::string& text, const std::string& title,
                 const std::vector<std::string>& items) {
  if (items.empty()) return;
  text += fmt::format("\n  {} ({}):", title, items.size());
  for (std::size_t i = 0; i < std::min(items.size(), kListed); ++i) text += "\n    " + items[i];
  if (items.size() > kListed) text += fmt::format("\n    and {} more", items.size() - kListed);
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const WeightNames& names = family_of(config).weights;
  if (const auto own = family_of(config).tensors) return own(names, config);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.num_heads * config.head_dim;
  const std::int64_t key = config.num_kv_heads * config.head_dim;
  std::vector<ExpectedTensor> result;
  const bool own_vocabulary = !config.draft || config.draft->own_vocabulary;
  if (own_vocabulary) result.push_back({names.embed, {config.vocab_size, hidden}});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = names.layer_prefix(layer);
    const auto add = [&](std::string_view name, const char* part, std::vector<std::int64_t> shape) {
      result.push_back({fmt::format("{}{}.{}", prefix, name, part), std::move(shape)});
    };
    add(names.input_norm, "weight", {hidden});
    add(names.post_norm, "weight", {hidden});
    if (!names.qkv.empty()) {
      add(names.qkv, "weight", {query + 2 * key, hidden});
      if (config.attention_bias) add(names.qkv, "bias", {query + 2 * key});
    } else {
      add(names.q, "weight", {query, hidden});
      add(names.k, "weight", {key, hidden});
      add(names.v, "weight", {key, hidden});
    }
    add(names.o, "weight", {hidden, query});
    if (config.attention_bias && names.qkv.empty()) {
      add(names.q, "bias", {query});
      add(names.k, "bias", {key});
      add(names.v, "bias", {key});
    }
    if (config.attention_output_bias) add(names.o, "bias", {hidden});
    if (config.qk_norm) {
      add(names.q_norm, "weight", {config.head_dim});
      add(names.k_norm, "weight", {config.head_dim});
    }
    const auto add_mlp = [&](const std::string& name, std::int64_t width) {
      add(fmt::format("{}{}", name, names.gate), "weight", {width, hidden});
      add(fmt::format("{}{}", name, names.up), "weight", {width, hidden});
      add(fmt::format("{}{}", name, names.down), "weight", {hidden, width});
    };
    if (config.draft && config.draft->second) {
      const Dflash2Config& second = *config.draft->second;
      for (const char* name : {kAttentionConv, kMlpConv}) {
        add(name, "base_kernel", {2, second.conv_taps, hidden});
        add(fmt::format("{}.kernel_projection", name), "weight",
            {2 * second.conv_taps * (hidden / second.conv_group), hidden});
      }
    }
    const std::string& mlp = names.mlp;
    if (!config.moe || !config.moe->sparse[static_cast<std::size_t>(layer)]) {
      add_mlp(mlp, config.intermediate_size);
      continue;
    }
    add(mlp + "gate", "weight", {config.moe->num_experts, hidden});
    if (config.moe->sigmoid) add(mlp + "gate", "expert_bias", {config.moe->num_experts});
    if (config.moe->shared_size > 0) add_mlp(mlp + "shared_experts.", config.moe->shared_size);
    for (std::int64_t expert = 0; expert < config.moe->num_experts; ++expert) {
      add_mlp(fmt::format("{}experts.{}.", mlp, expert), config.moe->intermediate_size);
    }
  }
  result.push_back({names.norm, {hidden}});
  if (own_vocabulary && !config.tie_word_embeddings) {
    const std::int64_t rows = config.draft ? config.draft->draft_vocab_size : config.vocab_size;
    result.push_back({names.lm_head, {rows, hidden}});
  }
  if (config.draft) {
    result.push_back({"fc.weight", {hidden, std::ssize(config.draft->target_layers) * hidden}});
    result.push_back({"hidden_norm.weight", {hidden}});
  }
  if (config.draft && config.draft->second) {
    const std::int64_t rank = config.draft->second->selector_rank;
    result.push_back({"candidate_selector.hidden_projection.weight", {rank, hidden}});
    for (const char* side : {"predecessor", "successor"}) {
      result.push_back(
          {fmt::format("candidate_selector.{}_codebook", side), {config.vocab_size, rank}});
    }
  }
  return result;
}

namespace {

/// For `--dtype auto` if config.json names no dtype: takes the dtype of the first weight, as
/// transformers does.
void take_dtype(ModelConfig& config, const TensorInfo& weight) {
  config.dtype = weight.dtype == TensorDtype::kBF16  ? "bfloat16"
                 : weight.dtype == TensorDtype::kF16 ? "float16"
                                                     : "float32";
  const auto entry = std::ranges::find(config.resolved, "dtype", &ResolvedEntry::key);
  entry->value = fmt::format("\"{}\"", config.dtype);
  entry->source = "the weights; config.json names none";
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& folder, const ModelOverrides& overrides) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.config_ = load_model_config(folder, overrides);
  if (fs::exists(folder / kSingleName)) {
    checkpoint.files_.push_back(SafetensorsFile::open(folder / kSingleName));
  } else if (fs::exists(folder / kIndexName)) {
    const auto weight_map = read_weight_map(folder / kIndexName);
    checkpoint.files_ = open_shards(folder, weight_map);
    check_weight_map(checkpoint.files_, weight_map, (folder / kIndexName).string());
  } else {
    throw CheckpointError(fmt::format(
        "{}: expected {} or {}, got neither. HINT: only safetensors weights are read; convert .bin "
        "files with transformers' save_pretrained",
        folder.string(), kSingleName, kIndexName));
  }
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const TensorInfo& tensor : file.tensors()) checkpoint.by_name_[tensor.name] = &tensor;
  }
  const auto expected = expected_tensors(checkpoint.config_);
  checkpoint.check_tensors(expected);
  check_tied_head(checkpoint);
  if (checkpoint.config_.dtype.empty()) {
    take_dtype(checkpoint.config_, checkpoint.at(expected.front().name));
  }
  return checkpoint;
}

void Checkpoint::adapt(const fs::path& adapter_folder) {
  Adapter adapter = Adapter::open(adapter_folder, config_);
  const std::string made_for = adapter.base_digest();
  if (const std::string own = digest(); !made_for.empty() && made_for != own) {
    throw CheckpointError(
        fmt::format("{}: expected the checkpoint that it was trained on, of digest {}, got {} of "
                    "digest {}. HINT: adapter_config.json names the base",
                    adapter_folder.string(), made_for, folder_.string(), own));
  }
  adapter_.emplace(std::move(adapter));
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : by_name_) bytes += tensor->size;
  return bytes;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const TensorInfo& Checkpoint::at(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  throw CheckpointError(
      fmt::format("{}: expected tensor \"{}\", got none of this name", folder_.string(), name));
}

void Checkpoint::check_tensors(const std::vector<ExpectedTensor>& expected) const {
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  std::vector<std::string> unknown;
  std::set<std::string_view> names;
  // If the weights are in shards, the message names the shard of each tensor that was found.
  const auto shard_of = [&](std::string_view name) {
    if (files_.size() < 2) return std::string();
    const auto holds = [&](const SafetensorsFile& file) { return file.find(name) != nullptr; };
    const auto found = std::find_if(files_.begin(), files_.end(), holds);
    return fmt::format(", in {}", found->path().filename().string());
  };
  for (const ExpectedTensor& entry : expected) {
    names.insert(entry.name);
    const TensorInfo* tensor = find(entry.name);
    if (tensor == nullptr) {
      missing.push_back(entry.name + " " + shape_text(entry.shape));
    } else if (tensor->shape != entry.shape || !is_weight_dtype(tensor->dtype)) {
      misshapen.push_back(fmt::format("{}: expected {} of F32, F16 or BF16, got {} of {}{}",
                                      entry.name, shape_text(entry.shape),
                                      shape_text(tensor->shape), tensor_dtype_name(tensor->dtype),
                                      shard_of(entry.name)));
    }
  }
  for (const auto& [name, tensor] : by_name_) {
    if (names.count(name) != 0 || is_harmless_extra(std::string(name), config_)) continue;
    unknown.push_back(fmt::format("{} {}{}", name, shape_text(tensor->shape), shard_of(name)));
  }
  if (missing.empty() && misshapen.empty() && unknown.empty()) return;
  std::sort(unknown.begin(), unknown.end());
  const fs::path place = files_.size() == 1 ? files_.front().path() : folder_ / kIndexName;
  std::string text = fmt::format("{}: the weights do not fit config.json (model_type \"{}\")",
                                 place.string(), config_.model_type);
  append_list(text, "missing", missing);
  append_list(text, "wrong shape or dtype", misshapen);
  append_list(text, "unknown", unknown);
  const Family& family = family_of(config_);
  const std::string& head = family.weights.lm_head;
  if (missing.size() == 1 && misshapen.empty() && unknown.empty() &&
      missing.front().starts_with(head + " ")) {
    text += fmt::format("\n  HINT: without {}, config.json needs \"{}\": true", head,
                        family.key("tie_word_embeddings"));
  } else {
    text +=
        "\n  HINT: weights and config.json must belong to one model: fetch both again, or convert "
        "the checkpoint again";
  }
  throw CheckpointError(text);
}

}  // namespace blockscope
