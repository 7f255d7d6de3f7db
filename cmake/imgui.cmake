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

add_library(blockscope_imgui STATIC EXCLUDE_FROM_ALL
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
target_include_directories(blockscope_imgui SYSTEM PUBLIC
  "${imgui_source}" "${imgui_source}/backends" "${imgui_source}/misc/cpp" "${implot_source}")
target_compile_definitions(blockscope_imgui PUBLIC IMGUI_DISABLE_OBSOLETE_FUNCTIONS)
target_compile_options(blockscope_imgui PRIVATE -w -O2)
target_link_libraries(blockscope_imgui PUBLIC glfw OpenGL::GL ${CMAKE_DL_LIBS})
