// One of the faults that planted.py plants, by its number in the environment; 0 or nothing: none.
#pragma once

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

/// The arguments of the test that this process belongs to: of its ancestor that ctest started.
inline std::string test_of_this_process() {
  const auto contents = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  for (std::string id = "self"; id != "0";) {
    // "pid (name) state parent ...": the name may hold spaces.
    std::istringstream rest(
        [&](const std::string& all) { return all.substr(all.rfind(')') + 1); }(
            contents("/proc/" + id + "/stat")));
    std::string state, parent;
    if (!(rest >> state >> parent)) break;
    if (contents("/proc/" + parent + "/comm") == "ctest\n") {
      return contents("/proc/" + id + "/cmdline");
    }
    id = parent;
  }
  return {};
}

/// Notes in BLOCKSCOPE_REACHED/NUMBER, once a process, that its test comes past a fault.
inline void note_reached(int number) {
  static const char* const folder = std::getenv("BLOCKSCOPE_REACHED");
  static std::array<std::atomic<bool>, 1000> noted{};
  if (folder == nullptr || noted.at(static_cast<std::size_t>(number)).exchange(true)) return;
  static const std::string test = test_of_this_process();
  std::ofstream(std::string(folder) + "/" + std::to_string(number), std::ios::app) << test + "\n";
}

inline bool planted(int number) {
  static const int fault = [] {
    const char* value = std::getenv("BLOCKSCOPE_FAULT");
    return value == nullptr ? 0 : std::atoi(value);
  }();
  note_reached(number);
  return fault == number;
}
