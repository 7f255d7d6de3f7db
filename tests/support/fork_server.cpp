// LD_PRELOADed into the real `blockscope` binary: loads LibTorch once, then forks a child for each
// command that fork_client sends. Loading takes 0.3 s of CPU time, which is most of a command that
// refuses its options, and the tests start thousands. The child runs main() with the client's
// arguments, environment, folder, descriptors, umask and limits, and ends through exit() as always.
// Tests of signals, of memory and of loading itself start the binary without this.
//   LD_PRELOAD=libfork_server.so blockscope SOCKET LIBRARY
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/fork_request.h"

extern char** environ;

namespace {

using namespace blockscope::test;
using Main = int (*)(int, char**, char**);

Main real_main = nullptr;

/// Libraries have read these when they were loaded, so a client with others must start the binary
/// itself.
bool read_at_load(const std::string& variable) {
  for (const char* prefix :
       {"LD_", "OMP_", "GOMP_", "MKL_", "KMP_", "MALLOC_", "ATEN_", "GLIBC_"}) {
    if (variable.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> load_settings(const std::vector<std::string>& environment) {
  std::vector<std::string> found;
  for (const std::string& variable : environment) {
    if (read_at_load(variable)) found.push_back(variable);
  }
  std::sort(found.begin(), found.end());
  return found;
}

char** pointers(std::vector<std::string>& texts) {
  auto** result = new char*[texts.size() + 1]();
  for (std::size_t i = 0; i < texts.size(); ++i) result[i] = texts[i].data();
  return result;
}

[[noreturn]] void run_main(ForkRequest request) {
  signal(SIGCHLD, SIG_DFL);
  for (int fd = 0; fd < 3; ++fd) {
    if (request.descriptors[fd] < 0) {
      close(fd);
    } else {
      dup2(request.descriptors[fd], fd);
    }
  }
  for (const int fd : request.descriptors) {
    if (fd > 2) close(fd);
  }
  umask(request.head.umask);
  for (int i = 0; i < kLimits; ++i)
    setrlimit(static_cast<__rlimit_resource>(i), &request.head.limits[i]);
  if (chdir(request.folder.c_str()) != 0) _exit(127);
  // Never freed: what runs at exit reads the environment.
  auto& own = *new ForkRequest(std::move(request));
  environ = pointers(own.environment);
  std::exit(real_main(static_cast<int>(own.arguments.size()), pointers(own.arguments), environ));
}

/// Passes signals on until the command has ended, and reports how it ended.
void attend(int client, pid_t command) {
  const int ended = static_cast<int>(syscall(SYS_pidfd_open, command, 0));
  pollfd wait[2] = {{ended, POLLIN, 0}, {client, POLLIN, 0}};
  while (true) {
    if (poll(wait, 2, -1) < 0) continue;
    if (wait[0].revents != 0) break;
    unsigned char number = 0;
    const bool alive = read(client, &number, 1) == 1;
    kill(command, alive ? number : SIGKILL);
    if (!alive) wait[1].fd = -1;
  }
  int status = 0;
  waitpid(command, &status, 0);
  [[maybe_unused]] const auto sent = write(client, &status, sizeof(status));
}

void serve(int client, const std::vector<std::string>& own_settings) {
  ForkRequest request = receive_request(client);
  if (load_settings(request.environment) != own_settings) {
    const int refused = kStartYourself;
    [[maybe_unused]] const auto sent = write(client, &refused, sizeof(refused));
    return;
  }
  signal(SIGCHLD, SIG_DFL);
  const pid_t command = fork();
  if (command == 0) {
    close(client);
    run_main(std::move(request));
  }
  attend(client, command);
}

int server_main(int argc, char** argv, char** envp) {
  if (argc != 3) return 2;
  unsetenv("LD_PRELOAD");
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.emplace_back(*variable);
  const std::vector<std::string> settings = load_settings(environment);
  setenv("GOMP_SPINCOUNT", "1000", 0);  // as cli/modules.cpp does before it loads a module
  if (dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::fprintf(stderr, "fork_server: %s\n", dlerror());
    return 1;
  }
  const int listener = listen_at(argv[1]);
  signal(SIGCHLD, SIG_IGN);
  static_cast<void>(envp);
  while (true) {
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    if (fork() == 0) {
      close(listener);
      serve(client, settings);
      _exit(0);
    }
    close(client);
  }
}

}  // namespace

extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*rtld_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  real_main = main;
  return start(server_main, argc, argv, init, fini, rtld_fini, stack_end);
}
