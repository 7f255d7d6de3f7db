#include "probe/reuse_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr const char* kFormat = "blockscope-reuse";
constexpr int64_t kFormatVersion = 1;

[[noreturn]] void refuse(const std::string& path, const std::string& field,
                         const std::string& expected, const std::string& got) {
  throw CheckpointError(fmt::format("{}: {}: expected {}, got {}", path, field, expected, got));
}

const nlohmann::json& member(const nlohmann::json& object, const char* key,
                             const std::string& path) {
  if (!object.is_object() || !object.contains(key)) refuse(path, key, "a value", "none");
  return object[key];
}

void check_equal(const nlohmann::json& value, const nlohmann::json& expected, const char* field,
                 const std::string& path) {
  if (value != expected) refuse(path, field, expected.dump(), value.dump());
}

}  // namespace

ReuseFile read_reuse_file(const std::string& path, const ModelConfig& config,
                          const std::string& checkpoint_digest) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream || !std::filesystem::is_regular_file(path)) {
    refuse(path, "file", "a readable calibration file", "none");
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse(path, "file", "JSON", "text that does not parse");
  check_equal(member(json, "format", path), kFormat, "format", path);
  check_equal(member(json, "format_version", path), kFormatVersion, "format_version", path);
  const nlohmann::json& model = member(json, "model", path);
  if (!model.is_object()) refuse(path, "model", "an object", model.dump().substr(0, 60));
  check_equal(member(model, "layers", path), config.num_layers, "model.layers", path);
  check_equal(member(model, "heads", path), config.num_heads, "model.heads", path);
  check_equal(member(model, "digest", path), checkpoint_digest, "model.digest", path);
  const nlohmann::json& rows = member(json, "reuse", path);
  if (!rows.is_array() || rows.size() != static_cast<size_t>(config.num_layers)) {
    refuse(path, "reuse", fmt::format("{} layers", config.num_layers), rows.dump().substr(0, 60));
  }
  ReuseFile file;
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    const nlohmann::json& row = rows[layer];
    if (!row.is_array() || row.size() != static_cast<size_t>(config.num_heads)) {
      refuse(path, fmt::format("reuse[{}]", layer), fmt::format("{} heads", config.num_heads),
             row.dump().substr(0, 60));
    }
    std::vector<bool> heads;
    for (size_t head = 0; head < row.size(); ++head) {
      if (!row[head].is_boolean()) {
        refuse(path, fmt::format("reuse[{}][{}]", layer, head), "true or false",
               row[head].dump().substr(0, 60));
      }
      heads.push_back(row[head].get<bool>());
    }
    file.reuse.push_back(std::move(heads));
  }
  return file;
}

}  // namespace blockscope
