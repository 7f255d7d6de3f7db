// Checks the properties that traces of one analysis must share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "analysis/pass/step_pass.h"
#include "decode_record/compare/given_once.h"

namespace blockscope {
namespace {

ResultAxis axis_of(const std::string& name, const std::vector<std::int64_t>& indices) {
  return ResultAxis{name, {indices.begin(), indices.end()}, {}};
}

std::string digest_of(const TraceMeta& meta) {
  const auto model = nlohmann::json::parse(meta.model_json, nullptr, false);
  if (!model.is_object()) return {};
  const auto digest = model.find("digest");
  return digest != model.end() && digest->is_string() ? digest->get<std::string>() : "";
}

/// Opening an array compares its axes with the attributes, which determine what metrics allocate.
void check_arrays(const TraceReader& trace) {
  if (trace.info().num_rows == 0) return;
  for (const Field field : {Field::set_topk, Field::attention_external, Field::similarity_external,
                            Field::spread_distance, Field::spread_offset, Field::spread_region,
                            Field::spread_answer_block}) {
    if (trace.has(field)) trace.written(field, 0, 0);
  }
}

}  // namespace

TraceShape shape_of(const TraceMeta& meta) {
  TraceShape shape;
  static_cast<LayerSizes&>(shape) = meta;
  shape.hidden_size = meta.hidden_size;
  shape.block_length = meta.block_length;
  shape.set_size = meta.set_size;
  shape.model_digest = digest_of(meta);
  return shape;
}

void check_same_shape(const TraceShape& first, const std::string& first_path,
                      const TraceShape& other, const std::string& path) {
  const auto compare = [&](std::string_view field, const auto& a, const auto& b) {
    if (a == b) return;
    throw UsageError(
        fmt::format("{}: {}: expected {} as in {}, got {}. HINT: analyse traces of one model and "
                    "one set of --record options together.",
                    path, field, a, first_path, b));
  };
  compare("number of layers", first.num_layers, other.num_layers);
  compare("number of heads", first.num_heads, other.num_heads);
  compare("number of KV heads", first.num_kv_heads, other.num_kv_heads);
  compare("head_dim", first.head_dim, other.head_dim);
  compare("KV heads of each layer", first.layer_kv_heads, other.layer_kv_heads);
  compare("head_dim of each layer", first.layer_head_dim, other.layer_head_dim);
  compare("window of each layer", first.layer_window, other.layer_window);
  compare("hidden_size", first.hidden_size, other.hidden_size);
  compare("recorded layers", first.layers, other.layers);
  compare("recorded heads", first.heads, other.heads);
  compare("recorded KV heads", first.kv_heads, other.kv_heads);
  compare("block length", first.block_length, other.block_length);
  compare("set size k", first.set_size, other.set_size);
  if (!first.model_digest.empty() && !other.model_digest.empty()) {
    compare("checkpoint digest", first.model_digest, other.model_digest);
  }
}

std::vector<std::int64_t> TraceShape::kv_heads_used_by(
    const std::vector<std::int64_t>& query_heads) const {
  std::set<std::int64_t> used;
  for (const std::int64_t layer : layers) {
    for (const std::int64_t head : query_heads) used.insert(kv_head_of(layer, head));
  }
  return {used.begin(), used.end()};
}

ResultAxis TraceShape::layer_axis() const { return axis_of("layer", layers); }
ResultAxis TraceShape::head_axis() const { return axis_of("head", heads); }
ResultAxis TraceShape::kv_head_axis() const { return axis_of("kv_head", kv_heads); }

TraceGroup::TraceGroup(const std::vector<std::string>& paths) {
  if (paths.empty()) throw UsageError("expected at least one trace");
  GivenOnce given;
  for (const std::string& path : paths) {
    traces_.emplace_back(path);
    check_arrays(traces_.back());
    const TraceInfo& info = traces_.back().info();
    const TraceShape shape = shape_of(info.meta);
    if (traces_.size() == 1) {
      shape_ = shape;
    } else {
      check_same_shape(shape_, traces_.front().info().path, shape, info.path);
      if (shape_.model_digest.empty()) shape_.model_digest = shape.model_digest;
    }
    if (paths.size() > 1) given.add(traces_.back());
  }
}

}  // namespace blockscope
