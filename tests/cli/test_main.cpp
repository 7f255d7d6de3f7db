// The command line as a whole: exit codes, error lines, the runtime module, start-up time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/modules.h"
#include "tests/cli/command.h"

namespace blockscope::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string pinned_version() {
  std::ifstream file(std::string(BLOCKSCOPE_SOURCE_DIR) + "/cmake/versions.env");
  const std::string key = "BLOCKSCOPE_VERSION=";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      return line.substr(key.size());
    }
  }
  return "no BLOCKSCOPE_VERSION in cmake/versions.env";
}

TEST(CommandLine, HelpTakesLessThanATenthOfASecond) {
  // The smallest of several runs: the machine may be busy, and LibTorch alone would take 0.45 s.
  double seconds = 1e9;
  for (int run = 0; run < 5; ++run) {
    const auto result = run_blockscope({"--help"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    seconds = std::min(seconds, result.seconds);
  }
  EXPECT_LT(seconds, 0.1);
}

TEST(CommandLine, BinaryLinksNoLibTorch) {
  const auto result = run_blockscope({"--help"}, {{"LD_TRACE_LOADED_OBJECTS", "1"}});
  EXPECT_THAT(result.out, HasSubstr("libc.so"));
  EXPECT_THAT(result.out, Not(HasSubstr("libtorch")));
  EXPECT_THAT(result.out, Not(HasSubstr("libc10")));
}

TEST(CommandLine, HelpListsEveryCommandOfAModuleWithItsDescription) {
  const auto result = run_blockscope({"--help"});
  for (const auto& command : kModuleCommands) {
    EXPECT_THAT(result.out, HasSubstr(std::string(command.name)));
    EXPECT_THAT(result.out, HasSubstr(std::string(command.description)));
  }
}

TEST(CommandLine, VersionIsThePinnedOne) {
  const auto result = run_blockscope({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("blockscope " + pinned_version() + " ("));
}

TEST(CommandLine, AnUnknownWordIsAUsageErrorThatNamesIt) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, ""},
      {{"captrue", "x"}, "'captrue'"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"doctor", "--frobnicate"}, "--frobnicate"}};
  for (const auto& [arguments, named] : cases) {
    const auto result = run_blockscope(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
  }
}

TEST(Module, HelpNeedsNoModule) {
  for (const auto& command : kModuleCommands) {
    const std::string variable(command.module->variable);
    const auto result = run_blockscope({std::string(command.name), "--help"},
                                       {{variable, "/nonexistent/module.so"}});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr(std::string(command.description)));
    EXPECT_THAT(result.out, HasSubstr("scripts/setup.sh"));
  }
}

TEST(Module, MissingModuleFailsWithOneLineThatSaysHowToGetIt) {
  for (const auto& command : kModuleCommands) {
    const std::string variable(command.module->variable);
    const auto result =
        run_blockscope({std::string(command.name), "x"}, {{variable, "/nonexistent/module.so"}});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
    EXPECT_THAT(result.err, HasSubstr("/nonexistent/module.so"));
    EXPECT_THAT(result.err, HasSubstr("scripts/setup.sh"));
  }
}

TEST(Module, FileThatIsNoLibraryFailsWithTheLoadersReason) {
  const auto file = std::string(BLOCKSCOPE_SOURCE_DIR) + "/cmake/versions.env";
  const auto result = run_blockscope({"eval"}, {{"BLOCKSCOPE_PROBE", file}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("invalid ELF header"));
}

TEST(Module, GetsTheArgumentsUntouchedAndItsExitCodeIsOurs) {
  const auto result = run_blockscope({"train", "--help", "--steps", "a b", "--", "-x"},
                                     {{"BLOCKSCOPE_PROBE", ARGUMENT_PRINTER_MODULE}});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.out, HasSubstr("\ntrain\n--help\n--steps\na b\n--\n-x\n"));
  EXPECT_EQ(result.err, "");
}

TEST(Doctor, JsonHasAVerdictPerFindingAndTheExitCodeFollowsThem) {
  for (const char* module : {"/nonexistent/module.so", ARGUMENT_PRINTER_MODULE}) {
    const auto result = run_blockscope({"doctor", "--json"}, {{"BLOCKSCOPE_PROBE", module}});
    const auto report = nlohmann::json::parse(result.out);
    bool failed = false;
    for (const auto& finding : report.at("findings")) {
      const auto verdict = finding.at("verdict").get<std::string>();
      EXPECT_THAT(verdict, ::testing::AnyOf("ok", "note", "warn", "fail"));
      EXPECT_NE(finding.at("value").get<std::string>(), "") << finding.dump();
      failed = failed || verdict == "fail";
    }
    EXPECT_EQ(failed, std::string(module) != ARGUMENT_PRINTER_MODULE);
    EXPECT_EQ(result.exit_code, failed ? 1 : 0);
  }
}

TEST(Doctor, ShowsTheHonouredVariablesAndWhereTheHubCacheCameFrom) {
  const auto result = run_blockscope({"doctor"}, {{"BLOCKSCOPE_PROBE", ARGUMENT_PRINTER_MODULE},
                                                  {"HF_HUB_CACHE", "/nonexistent/hub"},
                                                  {"HDF5_USE_FILE_LOCKING", "FALSE"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("/nonexistent/hub (HF_HUB_CACHE)"));
  EXPECT_THAT(result.out, HasSubstr("HDF5_USE_FILE_LOCKING"));
  EXPECT_THAT(result.out, Not(HasSubstr("\033["))) << "colour codes in a file";
}

TEST(Doctor, ShowsTheHubCacheThatTheRuntimeWouldUse) {
  const auto cache_line = [](std::map<std::string, std::string> variables) {
    variables["BLOCKSCOPE_PROBE"] = ARGUMENT_PRINTER_MODULE;
    variables["HOME"] = "/home/of/nobody";
    return run_blockscope({"doctor"}, variables).out;
  };
  EXPECT_THAT(cache_line({{"HUGGINGFACE_HUB_CACHE", "~/old"}, {"HF_HOME", "/elsewhere"}}),
              HasSubstr("/home/of/nobody/old (HUGGINGFACE_HUB_CACHE)"));
  EXPECT_THAT(cache_line({{"HUGGINGFACE_HUB_CACHE", "~/old"}, {"HF_HUB_CACHE", "/new"}}),
              HasSubstr("/new (HF_HUB_CACHE)"));
  EXPECT_THAT(cache_line({{"HF_HOME", "~/hf"}}), HasSubstr("/home/of/nobody/hf/hub (HF_HOME)"));
}

TEST(Doctor, ShowsTheVersionOfTheHdf5LibraryItRunsWith) {
  const auto result = run_blockscope({"doctor"}, {{"BLOCKSCOPE_PROBE", ARGUMENT_PRINTER_MODULE}});
  EXPECT_THAT(result.out, ::testing::ContainsRegex(
                              "HDF5 +[0-9]+.[0-9]+.[0-9]+ .built with the headers of [0-9]"));
}

}  // namespace
}  // namespace blockscope::test
