// One of the faults that planted.py plants, by its number in the environment; 0 or nothing: none.
#pragma once

#include <cstdlib>

inline bool planted(int number) {
  static const int fault = [] {
    const char* value = std::getenv("BLOCKSCOPE_FAULT");
    return value == nullptr ? 0 : std::atoi(value);
  }();
  return fault == number;
}
