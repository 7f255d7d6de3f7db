# Dear ImGui (docking) and ImPlot, from the sources that `scripts/setup.sh --viewer` puts into the
# cache, as one target: blockscope_imgui. BLOCKSCOPE_HAS_IMGUI tells whether they and the libraries
# under them are there.
set(IMGUI_ROOT "" CACHE PATH "Folder with imgui/ and implot/")
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

# blockscope_add_imgui(<target> [<definition>...])
function(blockscope_add_imgui target)
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
    "${imgui_source}" "${imgui_source}/backends" "${imgui_source}/misc/cpp" "${implot_source}")
  target_compile_definitions(${target} PUBLIC IMGUI_DISABLE_OBSOLETE_FUNCTIONS ${ARGN})
  target_compile_options(${target} PRIVATE -w -O2)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)  # its files are made to be compiled one by one
  target_link_libraries(${target} PUBLIC glfw OpenGL::GL ${CMAKE_DL_LIBS})
endfunction()

blockscope_add_imgui(blockscope_imgui)

# For tests only, never in what is shipped: Dear ImGui with the hooks of its Test Engine, and the
# engine (which has a licence of its own, free for open source).
set(test_engine_source "${IMGUI_ROOT}/imgui_test_engine/imgui_test_engine/imgui_test_engine")
if(WITH_TESTS AND EXISTS "${test_engine_source}/imgui_te_engine.cpp")
  blockscope_add_imgui(blockscope_imgui_tested IMGUI_USER_CONFIG="tests/viewer/imgui_config.h")
  target_sources(blockscope_imgui_tested PRIVATE
    ${test_engine_source}/imgui_capture_tool.cpp
    ${test_engine_source}/imgui_te_context.cpp
    ${test_engine_source}/imgui_te_coroutine.cpp
    ${test_engine_source}/imgui_te_engine.cpp
    ${test_engine_source}/imgui_te_exporters.cpp
    ${test_engine_source}/imgui_te_perftool.cpp
    ${test_engine_source}/imgui_te_ui.cpp
    ${test_engine_source}/imgui_te_utils.cpp)
  target_include_directories(blockscope_imgui_tested SYSTEM PUBLIC
    "${test_engine_source}" "${test_engine_source}/..")
  target_link_libraries(blockscope_imgui_tested PUBLIC Threads::Threads)
endif()
