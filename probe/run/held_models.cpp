#include "probe/run/held_models.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <string>

namespace blockscope {
namespace {

/// Everything that decides what load_model() returns.
std::string key_of(const ModelFlags& flags, const ResolvedModel& source) {
  const auto number = [](const std::optional<std::int64_t>& value) { return value.value_or(-1); };
  return fmt::format("{}\n{}\n{}\n{}\n{} {}", source.folder.string(), flags.adapter.string(),
                     flags.dtype, flags.device, number(flags.overrides.mask_token_id),
                     number(flags.overrides.block_length));
}

struct HeldModels {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const LoadedModel>> by_key;
};

HeldModels& held() {
  static HeldModels models;
  return models;
}

}  // namespace

std::shared_ptr<const LoadedModel> hold_model(const ModelFlags& flags,
                                              const Environment& environment) {
  // A held model with the same flags is returned, so that no weights are in memory twice.
  const auto loaded = load_model(flags, environment);
  if (auto held = held_model(flags, loaded.source)) return held;
  auto model = std::make_shared<const LoadedModel>(loaded);
  const std::lock_guard lock(held().mutex);
  std::erase_if(held().by_key, [](const auto& entry) { return entry.second.expired(); });
  held().by_key[key_of(flags, model->source)] = model;
  return model;
}

std::shared_ptr<const LoadedModel> held_model(const ModelFlags& flags,
                                              const ResolvedModel& source) {
  const std::lock_guard lock(held().mutex);
  const auto found = held().by_key.find(key_of(flags, source));
  return found == held().by_key.end() ? nullptr : found->second.lock();
}

}  // namespace blockscope
