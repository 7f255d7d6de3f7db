// kill -9 at random moments: every row that the writer had reported as committed is there, with the
// right content, for our reader and for h5py; and a resumed run continues after it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

struct Child {
  pid_t pid = -1;
  int output = -1;
};

Child start(const std::vector<std::string>& words) {
  std::array<int, 2> pipe_ends{};
  if (::pipe(pipe_ends.data()) != 0) return {};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::close(pipe_ends[0]);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  return {pid, pipe_ends[0]};
}

/// Everything the child printed until it died.
std::string drain(const Child& child) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::read(child.output, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(child.output);
  return text;
}

/// The last whole line, as a number of committed rows.
std::int64_t last_report(const std::string& text) {
  const std::size_t end = text.rfind('\n');
  if (end == std::string::npos) return 0;
  const std::size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  return std::stoll(text.substr(before == std::string::npos ? 0 : before + 1));
}

void expect_rows(const std::string& path, std::int64_t reported) {
  const TraceReader reader(path);
  ASSERT_GE(reader.info().num_rows, reported);
  const StepColumns steps = reader.steps(0, reader.info().num_rows);
  for (std::size_t i = 0; i < steps.pass.size(); ++i) {
    ASSERT_EQ(steps.pass[i], static_cast<std::int64_t>(i));
    ASSERT_EQ(steps.pass_time_ns[i], static_cast<std::int64_t>(i) * 1000 + 1);
  }
  const std::int64_t step = std::max<std::int64_t>(1, steps.count / 20);
  for (std::int64_t row = steps.count - 1; row >= 0; row -= row < step ? 1 : step) {
    for (const Field field : {Field::attention_external, Field::attention_lse_internal,
                              Field::query, Field::external_mass}) {
      const auto values = reader.read_floats_at(field, row, 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], fixture::expected_value(field, row, 1, static_cast<std::int64_t>(i)))
            << spec_of(field).path << " row " << row;
      }
    }
    const Frame frame = reader.frame_before(row);
    const auto owner = steps.sequence[static_cast<std::size_t>(row)];
    const SequenceInfo sequence = reader.sequence(owner);
    ASSERT_EQ(sequence.prompt, fixture::sequence_start(owner % 50, 50).prompt);
    ASSERT_EQ(frame.gen_length, 200U);
    if (sequence.finish_reason == FinishReason::length) {
      ASSERT_EQ(sequence.text, "text " + std::to_string(owner));
    }
  }
}

void expect_h5py_agrees(const std::string& path, std::int64_t reported) {
  const char* script = BLOCKSCOPE_SOURCE_DIR "/tests/decode_record/check_partial.py";
  const Child child = start({BLOCKSCOPE_PYTHON, script, path, std::to_string(reported)});
  const std::string text = drain(child);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  EXPECT_EQ(status, 0) << text;
}

TEST(TraceKill, LosesNoCommittedRowInAHundredKills) {
  const bool python = ::access(BLOCKSCOPE_PYTHON, X_OK) == 0;
  std::mt19937 random(20260727);
  std::int64_t rows_checked = 0;
  const fixture::TempDir dir;
  std::string path;
  for (int kill = 0; kill < 104; ++kill) {
    SCOPED_TRACE(testing::Message() << "kill " << kill);
    // Chains of four: a fresh trace, then three runs that resume it and are killed in turn.
    if (kill % 4 == 0) {
      if (!path.empty()) std::filesystem::remove(path + ".partial");
      path = dir.file("run" + std::to_string(kill) + ".h5");
    }
    const Child child = start({TRACE_TOOL, "endless", path});
    ASSERT_GT(child.pid, 0);
    std::array<char, 1> first{};
    ASSERT_EQ(::read(child.output, first.data(), 1), 1);  // it has reported for the first time
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
    ::kill(child.pid, SIGKILL);
    const std::string text = first[0] + drain(child);
    ::waitpid(child.pid, nullptr, 0);
    const std::int64_t reported = last_report(text);
    expect_rows(path, reported);
    if (python && kill % 13 == 0) expect_h5py_agrees(path + ".partial", reported);
    if (HasFailure()) return;
    rows_checked += reported;
  }
  EXPECT_GT(rows_checked, 1000);
  RecordProperty("rows_checked", static_cast<int>(rows_checked));
}

TEST(TraceFull, KeepsEverythingCommittedWhenTheDiskIsFull) {
  const fixture::TempDir dir;
  const std::string path = dir.file("full.h5");
  const Child child = start({TRACE_TOOL, "fill", path, "12000000"});
  const std::string text = drain(child);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << text;
  EXPECT_NE(text.find(path), std::string::npos) << "the message names the file: " << text;
  const std::int64_t committed = std::stoll(text);
  EXPECT_GT(committed, 10);
  expect_rows(path, committed);
  ResumeState state;  // and with room again, the run goes on
  TraceWriter writer = TraceWriter::resume(path, fixture::small_meta(RecordLevel::outputs), state);
  EXPECT_GE(state.num_rows, committed);
  writer.suspend();
}

}  // namespace
}  // namespace blockscope
