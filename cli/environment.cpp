#include "cli/environment.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "decode_record/error.h"

namespace blockscope {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t number(const char* name, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(
        fmt::format("{}: expected a number, got '{}'. HINT: unset it to run alone", name, text));
  }
  return value;
}

struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
};
// SLURM_PROCID is also set in a plain batch script, with one task: that is a single process.
constexpr std::array<Launcher, 3> kLaunchers{{
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS"},
}};

}  // namespace

HubEnvironment read_hub_environment() {
  return {variable("HF_HUB_CACHE"), variable("HUGGINGFACE_HUB_CACHE"), variable("HF_HOME"),
          variable("XDG_CACHE_HOME"), variable("HOME")};
}

Environment read_environment() {
  Environment environment;
  environment.hub = read_hub_environment();
  for (const Launcher& launcher : kLaunchers) {
    const std::string rank = variable(launcher.rank);
    const std::string world_size = variable(launcher.world_size);
    if (rank.empty() || world_size.empty()) continue;
    environment.rank = number(launcher.rank, rank);
    environment.world_size = number(launcher.world_size, world_size);
    environment.launcher = launcher.name;
    if (environment.world_size < 1 || environment.rank < 0 ||
        environment.rank >= environment.world_size) {
      throw UsageError(fmt::format("{} = {} and {} = {}: expected 0 <= rank < size", launcher.rank,
                                   rank, launcher.world_size, world_size));
    }
    break;
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
