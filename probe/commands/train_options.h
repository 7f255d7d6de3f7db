// The options of `blockscope train`.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/train/train_run.h"

namespace blockscope {

struct TrainFlags {
  TrainRunOptions run;
  std::string stage = "all";
  std::string ranks = "auto";
  std::string precision = "float32";
  std::string split = "test";
  std::int64_t steps = 0;
  std::vector<std::string> lora_modules{"q", "k", "v", "o"};
  std::size_t first_context = 64, last_context = 1024;
  int threads = 0;
  std::optional<std::size_t> dump_prompts;
  std::vector<std::string> tasks;
  std::vector<std::size_t> contexts = {1024};
  std::string prompts_out = "-";
};

/// Adds all options; their values go to `flags`.
void add_train_options(CLI::App& command, TrainFlags& flags);

}  // namespace blockscope
