// What the trainer reads and writes: starting weights, resumable state, the exported checkpoint.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/text/text_json.h"
#include "probe/train/trainer.h"

namespace blockscope {
namespace {

constexpr const char* kStateFormat = "blockscope-train-2";

void write_text(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path.string(), true);  // train_run.cpp has asked already
  file.write(text);
  file.commit();
}

void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value) {
  write_text(path, value.dump(2) + "\n");
}

/// config.json of the Hugging Face layout for the shapes in `config`.
nlohmann::ordered_json config_json(const ModelConfig& config, TrainStage stage,
                                   const TaskTokens& tokens) {
  const bool diffusion = stage == TrainStage::kDiffusion;
  nlohmann::ordered_json json;
  json["architectures"] = {diffusion ? "SDARForCausalLM" : "Qwen3ForCausalLM"};
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  if (diffusion) {
    json["block_size"] = 16;
    json["mask_token_id"] = tokens.mask;
  }
  json["eos_token_id"] = tokens.end;
  json["pad_token_id"] = tokens.end;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden_size;
  json["initializer_range"] = 0.02;
  json["intermediate_size"] = config.intermediate_size;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["model_type"] = diffusion ? "sdar" : "qwen3";
  json["num_attention_heads"] = config.num_heads;
  json["num_hidden_layers"] = config.num_layers;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_scaling"] = nullptr;
  json["rope_theta"] = config.rope.theta;
  json["sliding_window"] = nullptr;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["torch_dtype"] = "bfloat16";
  json["use_cache"] = true;
  json["use_sliding_window"] = false;
  json["vocab_size"] = config.vocab_size;
  return json;
}

/// config.json in the form of `configuration_llada.py`, whose switches stand as LLaDA-8B's do.
nlohmann::ordered_json llada_config_json(const ModelConfig& config, const TaskTokens& tokens) {
  nlohmann::ordered_json json;
  json["activation_type"] = "silu";
  json["alibi"] = false;
  json["architectures"] = {"LLaDAModelLM"};
  json["attention_dropout"] = 0.0;
  json["attention_layer_norm"] = false;
  json["bias_for_layer_norm"] = false;
  json["block_group_size"] = 1;
  json["block_type"] = "llama";
  json["d_model"] = config.hidden_size;
  json["embedding_dropout"] = 0.0;
  json["embedding_size"] = config.vocab_size;
  json["eos_token_id"] = tokens.end;
  json["include_bias"] = false;
  json["include_qkv_bias"] = config.attention_bias;
  json["init_std"] = 0.02;
  json["input_emb_norm"] = false;
  json["layer_norm_type"] = "rms";
  json["layer_norm_with_affine"] = true;
  json["mask_token_id"] = tokens.mask;
  json["max_sequence_length"] = config.max_position_embeddings;
  json["mlp_hidden_size"] = config.intermediate_size;
  json["model_type"] = "llada";
  json["multi_query_attention"] = nullptr;
  json["n_heads"] = config.num_heads;
  json["n_kv_heads"] = config.num_kv_heads;
  json["n_layers"] = config.num_layers;
  json["pad_token_id"] = tokens.end;
  json["residual_dropout"] = 0.0;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope"] = true;
  json["rope_full_precision"] = true;
  json["rope_theta"] = config.rope.theta;
  json["scale_logits"] = false;
  json["torch_dtype"] = "bfloat16";
  json["use_cache"] = false;
  json["vocab_size"] = config.vocab_size;
  json["weight_tying"] = config.tie_word_embeddings;
  return json;
}

/// config.json as z-lab's drafts have it.
nlohmann::ordered_json draft_config_json(const ModelConfig& config, const TaskTokens& tokens) {
  nlohmann::ordered_json json = config_json(config, TrainStage::kBackbone, tokens);
  const DraftConfig& draft = *config.draft;
  json["architectures"] = {"DFlashDraftModel"};
  json["block_size"] = draft.block_size;
  json["dflash_config"] = {{"mask_token_id", draft.mask_token_id},
                           {"target_layer_ids", draft.target_layers},
                           {"target_digest", draft.target_digest}};
  json["num_target_layers"] = draft.num_target_layers;
  return json;
}

}  // namespace

void Trainer::load_weights(const std::filesystem::path& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const bool llada = config_.model_type == "llada";
  if (checkpoint.config().draft.has_value() != config_.draft.has_value()) {
    throw CheckpointError(folder.string() + ": expected weights of " +
                          (config_.draft ? "a draft" : "a model, got those of a draft") +
                          ". HINT: --init names what the first stage starts from");
  }
  if ((checkpoint.config().model_type == "llada") != llada) {
    throw CheckpointError(folder.string() + ": expected weights of the family " +
                          (llada ? "llada" : "sdar (or its backbone)") + ", got model_type " +
                          checkpoint.config().model_type +
                          ". HINT: --family names the family to train");
  }
  checkpoint.check_tensors(expected_tensors(config_));
  const BlockDiffusionModel loaded = BlockDiffusionModel::load(checkpoint, at::kFloat);
  at::NoGradGuard no_grad;
  for (auto& [name, weight] : weights_) weight.copy_(loaded.weights().at(name));
}

void Trainer::save_state(const std::filesystem::path& path) const {
  const std::vector<std::pair<const char*, at::Tensor>> vectors = {
      {"weights", flat_}, {"first_moment", first_moment_}, {"second_moment", second_moment_}};
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, vector] : vectors) {
    entries.push_back({name, TensorDtype::kF32, {vector.numel()}});
  }
  nlohmann::json recent = nlohmann::json::array();
  for (const double value : recent_) recent.push_back(value);
  SafetensorsWriter writer(path, entries,
                           {{"format", kStateFormat},
                            {"stage", train_stage_name(options_.stage)},
                            {"settings", options_.settings},
                            {"step", std::to_string(step_)},
                            {"tokens_seen", std::to_string(tokens_seen_)},
                            {"level", std::to_string(level_)},
                            {"recent", recent.dump()}});
  for (const auto& [name, vector] : vectors) {
    const at::Tensor host = vector.cpu().contiguous();
    writer.write(name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
}

void Trainer::load_state(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto text = [&](const std::string& key) -> std::string {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) {
      throw CheckpointError(path.string() + ": expected metadata '" + key +
                            "', got none. HINT: pass a state.safetensors of blockscope train");
    }
    return found->second;
  };
  const auto expect = [&](const std::string& key, const std::string& expected) {
    if (text(key) != expected) {
      throw CheckpointError(path.string() + ": expected " + key + " '" + expected + "', got '" +
                            text(key) + "'. HINT: name the folder of that run with --work");
    }
  };
  expect("format", kStateFormat);
  expect("stage", train_stage_name(options_.stage));
  for (auto& [name, vector] :
       std::vector<std::pair<std::string, at::Tensor>>{{"weights", flat_},
                                                       {"first_moment", first_moment_},
                                                       {"second_moment", second_moment_}}) {
    const TensorInfo* info = file.find(name);
    const std::vector<std::int64_t> shape{vector.numel()};
    if (info == nullptr || info->dtype != TensorDtype::kF32 || info->shape != shape) {
      throw CheckpointError(path.string() + ": expected F32 tensor " + name + " " +
                            shape_text(shape) + ". HINT: the model's shape has changed");
    }
    // from_blob wants a mutable pointer; the copy below only reads it.
    void* data = const_cast<std::byte*>(info->data);
    vector.copy_(at::from_blob(data, shape, at::kFloat));
  }
  try {
    step_ = std::stoll(text("step"));
    tokens_seen_ = std::stoll(text("tokens_seen"));
    level_ = std::stoi(text("level"));
    recent_.clear();
    for (const auto& value : nlohmann::json::parse(text("recent"))) {
      recent_.push_back(value.get<double>());
    }
  } catch (const std::exception& error) {
    throw CheckpointError(path.string() + ": expected numbers in its metadata, got " +
                          error.what());
  }
}

void Trainer::export_checkpoint(const std::filesystem::path& folder,
                                const std::filesystem::path& tokenizer_folder) const {
  namespace fs = std::filesystem;
  fs::create_directories(folder);
  for (const char* name : kTokenizerFiles) {
    if (config_.draft) break;
    if (fs::equivalent(folder, tokenizer_folder)) break;
    write_text(folder / name, read_text_file(tokenizer_folder / name));
  }
  const std::vector<ExpectedTensor> expected = expected_tensors(config_);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ExpectedTensor& tensor : expected) {
    entries.push_back({tensor.name, TensorDtype::kBF16, tensor.shape});
  }
  SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (const ExpectedTensor& tensor : expected) {
    const at::Tensor host = weights_.at(tensor.name).detach().cpu().to(at::kBFloat16).contiguous();
    writer.write(tensor.name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
  const bool llada = config_.model_type == "llada";
  write_json(folder / "config.json", config_.draft ? draft_config_json(config_, tokens_)
                                     : llada       ? llada_config_json(config_, tokens_)
                                                   : config_json(config_, options_.stage, tokens_));
  if (config_.draft) return;
  nlohmann::ordered_json generation;
  generation["eos_token_id"] = {tokens_.end};
  generation["pad_token_id"] = tokens_.end;
  write_json(folder / "generation_config.json", generation);
}

}  // namespace blockscope
