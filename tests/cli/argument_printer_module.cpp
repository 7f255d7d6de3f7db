// A stand-in for libblockscope_probe.so: prints its arguments, one a line, and returns 7.
#include <cstdio>

extern "C" int blockscope_probe_run(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    std::puts(argv[i]);
  }
  std::fflush(stdout);
  return 7;
}
