// Which of several processes this is: the variables are those that torchrun 2.11, mpirun 4 and
// Slurm 23 set, and those that Slurm sets where it starts one process only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/base/error.h"
#include "probe/run/device_option.h"
#include "probe/run/ranks.h"

namespace blockscope {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const LauncherVariables kTorchrun{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}};
const LauncherVariables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                                 {"OMPI_COMM_WORLD_SIZE", "8"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
// sbatch --ntasks=16, and srun -n 8 in it.
const LauncherVariables kSlurmStep{{"SLURM_PROCID", "5"},
                                   {"SLURM_NTASKS", "16"},
                                   {"SLURM_STEP_ID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "8"},
                                   {"SLURM_LOCALID", "1"}};

LauncherVariables with(LauncherVariables variables, const std::string& name,
                       const std::string& value) {
  variables[name] = value;
  return variables;
}

LauncherVariables without(LauncherVariables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Ranks, EveryLauncherIsRead) {
  for (const auto& [name, variables] :
       {std::pair{"torchrun", kTorchrun},
        {"Open MPI", kOpenMpi},
        {"Slurm", kSlurmStep},
        {"Slurm", with(without(kSlurmStep, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS", "8")}}) {
    const Ranks ranks = choose_ranks("auto", variables);
    EXPECT_EQ(ranks.rank, 5) << name;
    EXPECT_EQ(ranks.world_size, 8) << name;
    EXPECT_EQ(ranks.source, name);
    EXPECT_EQ(ranks.ignored, "");
    EXPECT_EQ(local_rank(variables), 1) << name;
    EXPECT_EQ(share_text(ranks, 3, 20), std::string("rank 5 of 8 (") + name + "): 3 of 20 prompts");
  }
}

TEST(Ranks, ALauncherInsideAJobStepComesFirst) {
  LauncherVariables both = kSlurmStep;
  both["SLURM_PROCID"] = "0";
  for (const auto& [name, value] : kTorchrun) both[name] = value;
  EXPECT_EQ(choose_ranks("auto", both).source, "torchrun");
  EXPECT_EQ(choose_ranks("auto", both).rank, 5);
}

TEST(Ranks, WhatNoLauncherOfThisProcessSetIsIgnoredAndTold) {
  const LauncherVariables batch = without(kSlurmStep, "SLURM_STEP_ID");
  for (const LauncherVariables& variables : {
           without(batch, "SLURM_STEP_NUM_TASKS"),
           with(batch, "SLURM_STEP_ID", "4294967291"),  // the batch step
           with(batch, "SLURM_STEP_ID", "4294967290"),  // an interactive step of salloc
           with(batch, "SLURM_STEP_ID", "4294967294"),  // the batch step before Slurm 20.11
           with(batch, "SLURM_STEP_ID", "batch"),
           without(kTorchrun, "LOCAL_RANK"),
       }) {
    const Ranks ranks = choose_ranks("auto", variables);
    EXPECT_TRUE(ranks.alone());
    EXPECT_EQ(ranks.rank, 0);
    EXPECT_EQ(ranks.source, "");
    EXPECT_THAT(ranks.ignored, AllOf(HasSubstr("=5"), HasSubstr("are ignored")));
    EXPECT_EQ(local_rank(variables), std::nullopt);
  }
  EXPECT_EQ(choose_ranks("auto", {}).ignored, "");
  // One task is a single process, whatever started it: nothing to report.
  EXPECT_EQ(choose_ranks("auto", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}).ignored, "");
}

TEST(Ranks, TheOptionComesBeforeTheVariables) {
  EXPECT_TRUE(choose_ranks("none", kTorchrun).alone());
  EXPECT_TRUE(choose_ranks("none", with(kTorchrun, "RANK", "what")).alone());
  const Ranks given = choose_ranks("2/3", with(kTorchrun, "RANK", "what"));
  EXPECT_EQ(given.rank, 2);
  EXPECT_EQ(given.world_size, 3);
  EXPECT_EQ(given.source, "--ranks");
  EXPECT_TRUE(choose_ranks("0/1", {}).alone());
}

/// What choose_ranks() or local_rank() says against this; "" where it takes it.
std::string refusal(const std::string& option, const LauncherVariables& variables) {
  try {
    choose_ranks(option, variables);
    local_rank(variables);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Ranks, NumbersAreChecked) {
  for (const char* text : {"", "all", "1", "1/", "/2", "-1/2", "1/2/3", "1 /2", "0x1/2", "1/2 "}) {
    EXPECT_THAT(refusal(text, {}), HasSubstr("expected none, auto or R/N")) << text;
  }
  for (const char* text : {"2/2", "0/0", "0/1000001", "3/2"}) {
    EXPECT_THAT(refusal(text, {}), HasSubstr("0 <= rank < size <= 1000000")) << text;
  }
  struct Case {
    const char *name, *value, *words;
  };
  for (const auto& [name, value, words] :
       {Case{"SLURM_STEP_NUM_TASKS", "99999999999999", "0 <= rank < size <= 1000000"},
        Case{"SLURM_STEP_NUM_TASKS", "99999999999999999999", "expected a whole number"},
        Case{"SLURM_STEP_NUM_TASKS", "5", "0 <= rank < size"},
        Case{"SLURM_STEP_NUM_TASKS", "0", "0 <= rank < size"},
        Case{"SLURM_PROCID", "-1", "expected a whole number"},
        Case{"SLURM_PROCID", "1x", "expected a whole number"},
        Case{"SLURM_LOCALID", "first", "expected a whole number"}}) {
    EXPECT_THAT(refusal("auto", with(kSlurmStep, name, value)),
                AllOf(HasSubstr(name), HasSubstr(words)))
        << value;
  }
}

TEST(Ranks, CudaIsTheGpuOfTheLocalRank) {
  EXPECT_EQ(gpu_of_rank(std::nullopt, 8), 0);
  EXPECT_EQ(gpu_of_rank(3, 8), 3);
  EXPECT_EQ(gpu_of_rank(3, 1), 0);  // a launcher that shows each process its own GPU only
  EXPECT_EQ(gpu_of_rank(5, 4), 1);  // more processes than GPUs
  EXPECT_EQ(gpu_of_rank(3, 0), 0);  // none: the error names the first
}

}  // namespace
}  // namespace blockscope
