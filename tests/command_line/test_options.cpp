// Numbers, empty values and idle options, as every command takes them.
#include "command_line/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;

/// What CLI11 makes of `--value TEXT`.
template <typename Value>
Value parsed(const CLI::Validator& range, const std::string& text) {
  CLI::App app;
  Value value{};
  app.add_option("--value", value)->check(range);
  app.parse(std::vector<std::string>{"--value=" + text});
  return value;
}

TEST(WholeNumber, TakesWhatFitsAndNothingElse) {
  const auto range = whole_number(0, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(parsed<std::uint64_t>(range, "0"), 0U);
  EXPECT_EQ(parsed<std::uint64_t>(range, "18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
  for (const char* text :
       {"-1", "18446744073709551616", "1.5", "1e3", "0x10", "seven", "+1", " 1"}) {
    EXPECT_THROW(parsed<std::uint64_t>(range, text), CLI::ValidationError) << text;
  }
  EXPECT_EQ(parsed<std::int64_t>(whole_number(-3, 3), "-3"), -3);
  EXPECT_THROW(parsed<std::int64_t>(whole_number(-3, 3), "-4"), CLI::ValidationError);
  EXPECT_THROW(parsed<std::int64_t>(whole_number(1), "9223372036854775808"), CLI::ValidationError);
}

TEST(RealNumber, IsFiniteAndInsideItsRange) {
  EXPECT_EQ(parsed<double>(real_number(0.0, 1.0), "1"), 1.0);
  EXPECT_EQ(parsed<double>(real_number(0.0, kAnyReal), "1e-38"), 1e-38);
  for (const char* text : {"nan", "inf", "-0.1", "1.1", "1,5", "0.5x"}) {
    EXPECT_THROW(parsed<double>(real_number(0.0, 1.0), text), CLI::ValidationError) << text;
  }
  EXPECT_THROW(parsed<double>(real_number(0.0, 1.0, false), "0"), CLI::ValidationError);
}

TEST(Options, AMistakeNamesTheRange) {
  try {
    parsed<int>(whole_number(1, 9), "10");
    ADD_FAILURE() << "accepted";
  } catch (const CLI::ValidationError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--value: expected a whole number from 1 to 9, got '10'"));
  }
}

std::string refusal(const std::vector<const char*>& arguments) {
  try {
    refuse_empty_values(static_cast<int>(arguments.size()), arguments.data());
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Options, EmptyValuesAreRefusedWhereverTheyStand) {
  EXPECT_THAT(refusal({"blockscope", "analyze", "run.h5", "--csv", ""}), HasSubstr("--csv:"));
  EXPECT_THAT(refusal({"blockscope", "analyze", "run.h5", "--csv="}), HasSubstr("--csv:"));
  EXPECT_THAT(refusal({"blockscope", "info", ""}), HasSubstr("argument 2"));
  EXPECT_EQ(refusal({"blockscope", "view", "run.h5", "--select=layer=3"}), "");
  EXPECT_EQ(refusal({"blockscope", "capture", "m", "--prompt=2+2="}), "");
}

TEST(Options, AnEmptyPlaceInAListIsRefused) {
  const auto refused = [](std::vector<const char*> arguments) {
    CLI::App app;
    CLI::App* command = app.add_subcommand("analyze");
    std::vector<std::string> metrics;
    std::string prompt;
    command->add_option("-m,--metric", metrics)->delimiter(',');
    command->add_option("--prompt", prompt);
    arguments.insert(arguments.begin(), {"blockscope", "analyze"});
    try {
      parse_arguments(app, static_cast<int>(arguments.size()), arguments.data());
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  for (const char* value : {"a,", ",a", "a,,b", ","}) {
    EXPECT_THAT(refused({"--metric", value}), HasSubstr(std::string("got '") + value + "'"));
    EXPECT_THAT(refused({"-m", value}), HasSubstr("-m: expected values"));
    EXPECT_THAT(refused({(std::string("--metric=") + value).c_str()}), HasSubstr("--metric:"));
  }
  EXPECT_EQ(refused({"--metric", "a,b"}), "");
  EXPECT_EQ(refused({"--prompt", "a,"}), "");
}

TEST(Options, AnOptionThatDoesNothingIsRefused) {
  CLI::App app;
  std::vector<int> taus;
  app.add_option("--taus", taus);
  app.parse(std::vector<std::string>{"--taus=1"});
  EXPECT_NO_THROW(refuse_idle(app, "--taus", true, "--sweep"));
  EXPECT_THROW(refuse_idle(app, "--taus", false, "--sweep"), UsageError);
  CLI::App other;
  other.add_option("--taus", taus);
  other.parse(std::vector<std::string>{});
  EXPECT_NO_THROW(refuse_idle(other, "--taus", false, "--sweep"));
}

}  // namespace
}  // namespace blockscope
