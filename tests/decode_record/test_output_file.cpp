// Output files: whole under their name, or missing.
#include "decode_record/files/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "decode_record/base/error.h"
#include "decode_record/files/array_file.h"
#include "decode_record/files/command_files.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using fixture::TempDir;
using ::testing::HasSubstr;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// No file of this process may grow beyond `bytes`, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(OutputFile, AppearsUnderItsNameOnlyWhenItIsCommitted) {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  {
    OutputFile output(path, false);
    output.write("whole\n");
    EXPECT_FALSE(fs::exists(path));
    output.commit();
  }
  EXPECT_EQ(contents(path), "whole\n");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(OutputFile, LeavesNothingBehindWithoutCommit) {
  const TempDir folder;
  {
    OutputFile output(folder.file("a.csv"), false);
    output.write("half");
    OutputFile moved = std::move(output);
  }
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(OutputFile, KeepsWhatIsThereUnlessToldToReplaceIt) {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  std::ofstream(path) << "mine";
  EXPECT_THROW(OutputFile(path, false), UsageError);
  { const OutputFile forced(path, true); }
  EXPECT_EQ(contents(path), "mine") << "replaced only by commit()";
  OutputFile output(path, true);
  output.write("new");
  output.commit();
  EXPECT_EQ(contents(path), "new");
}

TEST(OutputFile, ANameTakenMeanwhileIsKept) {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  OutputFile output(path, false);
  output.write("new");
  std::ofstream(path) << "mine";
  EXPECT_THROW(output.commit(), Error);
  EXPECT_EQ(contents(path), "mine");
}

/// The name of the only file in `folder`.
std::string only_file(const std::string& folder) {
  return fs::directory_iterator(folder)->path().string();
}

TEST(OutputFile, IsNotFinishedWhenSomebodyTouchedItsTemporaryFile) {
  const auto expect = [](const std::function<void(const std::string&)>& touch, const char* says) {
    const TempDir folder;
    const std::string path = folder.file("a.csv");
    OutputFile output(path, false);
    output.write("whole\n");
    touch(only_file(folder.path()));
    try {
      output.commit();
      ADD_FAILURE() << "accepted: " << says;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
    EXPECT_FALSE(fs::exists(path)) << says;
  };
  expect([](const std::string& name) { fs::remove(name); }, "was removed while it was written");
  expect([](const std::string& name) { fs::resize_file(name, 3); },
         "expected at least 6 bytes, got 3");
  expect([](const std::string& name) { fs::rename(name, name + "-moved"); }, "-moved while");
  expect(
      [](const std::string& name) {
        fs::remove(name);
        std::ofstream(name) << "somebody's, and longer";
      },
      "was replaced by another file");
}

TEST(OutputFile, WritesIntoItsOwnFileWhateverStandsUnderTheName) {
  const TempDir folder;
  const std::string victim = folder.file("victim");
  std::ofstream(victim) << "mine";
  const TempDir outputs;
  OutputFile output(outputs.file("a.csv"), false);
  const std::string name = only_file(outputs.path());
  fs::remove(name);
  fs::create_symlink(victim, name);
  output.write("whole\n");
  EXPECT_THROW(output.commit(), Error);
  EXPECT_EQ(contents(victim), "mine");
}

TEST(OutputFile, RemovesWhatAKilledProcessLeftAndNothingElse) {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  std::ofstream(path + ".tmp-1") << "left by a killed process";
  std::ofstream(path + ".tmp-notes") << "mine";
  std::ofstream(folder.file("b.csv.tmp-1")) << "of another output";
  OutputFile output(path, false);
  const OutputFile beside(folder.file("a.csv.tmp-7"), false);
  { const OutputFile again(path, true); }
  output.write("whole");
  output.commit();
  EXPECT_FALSE(fs::exists(path + ".tmp-1"));
  EXPECT_EQ(contents(path + ".tmp-notes"), "mine");
  EXPECT_TRUE(fs::exists(folder.file("b.csv.tmp-1")));
}

TEST(CommandFiles, AnInputIsNoOutputUnderAnyName) {
  const TempDir folder;
  const std::string path = folder.file("in.h5");
  std::ofstream(path) << "mine";
  fs::create_symlink(path, folder.file("soft"));
  fs::create_hard_link(path, folder.file("hard"));
  CommandFiles files;
  files.reads_trace(folder.file("in.h5"));
  files.reads("");
  for (const char* name : {"in.h5", "soft", "hard", "in.h5.partial"}) {
    EXPECT_THROW(files.reserve(folder.file(name), true), UsageError) << name;
  }
  EXPECT_NO_THROW(files.reserve(folder.file("out.h5"), false));
  EXPECT_THROW(files.reserve(folder.path() + "/./out.h5", true), UsageError) << "twice";
}

TEST(OutputFile, RefusesFoldersDevicesAndPlacesThatAreNotThere) {
  const TempDir folder;
  EXPECT_THROW(OutputFile(folder.path(), true), Error);
  EXPECT_THROW(OutputFile("/dev/null", true), Error);
  try {
    OutputFile(folder.file("absent/a.csv"), false);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError&) {
    ADD_FAILURE() << "not the user's words but the disk is at fault";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
  }
}

TEST(OutputFile, AFullDiskIsAnErrorAndLeavesNothing) {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  {
    const FullDisk disk(1000);
    OutputFile output(path, false);
    EXPECT_THROW(output.write(std::string(2000, 'x')), Error);
  }
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(ArrayFile, AFullDiskIsAnErrorWhateverWasWrittenLast) {
  const TempDir folder;
  const std::vector<double> values(1000, 1.0);
  int failures = 0;
  for (const rlim_t limit : {100u, 1000u, 4000u, 9000u, 12000u, 16000u}) {
    const FullDisk disk(limit);
    OutputFile output(folder.file("a.h5"), false);
    try {
      ArrayFile file(output);
      file.add_group("/metric", {{"title", std::string("Title")}});
      file.add_axis("/metric/x", std::span<const double>(values));
      file.add_array("/metric/y", {"/metric/x"}, std::span<const double>(values), {});
      file.close();
    } catch (const TraceError&) {
      ++failures;
    }
  }
  EXPECT_EQ(failures, 6);
  EXPECT_EQ(files_in(folder.path()), 0u);
}

}  // namespace
}  // namespace blockscope
