// How Dear ImGui is compiled for the tests: with the hooks of its Test Engine, and with its own
// assertions in every build type, so that a misuse of ImGui fails a test.
#pragma once

#define IMGUI_ENABLE_TEST_ENGINE
#define IMGUI_TEST_ENGINE_ENABLE_STD_FUNCTION 1
#define IMGUI_TEST_ENGINE_ENABLE_COROUTINE_STDTHREAD_IMPL 1
#define IMGUI_TEST_ENGINE_ENABLE_CAPTURE 0
#define IM_ASSERT(condition) IM_TEST_ENGINE_ASSERT(condition)

#include "imgui_te_imconfig.h"
