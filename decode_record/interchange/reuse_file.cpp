// The reading side. reuse_file_write.cpp writes, reuse_mask.cpp decides. The file is long because
// it checks every member of the format.
#include "decode_record/interchange/reuse_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/json/json_node.h"
#include "decode_record/json/strict_json.h"

namespace blockscope {
namespace {

constexpr std::int64_t kReuseVersion = 2;
// No model has 10,000 layers of 10,000 heads. The limit keeps layers * heads in 64 bits.
constexpr std::int64_t kMostHeads = 10'000;
constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_reuse_header(const JsonNode& root) {
  const JsonNode format = root.member("format");
  if (format.text() != "blockscope-reuse") format.refuse("\"blockscope-reuse\"");
  const JsonNode version = root.member("format_version");
  const std::int64_t number = version.integer(0);
  if (number < 1 || number > kReuseVersion) {
    version.refuse(fmt::format("1 to {} (the versions that this build reads)", kReuseVersion));
  }
  for (const char* later : {"step_ranges", "reference", "lse_bound", "lse_drift", "row_errors"}) {
    if (number == 1 && root.has(later)) {
      root.member(later).refuse("none, because format_version is 1. HINT: it is of version 2");
    }
  }
}

/// [[1, 4], [5, null]]: the ranges cover all steps of a block, in their order.
StepRanges read_step_ranges(const JsonNode& root) {
  StepRanges ranges;
  if (!root.has("step_ranges")) return ranges;
  ranges.first.clear();
  const std::vector<JsonNode> nodes = root.member("step_ranges").elements();
  if (nodes.empty()) root.member("step_ranges").refuse("at least one range");
  std::int64_t next = 1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<JsonNode> ends = nodes[i].elements(2);
    const std::int64_t first = ends[0].integer(1);
    if (first < next) {
      ends[0].refuse(fmt::format("{}, because step {} is in the range before", next, first));
    }
    if (first > next) ends[0].refuse(fmt::format("{}, because that step is in no range", next));
    ranges.first.push_back(first);
    if (i + 1 == nodes.size()) {
      if (!ends[1].is_null()) ends[1].refuse("null, because the last range has no end");
    } else {
      next = ends[1].integer(first, kMostSteps) + 1;
    }
  }
  return ranges;
}

bool is_digest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string read_digest(const JsonNode& node) {
  std::string digest = node.text();
  if (!is_digest(digest)) node.refuse("64 hexadecimal digits");
  return digest;
}

void check_same(const JsonNode& node, std::int64_t got, std::int64_t wanted) {
  if (got != wanted) {
    node.refuse(fmt::format("{}, as this model has (the file is for another model)", wanted));
  }
}

/// K of each layer, where they differ; the largest is kv_heads.
void read_layer_kv_heads(const JsonNode& node, ReuseModel& model) {
  const auto elements = node.elements();
  if (std::cmp_not_equal(elements.size(), model.layers)) {
    node.refuse(fmt::format("{} values, one for each layer", model.layers));
  }
  for (const JsonNode& element : elements) {
    model.layer_kv_heads.push_back(element.integer(1, model.heads));
    if (model.heads % model.layer_kv_heads.back() != 0) {
      element.refuse(fmt::format("a divisor of {} heads", model.heads));
    }
  }
  if (std::ranges::max(model.layer_kv_heads) != model.kv_heads) {
    node.refuse(fmt::format("a largest value of {}, as kv_heads says", model.kv_heads));
  }
}

/// With `wanted`, another model is refused before anything else is checked: the message for such a
/// file must not be about the length of some array.
ReuseModel read_model(const JsonNode& node, const std::optional<ReuseModel>& wanted) {
  ReuseModel model;
  model.layers = node.member("layers").integer(1, kMostHeads);
  if (wanted) check_same(node.member("layers"), model.layers, wanted->layers);
  model.heads = node.member("heads").integer(1, kMostHeads);
  if (wanted) check_same(node.member("heads"), model.heads, wanted->heads);
  if (node.has("kv_heads")) {
    model.kv_heads = node.member("kv_heads").integer(1, model.heads);
    if (model.heads % model.kv_heads != 0) {
      node.member("kv_heads").refuse(fmt::format("a divisor of {} heads", model.heads));
    }
    if (wanted && wanted->kv_heads > 0) {
      check_same(node.member("kv_heads"), model.kv_heads, wanted->kv_heads);
    }
  }
  if (node.has("layer_kv_heads")) read_layer_kv_heads(node.member("layer_kv_heads"), model);
  const JsonNode digest = node.member("digest");
  if (wanted && !wanted->digest.empty() && digest.text() != wanted->digest) {
    digest.refuse(fmt::format("\"{}\", this checkpoint's digest (the file is for other weights)",
                              wanted->digest));
  }
  model.digest = read_digest(digest);
  return model;
}

/// [layers][heads]; `read` converts each element.
template <typename T, typename Read>
HeadMatrix<T> read_matrix(const JsonNode& node, const ReuseModel& model, const Read& read) {
  HeadMatrix<T> matrix;
  for (const JsonNode& row : node.elements(model.layers)) {
    std::vector<T> values;
    for (const JsonNode& element : row.elements(model.heads)) values.push_back(read(element));
    matrix.push_back(std::move(values));
  }
  return matrix;
}

/// One matrix for each range. Only a file with step_ranges has that axis.
template <typename T, typename Read>
RangeMatrices<T> read_matrices(const JsonNode& root, const char* key, const ReuseFile& file,
                               const Read& read) {
  if (!root.has(key)) return {};
  const JsonNode node = root.member(key);
  if (!root.has("step_ranges")) return {read_matrix<T>(node, file.model, read)};
  RangeMatrices<T> matrices;
  for (const JsonNode& range : node.elements(std::ssize(file.reuse.ranges.first))) {
    matrices.push_back(read_matrix<T>(range, file.model, read));
  }
  return matrices;
}

RangeMatrices<double> read_numbers(const JsonNode& root, const char* key, const ReuseFile& file,
                                   double least, double most) {
  return read_matrices<double>(root, key, file, [&](const JsonNode& element) {
    return element.number_or_null(least, most);
  });
}

/// One object for each range.
std::vector<RowErrors> read_row_errors(const JsonNode& root, const ReuseFile& file) {
  std::vector<RowErrors> errors;
  if (!root.has("row_errors")) return errors;
  for (const JsonNode& node :
       root.member("row_errors").elements(std::ssize(file.reuse.ranges.first))) {
    RowErrors& of = errors.emplace_back();
    for (std::size_t kind = 0; kind < of.size(); ++kind) {
      of[kind] = node.member(kRowKinds[kind].data()).number_or_null(0.0, kInfinity);
    }
  }
  return errors;
}

/// One number holds for all ranges.
std::vector<double> read_gammas(const JsonNode& root, const ReuseFile& file) {
  if (!root.has("gamma")) return {};
  const JsonNode node = root.member("gamma");
  if (!node.is_array())
    return std::vector<double>(file.reuse.ranges.size(), node.number(-1.0, 1.0));
  std::vector<double> gammas;
  for (const JsonNode& element : node.elements(std::ssize(file.reuse.ranges.first))) {
    gammas.push_back(element.number(-1.0, 1.0));
  }
  return gammas;
}

ReuseTrace read_trace(const JsonNode& node) {
  ReuseTrace trace;
  trace.file = node.member("file").text();
  const JsonNode digest = node.member("model_digest");
  if (!digest.is_null()) trace.model_digest = read_digest(digest);
  trace.prompts = read_digest(node.member("prompts"));
  trace.rows = node.member("rows").integer(0);
  trace.sequences = node.member("sequences").integer(0);
  trace.blocks = node.member("blocks").integer(0);
  return trace;
}

ReusePoint read_point(const JsonNode& node, std::int64_t most_heads) {
  ReusePoint point;
  point.gamma = node.member("gamma").number(-1.0, 1.0);
  point.heads = node.member("heads").integer(0, most_heads);
  point.byte_saving = node.member("byte_saving").number(0.0, 1.0);
  point.flop_saving = node.member("flop_saving").number(0.0, 1.0);
  point.relative_l2 = node.member("relative_l2").number_or_null(0.0, kInfinity);
  point.mean_l1 = node.member("mean_l1").number_or_null(0.0, kInfinity);
  point.relative_l2_all_steps = node.member("relative_l2_all_steps").number_or_null(0.0, kInfinity);
  point.terms = node.member("terms").integer(0);
  if (!node.has("relative_l2_reused")) return point;  // an older file
  point.relative_l2_reused = node.member("relative_l2_reused").number_or_null(0.0, kInfinity);
  point.mean_l1_reused = node.member("mean_l1_reused").number_or_null(0.0, kInfinity);
  point.terms_reused = node.member("terms_reused").integer(0, point.terms);
  return point;
}

ReusePrediction read_prediction(const JsonNode& node, std::int64_t most_heads) {
  ReusePrediction prediction;
  prediction.point = read_point(node, most_heads);
  prediction.steps = node.member("steps").integer(0);
  prediction.reusing_steps = node.member("reusing_steps").integer(0, prediction.steps);
  prediction.external_keys = node.member("external_keys").integer(0);
  prediction.external_keys_read =
      node.member("external_keys_read").integer(0, prediction.external_keys);
  return prediction;
}

ReuseCurve read_curve(const JsonNode& node, std::int64_t most_heads) {
  ReuseCurve curve;
  curve.tau = node.member("tau").integer(1);
  for (const JsonNode& element : node.member("points").elements()) {
    curve.points.push_back(read_point(element, most_heads));
    const auto& points = curve.points;
    if (points.size() > 1 && !(points[points.size() - 2].gamma < points.back().gamma)) {
      element.member("gamma").refuse("more than the point before it");
    }
  }
  return curve;
}

void read_pins(const JsonNode& root, ReuseFile& file) {
  if (!root.has("pins")) return;
  const auto place = [](const ReusePin& pin) { return std::pair(pin.layer, pin.head); };
  for (const JsonNode& node : root.member("pins").elements()) {
    const ReusePin pin{node.member("layer").integer(0, file.model.layers - 1),
                       node.member("head").integer(0, file.model.heads - 1),
                       node.member("reuse").boolean()};
    if (!file.pins.empty() && place(file.pins.back()) >= place(pin)) {
      node.refuse("a head after that of the pin before it, by layer and head");
    }
    const auto layer = static_cast<std::size_t>(pin.layer);
    const auto head = static_cast<std::size_t>(pin.head);
    const auto place_in = [&](const char* name, std::size_t range) {
      return fmt::format("{}{}[{}][{}]", name,
                         root.has("step_ranges") ? fmt::format("[{}]", range) : "", layer, head);
    };
    for (std::size_t range = 0; range < file.reuse.heads.size(); ++range) {
      const bool reuse = file.reuse.heads[range][layer][head];
      if (reuse == pin.reuse) continue;
      node.member("reuse").refuse(
          fmt::format("{}, because {} is", reuse, place_in("reuse", range)));
    }
    const auto measured = [&](const HeadMatrix<double>& matrix) {
      return !std::isnan(matrix[layer][head]);
    };
    if (pin.reuse && !file.similarity.empty() && std::ranges::none_of(file.similarity, measured)) {
      node.member("reuse").refuse(
          fmt::format("false, because {} was not measured", place_in("similarity", 0)));
    }
    file.pins.push_back(pin);
  }
}

/// Files of version 1 with a tau have no such member.
ReuseCount read_counts(const JsonNode& root, const ReuseFile& file) {
  if (!root.has("tau_counts")) return file.tau ? ReuseCount::step : ReuseCount::since_read;
  const JsonNode node = root.member("tau_counts");
  const std::string text = node.text();
  const auto* const name = std::ranges::find(kReuseCounts, text);
  if (name == kReuseCounts.end()) node.refuse("\"since_read\" or \"step\"");
  if (!file.tau) node.refuse("none, because the file has no tau");
  return static_cast<ReuseCount>(name - kReuseCounts.begin());
}

void read_measurements(const JsonNode& root, ReuseFile& file) {
  file.gamma = read_gammas(root, file);
  if (root.has("lse_bound")) file.lse_bound = root.member("lse_bound").number(0.0, kInfinity);
  if (root.has("reference")) {
    const JsonNode node = root.member("reference");
    const std::string text = node.text();
    const auto* const name = std::ranges::find(kReuseReferences, text);
    if (name == kReuseReferences.end()) node.refuse("\"adjacent\" or \"kept\"");
    file.reference = static_cast<ReuseReference>(name - kReuseReferences.begin());
  }
  if (root.has("tau")) file.tau = root.member("tau").integer(1);
  file.tau_counts = read_counts(root, file);
  if (root.has("granularity")) {
    const JsonNode node = root.member("granularity");
    const std::string name = node.text();
    if (name != "head" && name != "kv-group") node.refuse("\"head\" or \"kv-group\"");
    file.granularity = parse_reuse_granularity(name);
  }
  if (root.has("statistic")) file.statistic = root.member("statistic").text();
  if (root.has("computed_from")) file.computed_from = root.member("computed_from").text();
  if (root.has("traces")) {
    for (const JsonNode& node : root.member("traces").elements()) {
      file.traces.push_back(read_trace(node));
    }
  }
  file.similarity = read_numbers(root, "similarity", file, -1.0, 1.0);
  file.standard_deviation = read_numbers(root, "standard_deviation", file, 0.0, kInfinity);
  file.standard_error = read_numbers(root, "standard_error", file, 0.0, kInfinity);
  file.p5 = read_numbers(root, "p5", file, -1.0, 1.0);
  file.count = read_matrices<std::int64_t>(root, "count", file,
                                           [](const JsonNode& node) { return node.integer(0); });
  file.lse_drift = read_numbers(root, "lse_drift", file, 0.0, kInfinity);
  file.row_errors = read_row_errors(root, file);
  if (file.lse_bound && !file.similarity.empty()) root.member("lse_drift");  // refuses: it decides
}

void read_predictions(const JsonNode& root, ReuseFile& file) {
  if (!root.has("predictions")) return;
  const JsonNode node = root.member("predictions");
  const std::int64_t heads =
      file.model.layers * file.model.heads * std::ssize(file.reuse.ranges.first);
  file.predicted = read_prediction(node.member("chosen"), heads);
  for (const JsonNode& element : node.member("curves").elements()) {
    file.curves.push_back(read_curve(element, heads));
    if (file.curves.size() > 1 &&
        file.curves[file.curves.size() - 2].tau >= file.curves.back().tau) {
      element.member("tau").refuse("more than the curve before it");
    }
  }
}

/// Refuses a mask that does not follow from the measurements and pins: it was edited or damaged.
void check_mask(const JsonNode& root, const ReuseFile& file) {
  if (file.gamma.empty() || file.similarity.empty()) return;
  if (file.granularity == ReuseGranularity::kv_group && file.model.kv_heads == 0) {
    root.member("model").member("kv_heads");  // refuses: a group needs it
  }
  const ReuseMasks expected = reuse_masks(file, file.gamma);
  const JsonNode node = root.member("reuse");
  for (std::size_t range = 0; range < expected.heads.size(); ++range) {
    const bool named = root.has("step_ranges");
    const JsonNode matrix = named ? node.elements()[range] : node;
    for (std::size_t layer = 0; layer < expected.heads[range].size(); ++layer) {
      for (std::size_t head = 0; head < expected.heads[range][layer].size(); ++head) {
        const bool reuse = expected.heads[range][layer][head];
        if (reuse == file.reuse.heads[range][layer][head]) continue;
        const std::string place =
            fmt::format("{}[{}][{}]", named ? fmt::format("[{}]", range) : "", layer, head);
        const std::string drift =
            file.lse_bound ? fmt::format(", lse_bound {} and lse_drift{} {}", *file.lse_bound,
                                         place, file.lse_drift[range][layer][head])
                           : "";
        matrix.elements()[layer].elements()[head].refuse(fmt::format(
            "{}, because gamma is {} and similarity{} is {}{} (granularity {}; a head decided by "
            "hand is listed in pins, a mask made by hand goes without gamma and similarity)",
            reuse, file.gamma[range], place, file.similarity[range][layer][head], drift,
            to_string(file.granularity)));
      }
    }
  }
}

}  // namespace

ReuseFile parse_reuse_file(std::string_view text, const std::string& name,
                           const std::optional<ReuseModel>& wanted) {
  nlohmann::json json;
  try {
    json = parse_strict_json(text);
  } catch (const JsonFault& fault) {
    throw CalibrationError(fmt::format("{}: {}: {}", name, fault.place(), fault.text()));
  }
  const JsonNode root(json, name);
  check_reuse_header(root);
  ReuseFile file;
  file.model = read_model(root.member("model"), wanted);
  file.reuse.ranges = read_step_ranges(root);
  root.member("reuse");  // refuses: every file has it
  file.reuse.heads = read_matrices<bool>(root, "reuse", file,
                                         [](const JsonNode& element) { return element.boolean(); });
  read_measurements(root, file);
  read_pins(root, file);
  read_predictions(root, file);
  check_mask(root, file);
  return file;
}

ReuseFile read_reuse_file(const std::string& path, const std::optional<ReuseModel>& wanted) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  std::ifstream stream;
  if (regular) stream.open(path, std::ios::binary);  // opening a pipe would wait for its writer
  if (!regular || !stream) {
    throw CalibrationError(fmt::format("{}: file: expected a readable calibration file, got {}",
                                       path, regular ? "one that can't be opened" : "none"));
  }
  if (std::filesystem::file_size(path, error) > kMostBytes) {
    throw CalibrationError(
        fmt::format("{}: file: expected at most {} bytes of JSON, got more", path, kMostBytes));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_reuse_file(text, path, wanted);
}

}  // namespace blockscope
