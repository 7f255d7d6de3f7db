#include "cli/environment.h"

#include <cstdlib>
#include <utility>

namespace blockscope {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

HubEnvironment read_hub_environment() {
  return {variable("HF_HUB_CACHE"), variable("HUGGINGFACE_HUB_CACHE"), variable("HF_HOME"),
          variable("XDG_CACHE_HOME"), variable("HOME")};
}

Environment read_environment() {
  Environment environment;
  environment.hub = read_hub_environment();
  for (const LauncherVariable& known : kLauncherVariables) {
    std::string value = variable(known.name);
    if (!value.empty()) environment.launcher.emplace(known.name, std::move(value));
  }
  return environment;
}

std::string viewer_config_folder() {
  const std::string configured = variable("XDG_CONFIG_HOME");
  if (!configured.empty()) return configured + "/blockscope";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.config/blockscope";
}

GnuplotPlace gnuplot_place() {
  return {.program = variable("BLOCKSCOPE_GNUPLOT"), .search_path = variable("PATH")};
}

}  // namespace blockscope
