#include "viewer/model/lens_data.h"

#include <fmt/format.h>

#include "decode_record/base/nan.h"
#include "decode_record/json/json_document.h"
#include "decode_record/json/json_node.h"

namespace blockscope {
namespace {

constexpr std::size_t kDeepest = 16;
constexpr std::int64_t kLargestIndex = 65536;

std::vector<std::int64_t> numbers_of(const JsonNode& axis, const char* name) {
  if (axis.member("name").text() != name) {
    axis.member("name").refuse(fmt::format("the axis \"{}\"", name));
  }
  std::vector<std::int64_t> numbers;
  for (const JsonNode& one : axis.member("index").elements()) {
    numbers.push_back(static_cast<std::int64_t>(one.number(0.0, kLargestIndex)));
  }
  if (numbers.empty()) axis.member("index").refuse("at least one");
  return numbers;
}

}  // namespace

std::shared_ptr<const LensData> read_lens(const std::string& path) {
  const nlohmann::json json = parse_document(read_document(path), path, kDeepest);
  const JsonNode root(json, path, refuse_trajectory);
  auto lens = std::make_shared<LensData>();
  lens->path = path;
  if (!root.has("metrics")) root.refuse("a result of `blockscope lens --json`");
  lens->model_digest = root.member("model_digest").text();
  const JsonNode metric = root.member("metrics").elements(1).front();
  if (metric.member("metric").text() != "lens") metric.member("metric").refuse("\"lens\"");
  const std::vector<JsonNode> arrays = metric.member("arrays").elements();
  for (const char* mode : kLensModes) {
    const std::string name = fmt::format("lens_{}", mode);
    const JsonNode* array = nullptr;
    for (const JsonNode& one : arrays) {
      if (one.member("name").text() == name) array = &one;
    }
    if (array == nullptr)
      metric.member("arrays").complain(fmt::format("expected {}, got none", name));
    const std::vector<JsonNode> axes = array->member("axes").elements(2);
    lens->layers = numbers_of(axes[0], "layer");
    lens->steps = numbers_of(axes[1], "step");
    SimilarityMatrix matrix;
    matrix.rows = lens->layers.size();
    matrix.columns = lens->steps.size();
    const auto count = static_cast<std::int64_t>(matrix.rows * matrix.columns);
    for (const JsonNode& value : array->member("values").elements(count)) {
      matrix.values.push_back(static_cast<float>(value.number_or_null(0.0, 1e9)));
    }
    lens->values.push_back({name, array->member("unit").text(), with_range(std::move(matrix))});
  }
  return lens;
}

CsvTable lens_table(const LensData& lens, std::size_t mode) {
  const LensData::Values& shown = lens.values.at(mode);
  CsvTable table({"layer", "step", fmt::format("{} [{}]", shown.name, shown.unit)});
  const SimilarityMatrix& matrix = shown.matrix->matrix;
  for (std::size_t layer = 0; layer < matrix.rows; ++layer) {
    for (std::size_t step = 0; step < matrix.columns; ++step) {
      table.add({lens.layers[layer], lens.steps[step],
                 double{matrix.values[layer * matrix.columns + step]}});
    }
  }
  return table;
}

}  // namespace blockscope
