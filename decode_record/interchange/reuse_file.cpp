// The reading side, and what reader and writer share; the writing side is reuse_file_write.cpp.
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
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_reuse_header(const JsonNode& root) {
  const JsonNode format = root.member("format");
  if (format.text() != "blockscope-reuse") format.refuse("\"blockscope-reuse\"");
  const JsonNode version = root.member("format_version");
  const std::int64_t number = version.integer(0);
  if (number < 1 || number > kReuseVersion) {
    version.refuse(fmt::format("1 to {} (the versions that this build reads)", kReuseVersion));
  }
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
  const JsonNode digest = node.member("digest");
  if (wanted && digest.text() != wanted->digest) {
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

HeadMatrix<double> read_numbers(const JsonNode& root, const char* key, const ReuseModel& model,
                                double least, double most) {
  if (!root.has(key)) return {};
  return read_matrix<double>(root.member(key), model, [&](const JsonNode& element) {
    return element.number_or_null(least, most);
  });
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

ReusePoint read_point(const JsonNode& node, const ReuseModel& model) {
  ReusePoint point;
  point.gamma = node.member("gamma").number(-1.0, 1.0);
  point.heads = node.member("heads").integer(0, model.layers * model.heads);
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

ReusePrediction read_prediction(const JsonNode& node, const ReuseModel& model) {
  ReusePrediction prediction;
  prediction.point = read_point(node, model);
  prediction.steps = node.member("steps").integer(0);
  prediction.reusing_steps = node.member("reusing_steps").integer(0, prediction.steps);
  prediction.external_keys = node.member("external_keys").integer(0);
  prediction.external_keys_read =
      node.member("external_keys_read").integer(0, prediction.external_keys);
  return prediction;
}

ReuseCurve read_curve(const JsonNode& node, const ReuseModel& model) {
  ReuseCurve curve;
  curve.tau = node.member("tau").integer(1);
  for (const JsonNode& element : node.member("points").elements()) {
    curve.points.push_back(read_point(element, model));
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
    if (file.reuse[layer][head] != pin.reuse) {
      node.member("reuse").refuse(
          fmt::format("{}, because reuse[{}][{}] is", bool{file.reuse[layer][head]}, layer, head));
    }
    if (pin.reuse && !file.similarity.empty() && std::isnan(file.similarity[layer][head])) {
      node.member("reuse").refuse(
          fmt::format("false, because similarity[{}][{}] was not measured", layer, head));
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
  if (root.has("gamma")) file.gamma = root.member("gamma").number(-1.0, 1.0);
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
  file.similarity = read_numbers(root, "similarity", file.model, -1.0, 1.0);
  file.standard_deviation = read_numbers(root, "standard_deviation", file.model, 0.0, kInfinity);
  file.standard_error = read_numbers(root, "standard_error", file.model, 0.0, kInfinity);
  file.p5 = read_numbers(root, "p5", file.model, -1.0, 1.0);
  if (root.has("count")) {
    file.count = read_matrix<std::int64_t>(root.member("count"), file.model,
                                           [](const JsonNode& node) { return node.integer(0); });
  }
}

void read_predictions(const JsonNode& root, ReuseFile& file) {
  if (!root.has("predictions")) return;
  const JsonNode node = root.member("predictions");
  file.predicted = read_prediction(node.member("chosen"), file.model);
  for (const JsonNode& element : node.member("curves").elements()) {
    file.curves.push_back(read_curve(element, file.model));
    if (file.curves.size() > 1 &&
        file.curves[file.curves.size() - 2].tau >= file.curves.back().tau) {
      element.member("tau").refuse("more than the curve before it");
    }
  }
}

/// Refuses a mask that does not follow from gamma, similarity and pins: it was edited or damaged.
void check_mask(const JsonNode& root, const ReuseFile& file) {
  if (!file.gamma || file.similarity.empty()) return;
  if (file.granularity == ReuseGranularity::kv_group && file.model.kv_heads == 0) {
    root.member("model").member("kv_heads");  // refuses: a group needs it
  }
  const HeadMatrix<bool> expected =
      reuse_mask(file.similarity, *file.gamma, file.granularity, file.model.kv_heads, file.pins);
  for (std::size_t layer = 0; layer < expected.size(); ++layer) {
    for (std::size_t head = 0; head < expected[layer].size(); ++head) {
      if (expected[layer][head] == file.reuse[layer][head]) continue;
      root.member("reuse").elements()[layer].elements()[head].refuse(fmt::format(
          "{}, because gamma is {} and similarity[{}][{}] is {} (granularity {}; a head decided by "
          "hand is listed in pins, a mask made by hand goes without gamma and similarity)",
          expected[layer][head], *file.gamma, layer, head, file.similarity[layer][head],
          to_string(file.granularity)));
    }
  }
}

}  // namespace

std::string_view to_string(ReuseGranularity granularity) {
  return granularity == ReuseGranularity::head ? "head" : "kv-group";
}

ReuseGranularity parse_reuse_granularity(std::string_view name) {
  if (name == "head") return ReuseGranularity::head;
  if (name == "kv-group") return ReuseGranularity::kv_group;
  throw UsageError(fmt::format("--granularity: expected head or kv-group, got '{}'", name));
}

HeadMatrix<bool> reuse_mask(const HeadMatrix<double>& similarity, double gamma,
                            ReuseGranularity granularity, std::int64_t kv_heads,
                            const std::vector<ReusePin>& pins) {
  HeadMatrix<bool> mask;
  for (const std::vector<double>& row : similarity) {
    std::vector<bool> heads(row.size());
    for (std::size_t head = 0; head < row.size(); ++head) heads[head] = row[head] > gamma;
    if (granularity == ReuseGranularity::kv_group && kv_heads > 0) {
      const std::size_t group =
          std::max<std::size_t>(1, row.size() / static_cast<std::size_t>(kv_heads));
      for (std::size_t first = 0; first + group <= row.size(); first += group) {
        const auto begin = heads.begin() + static_cast<std::ptrdiff_t>(first);
        const auto end = begin + static_cast<std::ptrdiff_t>(group);
        std::fill(begin, end, std::all_of(begin, end, [](bool reuse) { return reuse; }));
      }
    }
    mask.push_back(std::move(heads));
  }
  for (const ReusePin& pin : pins) {
    mask[static_cast<std::size_t>(pin.layer)][static_cast<std::size_t>(pin.head)] = pin.reuse;
  }
  return mask;
}

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
  file.reuse = read_matrix<bool>(root.member("reuse"), file.model,
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

ReuseRule reuse_rule(const std::optional<std::int64_t>& tau,
                     const std::optional<ReuseCount>& count, const ReuseFile& file) {
  ReuseRule rule;
  if (file.tau) rule = {static_cast<double>(*file.tau), file.tau_counts};
  if (tau) rule.tau = static_cast<double>(*tau);
  if (count) rule.count = *count;
  return rule;
}

}  // namespace blockscope
