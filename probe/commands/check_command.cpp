// One forward pass over the reference's tokens, without a KV cache, is compared with the reference
// logits position by position. Logits are computed for a few positions at a time, so a large
// vocabulary costs no memory.
#include "probe/commands/check_command.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/checkpoint/safetensors.h"
#include "probe/decode/decode_seams.h"
#include "probe/model/device.h"
#include "probe/run/run_flags.h"

namespace blockscope {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kShownPositions = 5;
constexpr int64_t kPositionsAtOnce = 32;
constexpr const char* kHowToSave =
    "Example: blockscope check models/needle --reference ref.safetensors --dtype float32\n"
    "The reference holds input_ids [T], logits [T, V] and the metadata mask (causal, "
    "block_causal,\n"
    "full or canvas) and block_length. canvas (DiffusionGemma): the last block_length tokens are "
    "a\n"
    "canvas after a causal prompt; logits [block_length, V] are those of its first step.\n"
    "How to save a block-causal reference (causal: mask \"causal\" and\n"
    "no 4-D mask; every position sees all others: mask \"full\"):\n"
    "  import torch, transformers\n"
    "  from safetensors.torch import save_file\n"
    "  model = transformers.Qwen3ForCausalLM.from_pretrained(\n"
    "      path, dtype=torch.float32, attn_implementation=\"eager\").eval()\n"
    "  ids, B = torch.randint(0, model.config.vocab_size, (1, 40)), 4\n"
    "  block = torch.arange(ids.shape[1]) // B\n"
    "  mask = torch.where(block[:, None] >= block[None], 0.0, torch.finfo(torch.float32).min)\n"
    "  logits = model(ids, attention_mask=mask[None, None]).logits[0].detach()\n"
    "  save_file({\"input_ids\": ids, \"logits\": logits.contiguous()}, \"ref.safetensors\",\n"
    "            metadata={\"mask\": \"block_causal\", \"block_length\": str(B)})\n"
    "Exit codes: 0 within the tolerance, 1 above it or unreadable, 2 usage.";

struct CheckFlags {
  ModelFlags model;
  std::string reference;
  double tolerance = 1e-4;
  bool json = false;
};

/// The reference file: the tokens that another implementation read, and the logits it computed.
struct Reference {
  SafetensorsFile file;
  std::vector<int64_t> tokens;         // [T]
  std::string mask;                    // "causal", "block_causal", "full" or "canvas"
  int64_t block_length = 1;            // 1: causal; full mask: all positions
  bool takes_block_length = false;     // the model's block length, because the file names none
  const TensorInfo* logits = nullptr;  // [T, V] or [1, T, V], mapped

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  bool canvas() const { return mask == "canvas"; }
  int64_t first() const { return canvas() ? length() - block_length : 0; }  // with logits
};

struct PositionResult {
  int64_t position = 0;
  int64_t token = 0;   // with the largest difference
  double error = 0.0;  // largest |ours - reference| of the position; inf if one is not finite
  int64_t argmax = 0;  // ours
  int64_t argmax_reference = 0;
};

struct CheckReport {
  std::vector<PositionResult> positions;
  double max_error = 0.0;
  double mean_error = 0.0;
  double lowest = kInfinity;  // of the reference logits
  double highest = -kInfinity;
  int64_t agreeing = 0;  // positions with the same argmax

  double range() const { return highest - lowest; }
  double relative() const { return range() > 0.0 ? max_error / range() : max_error; }
};

/// The whole sequence in one pass: every query reads its own block and all before it.
class WholeSequenceSeams : public ForwardSeams {
 public:
  WholeSequenceSeams(int64_t length, int64_t block_length)
      : length_(at::full({1}, length, at::kLong)), block_length_(block_length) {}

  at::Tensor attention(const AttentionInput& input) override {
    return prefill_attention(input.q, input.k, input.v, length_, block_length_, input.scale);
  }

 private:
  at::Tensor length_;  // [1]
  int64_t block_length_;
};

/// A causal prompt whose keys are kept, then a canvas that sees them and itself.
class CanvasCheckSeams : public ForwardSeams {
 public:
  explicit CanvasCheckSeams(const ModelConfig& config) : config_(config) {}

  void begin_canvas() { canvas_ = true; }
  bool on_canvas() const override { return canvas_; }
  at::Tensor attention(const AttentionInput& input) override {
    const int64_t window = config_.layer(input.layer).window;
    if (!canvas_) {
      key_.push_back(input.k);
      value_.push_back(input.v);
      return windowed_attention(input.q, input.k, input.v, window > 0 ? window : input.k.size(2),
                                input.scale);
    }
    const auto tail = [&](const at::Tensor& all) {
      const int64_t seen = window > 0 ? std::min(all.size(2), window - 1) : all.size(2);
      return all.narrow(2, all.size(2) - seen, seen);
    };
    const auto layer = static_cast<size_t>(input.layer);
    const at::Tensor key = tail(key_[layer]);
    const at::Tensor length = at::full({1}, key.size(2), at::kLong);
    return split_attention(input.q, key, tail(value_[layer]), length, input.k, input.v, input.scale)
        .out;
  }

 private:
  const ModelConfig& config_;
  bool canvas_ = false;
  std::vector<at::Tensor> key_, value_;  // by layer [1, K, N, D]
};

const TensorInfo& tensor_of(const SafetensorsFile& file, const char* name) {
  const TensorInfo* info = file.find(name);
  if (info != nullptr) return *info;
  throw CheckpointError(fmt::format(
      "{}: expected a tensor '{}', got none. HINT: blockscope check --help shows how to save one",
      file.path().string(), name));
}

/// [1, ...] -> [...]
std::vector<int64_t> without_batch(std::vector<int64_t> shape, size_t rank) {
  if (shape.size() == rank + 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

template <typename Integer>
std::vector<int64_t> widened(const TensorInfo& info, size_t count) {
  std::vector<Integer> raw(count);
  std::memcpy(raw.data(), info.data, count * sizeof(Integer));
  return {raw.begin(), raw.end()};
}

std::vector<int64_t> read_tokens(const SafetensorsFile& file, int64_t vocab_size) {
  const TensorInfo& info = tensor_of(file, "input_ids");
  const std::string where = file.path().string();
  const std::vector<int64_t> shape = without_batch(info.shape, 1);
  const bool integer = info.dtype == TensorDtype::kI64 || info.dtype == TensorDtype::kI32;
  if (!integer || shape.size() != 1 || shape[0] < 1) {
    throw CheckpointError(fmt::format("{}: input_ids: expected I64 or I32 [T] or [1, T], got {} {}",
                                      where, tensor_dtype_name(info.dtype),
                                      shape_text(info.shape)));
  }
  const auto count = static_cast<size_t>(shape[0]);
  std::vector<int64_t> tokens = info.dtype == TensorDtype::kI64 ? widened<int64_t>(info, count)
                                                                : widened<int32_t>(info, count);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    throw CheckpointError(fmt::format("{}: input_ids[{}]: expected 0 to {}, got {}", where, i,
                                      vocab_size - 1, tokens[i]));
  }
  return tokens;
}

std::string metadata_value(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? std::string() : found->second;
}

std::string read_mask(const SafetensorsFile& file) {
  std::string mask = metadata_value(file, "mask");
  for (const char* known : {"causal", "block_causal", "full", "canvas"}) {
    if (mask == known) return mask;
  }
  throw CheckpointError(fmt::format(
      "{}: metadata mask: expected 'causal', 'block_causal', 'full' or 'canvas', got '{}'",
      file.path().string(), mask));
}

/// The block length of a block-causal mask; nullopt: use the model's.
std::optional<int64_t> read_block_length(const SafetensorsFile& file) {
  const std::string where = file.path().string();
  const std::string text = metadata_value(file, "block_length");
  if (text.empty()) return std::nullopt;
  int64_t block_length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), block_length);
  if (error != std::errc() || end != text.data() + text.size() || block_length < 1) {
    throw CheckpointError(fmt::format(
        "{}: metadata block_length: expected a whole number from 1, got '{}'", where, text));
  }
  return block_length;
}

Reference open_reference(const std::string& path, const ModelConfig& config) {
  Reference reference{SafetensorsFile::open(path), {}, {}, 1, false, nullptr};
  reference.tokens = read_tokens(reference.file, config.vocab_size);
  reference.mask = read_mask(reference.file);
  if (reference.mask == "full") {
    reference.block_length = reference.length();
  } else if (reference.mask != "causal") {
    const auto named = read_block_length(reference.file);
    reference.takes_block_length = !named.has_value();
    reference.block_length = named.has_value() ? *named : require_block_length(config);
  }
  if (reference.canvas() != config.gemma.has_value() || reference.first() < 0 ||
      (reference.canvas() && reference.first() == 0)) {
    throw CheckpointError(fmt::format(
        "{}: metadata mask: expected {}, got '{}' and block_length {} for {} tokens. HINT: a model "
        "with canvases of random tokens has no other masks, and no other model has them",
        path, config.gemma ? "'canvas' with a prompt before it" : "another mask", reference.mask,
        reference.block_length, reference.length()));
  }
  const TensorInfo& logits = tensor_of(reference.file, "logits");
  const bool floating = logits.dtype == TensorDtype::kF64 || logits.dtype == TensorDtype::kF32 ||
                        logits.dtype == TensorDtype::kF16 || logits.dtype == TensorDtype::kBF16;
  const std::vector<int64_t> expected{reference.length() - reference.first(), config.vocab_size};
  if (!floating || without_batch(logits.shape, 2) != expected) {
    throw CheckpointError(fmt::format(
        "{}: logits: expected F64, F32, F16 or BF16 {}, got {} {}. HINT: one row per token of "
        "input_ids, one column per token of the model's vocabulary",
        path, shape_text(expected), tensor_dtype_name(logits.dtype), shape_text(logits.shape)));
  }
  reference.logits = &logits;
  return reference;
}

/// Rows [begin, begin + count) of the reference as float64 [count, V].
at::Tensor reference_rows(const TensorInfo& info, int64_t vocab, int64_t begin, int64_t count) {
  const at::ScalarType type = info.dtype == TensorDtype::kF64    ? at::kDouble
                              : info.dtype == TensorDtype::kF16  ? at::kHalf
                              : info.dtype == TensorDtype::kBF16 ? at::kBFloat16
                                                                 : at::kFloat;
  const at::Tensor rows = at::empty({count, vocab}, type);
  const size_t row_bytes = static_cast<size_t>(vocab) * tensor_dtype_size(info.dtype);
  std::memcpy(rows.data_ptr(), info.data + static_cast<size_t>(begin) * row_bytes,
              static_cast<size_t>(count) * row_bytes);
  return rows.to(at::kDouble);
}

void compare_rows(const at::Tensor& ours, const at::Tensor& reference, int64_t begin,
                  CheckReport& report) {
  // Equal infinities are equal; any other value that is not finite is an infinite error.
  const at::Tensor difference =
      at::where(ours == reference, at::zeros_like(ours), (ours - reference).abs())
          .nan_to_num(kInfinity, kInfinity);
  report.mean_error += difference.sum().item<double>();
  const at::Tensor finite = at::where(reference.isfinite(), reference, 0.0);
  report.lowest = std::min(report.lowest, finite.min().item<double>());
  report.highest = std::max(report.highest, finite.max().item<double>());
  const at::Tensor worst = difference.argmax(-1);
  const at::Tensor argmax = ours.argmax(-1);
  const at::Tensor argmax_reference = reference.argmax(-1);
  for (int64_t i = 0; i < ours.size(0); ++i) {
    PositionResult result;
    result.position = begin + i;
    result.token = worst[i].item<int64_t>();
    result.error = difference[i][result.token].item<double>();
    result.argmax = argmax[i].item<int64_t>();
    result.argmax_reference = argmax_reference[i].item<int64_t>();
    report.max_error = std::max(report.max_error, result.error);
    report.agreeing += result.argmax == result.argmax_reference;
    report.positions.push_back(result);
  }
}

/// The final hidden states of the rows that have logits.
at::Tensor hidden_of(const BlockDiffusionModel& model, const Reference& reference) {
  const at::Tensor ids = at::tensor(reference.tokens, at::kLong).unsqueeze(0);
  const at::Tensor positions = at::arange(reference.length(), at::kLong).unsqueeze(0);
  if (!reference.canvas()) {
    WholeSequenceSeams seams(reference.length(), reference.block_length);
    return model.forward(ids, positions, seams);
  }
  CanvasCheckSeams seams(model.config());
  const int64_t first = reference.first();
  model.forward(ids.narrow(1, 0, first), positions.narrow(1, 0, first), seams);
  seams.begin_canvas();
  const auto canvas = [&](const at::Tensor& of) {
    return of.narrow(1, first, reference.block_length);
  };
  return model.forward_embedded(model.embed_canvas(canvas(ids), {}), canvas(positions), seams);
}

CheckReport compare_logits(const LoadedModel& loaded, const Reference& reference) {
  const c10::InferenceMode guard;
  const int64_t length = reference.length();
  const BlockDiffusionModel model = loaded.model->for_longest_sequence(length);
  const int64_t first = reference.first();
  const at::Tensor hidden = hidden_of(model, reference);
  CheckReport report;
  for (int64_t begin = first; begin < length; begin += kPositionsAtOnce) {
    const int64_t count = std::min(kPositionsAtOnce, length - begin);
    const at::Tensor ours =
        on_host(model.logits(hidden[0].narrow(0, begin - first, count))).to(at::kDouble);
    compare_rows(ours,
                 reference_rows(*reference.logits, loaded.config.vocab_size, begin - first, count),
                 begin, report);
  }
  report.mean_error /= static_cast<double>((length - first) * loaded.config.vocab_size);
  return report;
}

std::vector<PositionResult> worst_first(const CheckReport& report) {
  std::vector<PositionResult> worst = report.positions;
  std::stable_sort(worst.begin(), worst.end(),
                   [](const auto& a, const auto& b) { return a.error > b.error; });
  worst.resize(std::min(worst.size(), kShownPositions));
  return worst;
}

void print_text(const CheckReport& report, const Reference& reference, const CheckFlags& flags,
                bool within) {
  const int64_t length = reference.length() - reference.first();
  say("{} positions, mask {}\n", length,
      reference.canvas() ? fmt::format("canvas after {} tokens", reference.first())
      : reference.mask == "block_causal"
          ? fmt::format("block-causal, block length {}", reference.block_length)
          : reference.mask);
  say("max abs error     {:.3e}  ({:.3e} of the reference's range {:.4g})\n", report.max_error,
      report.relative(), report.range());
  say("mean abs error    {:.3e}\n", report.mean_error);
  say("argmax agreement  {} of {}\n", report.agreeing, length);
  say("worst positions   position   error      token  argmax  argmax of the reference\n");
  for (const PositionResult& result : worst_first(report)) {
    say("                  {:>8}   {:.3e}  {:>5}  {:>6}  {:>6}\n", result.position, result.error,
        result.token, result.argmax, result.argmax_reference);
  }
  say("{} the tolerance of {:g} of the range\n", within ? "within" : "BEYOND", flags.tolerance);
}

void print_json(const CheckReport& report, const Reference& reference, const CheckFlags& flags,
                bool within) {
  // JSON has no infinity: an error that is not finite is null.
  nlohmann::json positions = nlohmann::json::array();
  for (const PositionResult& result : report.positions) {
    positions.push_back({{"position", result.position},
                         {"max_abs_error", result.error},
                         {"token", result.token},
                         {"argmax", result.argmax},
                         {"argmax_reference", result.argmax_reference}});
  }
  const nlohmann::json json = {
      {"positions", std::ssize(report.positions)},
      {"mask", reference.mask},
      {"block_length", reference.block_length},
      {"max_abs_error", report.max_error},
      {"mean_abs_error", report.mean_error},
      {"range", report.range()},
      {"relative_error", report.relative()},
      {"argmax_agreement", report.agreeing},
      {"tolerance", flags.tolerance},
      {"within_tolerance", within},
      {"per_position", std::move(positions)},
  };
  say("{}\n", json.dump(2, ' ', true));
}

void check(const CLI::App& command, const CheckFlags& flags, const Environment& environment) {
  const LoadedModel model = load_model(flags.model, environment);
  const Reference reference = open_reference(flags.reference, model.config);
  for (const char* option : {"--block-length", "--mask-token-id"}) {
    refuse_idle(command, option, reference.takes_block_length,
                "a reference of mask block_causal whose metadata names no block_length");
  }
  const CheckReport report = compare_logits(model, reference);
  const bool within = report.relative() <= flags.tolerance;
  (flags.json ? print_json : print_text)(report, reference, flags, within);
  if (!within) throw CLI::RuntimeError(1);
}

}  // namespace

void add_check_command(CLI::App& app, const Environment& environment) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* command =
      app.add_subcommand("check", "Compare our logits with logits saved by another implementation");
  command->footer(kHowToSave);
  add_model_flags(*command, flags->model);
  command
      ->add_option("--reference", flags->reference,
                   "Compare with the tokens and logits in this safetensors file (see below)")
      ->required();
  command
      ->add_option("--tol", flags->tolerance,
                   "Allow differences up to this share of the reference logits' range")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print everything as JSON, position by position");
  command->callback([flags, command, environment] { check(*command, *flags, environment); });
}

}  // namespace blockscope
