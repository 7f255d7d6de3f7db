# Dear ImGui (docking), ImPlot and, for the tests, the ImGui Test Engine, from the sources that
# `scripts/setup.sh --viewer` puts into the cache. BLOCKSCOPE_HAS_IMGUI tells whether they and GLFW
# are there. Targets:
#   blockscope_imgui        what the shipped viewer links
#   blockscope_imgui_tests  the same with the test engine's hooks; its licence is its own, so that
#                           only tests link it
set(IMGUI_ROOT "" CACHE PATH "Folder with imgui/, implot/ and imgui_test_engine/")
if(NOT IMGUI_ROOT)
  set(IMGUI_ROOT "${BLOCKSCOPE_CACHE}/imgui-bundle-${IMGUI_BUNDLE_VERSION}")
endif()
set(BLOCKSCOPE_HAS_IMGUI FALSE)
if(EXISTS "${IMGUI_ROOT}/imgui/imgui/imgui.h")
  find_package(glfw3 3.3 QUIET)
  find_package(OpenGL QUIET COMPONENTS OpenGL)
  find_package(PNG QUIET)
  pkg_check_modules(fontconfig QUIET IMPORTED_TARGET GLOBAL fontconfig)
  if(glfw3_FOUND AND OpenGL_FOUND AND PNG_FOUND AND fontconfig_FOUND)
    set(BLOCKSCOPE_HAS_IMGUI TRUE)
  endif()
endif()
if(NOT BLOCKSCOPE_HAS_IMGUI)
  message(STATUS "Viewer: off; no Dear ImGui sources or no GLFW (scripts/setup.sh --viewer)")
  return()
endif()

set(imgui_source "${IMGUI_ROOT}/imgui/imgui")
set(implot_source "${IMGUI_ROOT}/implot/implot")
set(test_engine_source "${IMGUI_ROOT}/imgui_test_engine/imgui_test_engine/imgui_test_engine")

function(blockscope_imgui_library target)
  add_library(${target} STATIC EXCLUDE_FROM_ALL
    ${imgui_source}/imgui.cpp
    ${imgui_source}/imgui_draw.cpp
    ${imgui_source}/imgui_stacklayout.cpp
    ${imgui_source}/imgui_tables.cpp
    ${imgui_source}/imgui_widgets.cpp
    ${imgui_source}/backends/imgui_impl_glfw.cpp
    ${imgui_source}/backends/imgui_impl_opengl3.cpp
    ${imgui_source}/misc/cpp/imgui_stdlib.cpp
    ${implot_source}/implot.cpp
    ${implot_source}/implot_items.cpp)
  target_include_directories(${target} SYSTEM PUBLIC
    "${imgui_source}" "${imgui_source}/backends" "${imgui_source}/misc/cpp" "${implot_source}"
    "${IMGUI_ROOT}/portable_file_dialogs/portable_file_dialogs")
  target_compile_definitions(${target} PUBLIC IMGUI_DISABLE_OBSOLETE_FUNCTIONS)
  target_compile_options(${target} PRIVATE -w -O2)
  target_link_libraries(${target} PUBLIC glfw OpenGL::GL ${CMAKE_DL_LIBS})
endfunction()

blockscope_imgui_library(blockscope_imgui)
if(WITH_TESTS)
  blockscope_imgui_library(blockscope_imgui_tests)
  target_sources(blockscope_imgui_tests PRIVATE
    ${test_engine_source}/imgui_capture_tool.cpp
    ${test_engine_source}/imgui_te_context.cpp
    ${test_engine_source}/imgui_te_coroutine.cpp
    ${test_engine_source}/imgui_te_engine.cpp
    ${test_engine_source}/imgui_te_exporters.cpp
    ${test_engine_source}/imgui_te_perftool.cpp
    ${test_engine_source}/imgui_te_ui.cpp
    ${test_engine_source}/imgui_te_utils.cpp)
  target_include_directories(blockscope_imgui_tests SYSTEM PUBLIC
    "${test_engine_source}" "${test_engine_source}/..")
  target_compile_definitions(blockscope_imgui_tests PUBLIC
    IMGUI_ENABLE_TEST_ENGINE IMGUI_TEST_ENGINE_ENABLE_COROUTINE_STDTHREAD_IMPL=1)
endif()
