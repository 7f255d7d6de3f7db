// fork and exec with stdout and stderr in temporary files: no shell, so no quoting, and no pipe
// that could fill up.
#include "tests/cli/command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace blockscope::test {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File temporary_file() {
  File file(std::tmpfile(), &std::fclose);
  if (!file) {
    throw std::runtime_error("no temporary file");
  }
  return file;
}

std::string contents(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int byte = std::fgetc(file); byte != EOF; byte = std::fgetc(file)) {
    text.push_back(static_cast<char>(byte));
  }
  return text;
}

[[noreturn]] void exec_child(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& environment, int out_fd,
                             int err_fd) {
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  std::string binary = BLOCKSCOPE_BINARY;
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv{binary.data()};
  for (auto& argument : copies) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  dup2(out_fd, STDOUT_FILENO);
  dup2(err_fd, STDERR_FILENO);
  execv(binary.c_str(), argv.data());
  std::perror("execv");
  _exit(127);
}

}  // namespace

CommandResult run_blockscope(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& environment) {
  const File out = temporary_file();
  const File err = temporary_file();
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    exec_child(arguments, environment, fileno(out.get()), fileno(err.get()));
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    throw std::runtime_error("fork or waitpid failed");
  }
  CommandResult result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.out = contents(out.get());
  result.err = contents(err.get());
  return result;
}

bool is_one_error_line(const std::string& text) {
  return text.starts_with("blockscope: error: ") && text.find('\n') == text.size() - 1;
}

}  // namespace blockscope::test
