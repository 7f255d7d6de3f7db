#include "probe/study/device_numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "decode_record/base/error.h"
#include "probe/checkpoint/json_object.h"
#include "probe/study/given_devices.h"

namespace blockscope {
namespace {

constexpr double kMostOfARate = 1e24;
constexpr std::uintmax_t kMostBytesOfAFile = 1U << 20U;
constexpr const char* kHint =
    "every number is an object such as {\"value\": 3.35e12, \"source\": \"data sheet\"}; "
    "docs/studies.md lists the keys";

void refuse_unknown(const JsonObject& object, const std::string& kind) {
  const std::vector<std::string> unknown = object.unread();
  if (!unknown.empty()) object.fail(unknown.front(), "no such key", kind);
}

/// A number above 0 and at most `most`, with its source.
double sourced(const JsonObject& parent, const std::string& key, double most) {
  const nlohmann::json& raw = parent.raw();
  const auto found = raw.find(key);
  if (found == raw.end() || !found->is_object()) {
    parent.fail(key, "an object with value and source", kHint);
  }
  const JsonObject object = *parent.optional_object(key);
  const auto value = object.raw().find("value");
  const bool fits = value != object.raw().end() && value->is_number() &&
                    value->get<double>() > 0.0 && value->get<double>() <= most;
  if (!fits) object.fail("value", fmt::format("a number above 0, at most {}", most), kHint);
  const auto source = object.raw().find("source");
  if (source == object.raw().end() || !source->is_string() || source->get<std::string>().empty()) {
    object.fail("source", "a text that says where the number comes from", kHint);
  }
  object.pass_over({"value", "source"});
  refuse_unknown(object, kHint);
  return value->get<double>();
}

}  // namespace

DeviceNumbers parse_device_numbers(const std::string& text, const std::string& where) {
  const JsonObject object = JsonObject::parse(text, where);
  DeviceNumbers numbers;
  const std::optional<std::string> device = object.optional_string("device");
  if (!device || device->empty()) object.fail("device", "a text that describes the device", kHint);
  numbers.device = *device;
  const auto rate = [&](const char* key) { return sourced(object, key, kMostOfARate); };
  const auto share = [&](const char* key) { return sourced(object, key, 1.0); };
  numbers.memory_bytes = rate("memory_bytes");
  numbers.memory_bandwidth = rate("memory_bandwidth");
  numbers.bandwidth_efficiency = share("bandwidth_efficiency");
  numbers.product_efficiency = share("product_efficiency");
  numbers.attention_efficiency = share("attention_efficiency");
  numbers.launch_seconds = share("launch_seconds");
  const std::optional<JsonObject> flops = object.optional_object("flops");
  if (!flops) object.fail("flops", "an object with a number for each dtype", kHint);
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    if (flops->has(dtype)) numbers.flops[dtype] = sourced(*flops, dtype, kMostOfARate);
  }
  refuse_unknown(*flops, "the dtypes are bfloat16, float16 and float32");
  if (numbers.flops.empty()) object.fail("flops", "a number for at least one dtype", kHint);
  if (object.has("cache_bytes") || object.has("cache_bandwidth")) {
    numbers.cache_bytes = rate("cache_bytes");
    numbers.cache_bandwidth = rate("cache_bandwidth");
  }
  if (object.has("link_bandwidth") || object.has("link_seconds")) {
    numbers.link_bandwidth = rate("link_bandwidth");
    numbers.link_seconds = share("link_seconds");
  }
  refuse_unknown(object, kHint);
  return numbers;
}

DeviceNumbers device_numbers(const std::string& name_or_file) {
  for (const GivenDevice& given : kGivenDevices) {
    if (name_or_file == given.name) return parse_device_numbers(given.numbers, given.name);
  }
  std::error_code error;
  if (!std::filesystem::exists(name_or_file, error)) {
    throw UsageError(fmt::format(
        "--predict: expected one of {} or a JSON file with a device's numbers, got '{}'",
        fmt::join(device_names(), ", "), name_or_file));
  }
  return parse_device_numbers(read_checkpoint_text(name_or_file, kMostBytesOfAFile), name_or_file);
}

bool is_given_device(const std::string& name) {
  const std::vector<std::string> names = device_names();
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const GivenDevice& given : kGivenDevices) names.emplace_back(given.name);
  return names;
}

}  // namespace blockscope
