#include "analysis/metrics/teacher_setup.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/json/strict_json.h"

namespace blockscope {
namespace {

// Shares of a value's range. Measured between two implementations of six layers: 2e-5 in float32;
// 9e-3 where bfloat16 was stored, whose own step is 4e-3; 0.1 between float32 and bfloat16
// arithmetic.
constexpr double kFloat32 = 1e-3;
constexpr double kStoredInBf16 = 2e-2;
constexpr double kComputedInHalf = 0.15;

/// Empty: the trace does not say, as those of other engines.
std::string compute_type(const TraceMeta& meta) {
  const nlohmann::json model = parse_strict_json(meta.model_json);
  return model.value("compute_dtype", std::string());
}

bool in_half(const std::string& type) { return !type.empty() && type != "float32"; }

}  // namespace

Tolerance tolerance_of(const TraceMeta& a, const TraceMeta& b, const TeacherOptions& options) {
  if (options.tolerance) return {*options.tolerance, "given"};
  const std::string type_a = compute_type(a);
  const std::string type_b = compute_type(b);
  if (in_half(type_a) || in_half(type_b)) {
    const std::string unknown = "a type that it does not say";
    return {kComputedInHalf,
            fmt::format("A computed in {}, B in {}", type_a.empty() ? unknown : type_a,
                        type_b.empty() ? unknown : type_b)};
  }
  if (a.array_type == ArrayType::bf16 || b.array_type == ArrayType::bf16) {
    return {kStoredInBf16, "both computed in float32, and at least one stored bfloat16"};
  }
  return {kFloat32, "both computed and stored float32"};
}

void require_one_model(const TraceReader& a, const TraceReader& b) {
  const TraceMeta& here = a.info().meta;
  const TraceMeta& there = b.info().meta;
  const auto same = [&](const std::string& name, std::int64_t mine, std::int64_t theirs) {
    if (mine == theirs) return;
    throw UsageError(fmt::format(
        "{}: expected a trace of the same model as {}: {} {} there, {} here. HINT: --teacher "
        "compares two implementations of one model; compare other models with `analyze`",
        b.info().path, a.info().path, name, mine, theirs));
  };
  same("block_length", here.block_length, there.block_length);
  same("vocab_size", here.vocab_size, there.vocab_size);
  same("block_tokens", here.block_tokens, there.block_tokens);
  if (here.block_rows != there.block_rows) same("rows of a block", 0, 1);
  if (!knows_model_shape(here) || !knows_model_shape(there)) return;
  same("num_layers", here.num_layers, there.num_layers);
  same("num_heads", here.num_heads, there.num_heads);
  same("num_kv_heads", here.num_kv_heads, there.num_kv_heads);
  same("head_dim", here.head_dim, there.head_dim);
  same("hidden_size", here.hidden_size, there.hidden_size);
  for (std::int64_t layer = 0; layer < here.num_layers; ++layer) {
    same(fmt::format("head_dim of layer {}", layer), here.head_dim_of(layer),
         there.head_dim_of(layer));
    same(fmt::format("KV heads of layer {}", layer), here.kv_heads_of(layer),
         there.kv_heads_of(layer));
  }
}

}  // namespace blockscope
