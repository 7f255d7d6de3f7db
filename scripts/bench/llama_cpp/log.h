#pragma once

#include <cstdio>

#define LOG_INF(...) std::printf(__VA_ARGS__)
#define LOG_ERR(...) std::fprintf(stderr, __VA_ARGS__)
