// The files of the trainer: starting weights, resumable state and the exported checkpoint.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/family_table.h"
#include "probe/text/text_json.h"
#include "probe/train/trainer.h"

namespace blockscope {
namespace {

constexpr const char* kStateFormat = "blockscope-train-2";

void write_text(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path.string(), true);  // train_run.cpp has checked this already
  file.write(text);
  file.commit();
}

void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value) {
  write_text(path, value.dump(2) + "\n");
}

}  // namespace

void Trainer::load_weights(const std::filesystem::path& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const Family& family = trained_from(family_of(config_));
  if (checkpoint.config().draft.has_value() != config_.draft.has_value()) {
    throw CheckpointError(folder.string() + ": expected weights of " +
                          (config_.draft ? "a draft" : "a model, got those of a draft") +
                          ". HINT: --init names what the first stage starts from");
  }
  if (family_of(checkpoint.config()).weights != family.weights) {
    throw CheckpointError(fmt::format(
        "{}: expected weights of the family {}{}, got model_type {}. HINT: --family "
        "names the family to train",
        folder.string(), family.name, family.training.backbone.empty() ? "" : " (or its backbone)",
        checkpoint.config().model_type));
  }
  checkpoint.check_tensors(expected_tensors(config_));
  const BlockDiffusionModel loaded = BlockDiffusionModel::load(checkpoint, at::kFloat);
  at::NoGradGuard no_grad;
  for (const auto& [name, weight] : parameters_.leaves()) weight.copy_(loaded.weights().at(name));
}

void Trainer::save_state(const std::filesystem::path& path) const {
  nlohmann::json recent = nlohmann::json::array();
  for (const double value : recent_) recent.push_back(value);
  parameters_.save(path, {{"format", kStateFormat},
                          {"stage", train_stage_name(options_.stage)},
                          {"settings", options_.settings},
                          {"step", std::to_string(step_)},
                          {"tokens_seen", std::to_string(tokens_seen_)},
                          {"level", std::to_string(level_)},
                          {"recent", recent.dump()}});
}

void Trainer::load_state(const std::filesystem::path& path) {
  const StateFile state(path);
  state.expect("format", kStateFormat);
  state.expect("stage", train_stage_name(options_.stage));
  parameters_.load(state);
  step_ = state.number("step");
  tokens_seen_ = state.number("tokens_seen");
  level_ = static_cast<int>(state.number("level"));
  recent_.clear();
  try {
    for (const auto& value : nlohmann::json::parse(state.text("recent"))) {
      recent_.push_back(value.get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
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
    const at::Tensor host =
        parameters_.leaves().at(tensor.name).detach().cpu().to(at::kBFloat16).contiguous();
    writer.write(tensor.name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
  const Family& own = family_of(config_);
  const Family& family = options_.stage == TrainStage::kBackbone ? own : trained_from(own);
  write_json(folder / "config.json",
             family.training.config_json(family, config_, {tokens_.mask, tokens_.end}));
  if (config_.draft) return;
  nlohmann::ordered_json generation;
  generation["eos_token_id"] = {tokens_.end};
  generation["pad_token_id"] = tokens_.end;
  write_json(folder / "generation_config.json", generation);
}

}  // namespace blockscope
