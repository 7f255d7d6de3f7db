#include "probe/commands/prediction_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <vector>

#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "probe/study/device_numbers.h"
#include "probe/study/prediction.h"

namespace blockscope {
namespace {

constexpr uint64_t kMostDevices = 64;
constexpr uint64_t kMostTotalContext = uint64_t{1} << 40U;
/// Options that do nothing without --predict.
constexpr std::array kOwnOptions{"--tp", "--total-contexts", "--trace", "--reuse-share"};
/// The other options that a prediction uses.
constexpr std::array kUsedOptions{"--revision",     "--dtype",      "--mask-token-id",
                                  "--block-length", "--batch-size", "--output",
                                  "--force",        "--no-figures", "--quiet"};

}  // namespace

void add_prediction_options(CLI::App& group, StudyOptions& options) {
  group.add_option("--predict", options.predict,
                   fmt::format("time: predict times for {} or the numbers in a JSON file",
                               fmt::join(device_names(), ", ")));
  group.add_option("--tp", options.tp, "time --predict: split the model over this many devices")
      ->check(whole_number(1, kMostDevices))
      ->capture_default_str();
  group
      .add_option("--total-contexts", options.totals,
                  "time --predict: put this many tokens into the caches of all sequences")
      ->delimiter(',')
      ->check(whole_number(1, kMostTotalContext));
  group.add_option("--trace", options.trace,
                   "time --predict: take steps a block and reuse from this trace");
  group
      .add_option("--reuse-share", options.reuse_share,
                  "time --predict: let flashblock reuse in this share of the steps")
      ->check(real_number(0.0, 1.0));
}

void check_prediction_flags(const CLI::App& command, const std::string& study) {
  if (study_by_name(study).name != "time") {
    throw UsageError(
        fmt::format("--predict: does nothing in study {}. HINT: study time --predict", study));
  }
  const auto used = [](const std::string& name) {
    const std::vector<std::string>& own = prediction_info().options;
    return std::ranges::find(own, name) != own.end() ||
           std::ranges::find(kUsedOptions, name) != kUsedOptions.end();
  };
  for (const std::string& name : given_options(command)) {
    if (!used(name)) refuse_idle_beside(command, name, "--predict");
  }
  refuse_idle_beside(command, "--contexts", "--total-contexts");
  refuse_idle_beside(command, "--reuse-share", "--trace");
  for (const char* option : {"--trace", "--reuse-share"}) {
    refuse_idle_beside(command, "--taus", option);
  }
  refuse_idle_beside(command, "--steps", "--trace");
}

void refuse_without_prediction(const CLI::App& command) {
  for (const char* option : kOwnOptions) {
    refuse_idle(command, option, command.get_option("--predict")->count() > 0, "--predict");
  }
}

}  // namespace blockscope
