# Dear ImGui (docking) and ImPlot, from the sources that `scripts/setup.sh --viewer` puts into the
# cache, as one target: blockscope_imgui. BLOCKSCOPE_HAS_IMGUI tells whether they and the libraries
# under them are there.
# Into the folder `to`: what scripts/lib.sh (install_imgui) takes of the same source distribution.
function(blockscope_imgui_sources to)
  set(name "imgui_bundle-${IMGUI_BUNDLE_VERSION}")
  set(work "${to}.work")
  file(MAKE_DIRECTORY "${work}")
  if(EXISTS "${BLOCKSCOPE_SOURCES}/${name}.tar.gz")
    file(COPY "${BLOCKSCOPE_SOURCES}/${name}.tar.gz" DESTINATION "${work}")
  else()
    # -I: pip hides the environment's packages, pip among them, from a build.
    execute_process(COMMAND "${Python_EXECUTABLE}" -I -m pip download --quiet --no-deps --disable-pip-version-check
      --no-binary imgui-bundle --dest "${work}" "imgui-bundle==${IMGUI_BUNDLE_VERSION}"
      OUTPUT_QUIET ERROR_VARIABLE problem RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      message(WARNING "The viewer is left out, because pip could not download imgui-bundle: ${problem}")
    endif()
  endif()
  if(EXISTS "${work}/${name}.tar.gz")
    file(ARCHIVE_EXTRACT INPUT "${work}/${name}.tar.gz" DESTINATION "${work}" PATTERNS
      "${name}/external/imgui/*" "${name}/external/implot/*" "${name}/external/portable_file_dialogs/*")
    file(RENAME "${work}/${name}/external" "${to}")
  endif()
  file(REMOVE_RECURSE "${work}")
endfunction()

set(IMGUI_ROOT "" CACHE PATH "Folder with imgui/ and implot/")
if(NOT IMGUI_ROOT)
  set(IMGUI_ROOT "${BLOCKSCOPE_CACHE}/imgui-bundle-${IMGUI_BUNDLE_VERSION}")
endif()
# `pip install .` fetches them itself, with pip.
if(SKBUILD AND NOT EXISTS "${IMGUI_ROOT}/imgui/imgui/imgui.h")
  blockscope_imgui_sources("${IMGUI_ROOT}")
endif()
set(BLOCKSCOPE_HAS_IMGUI FALSE)
if(EXISTS "${IMGUI_ROOT}/imgui/imgui/imgui.h")
  set(BLOCKSCOPE_HAS_IMGUI TRUE)
endif()
if(NOT BLOCKSCOPE_HAS_IMGUI)
  message(STATUS "Viewer: off; no Dear ImGui sources (scripts/setup.sh --viewer)")
  return()
endif()

blockscope_system(glfw3 3.3)
if(NOT glfw3_FOUND)
  blockscope_x11_headers()
  blockscope_build(glfw3 ARCHIVE g/glfw3/glfw3_3.4.orig.tar.gz
    SHA256 c038d34200234d071fae9345bc455e4a8f2f544ab60150765d7704e08f3dac01
    OPTIONS -DGLFW_BUILD_WAYLAND=OFF -DGLFW_BUILD_EXAMPLES=OFF -DGLFW_BUILD_TESTS=OFF -DGLFW_BUILD_DOCS=OFF
            ${X11_OPTIONS})
  blockscope_imported(glfw glfw3 libglfw3.a LINK Threads::Threads ${CMAKE_DL_LIBS} m)
endif()
blockscope_system(PNG 1.6)
if(NOT PNG_FOUND)
  blockscope_zlib()
  blockscope_build(PNG ARCHIVE libp/libpng1.6/libpng1.6_1.6.39.orig.tar.gz
    SHA256 a00e9d2f2f664186e4202db9299397f851aea71b36a35e74910b8820e380d441
    OPTIONS -DPNG_SHARED=OFF -DPNG_TESTS=OFF ${ZLIB_OPTIONS})
  blockscope_imported(PNG::PNG PNG libpng16.a LINK ZLIB::ZLIB m)
endif()
# `view --serve`. Only its plain server is used: a tunnel or a proxy encrypts.
blockscope_pkg_config(libwebsockets libwebsockets 4.0)
blockscope_zlib()
if(NOT libwebsockets_FOUND)
  blockscope_build(libwebsockets ARCHIVE libw/libwebsockets/libwebsockets_4.1.6.orig.tar.gz
    SHA256 402e9a8df553c9cd2aff5d7a9758e9e5285bf3070c82539082864633db3deb83
    OPTIONS -DLWS_WITH_SHARED=OFF -DLWS_WITH_SSL=OFF -DLWS_WITHOUT_CLIENT=ON -DLWS_WITHOUT_TESTAPPS=ON
            -DLWS_WITHOUT_EXTENSIONS=ON -DLWS_WITH_MINIMAL_EXAMPLES=OFF -DLWS_WITH_HTTP2=OFF -DLWS_HAVE_LIBCAP=OFF -DDISABLE_WERROR=ON)
  blockscope_imported(libwebsockets::libwebsockets libwebsockets libwebsockets.a)
endif()
# Fonts of many scripts. Without it the viewer has ImGui's own font.
set(fontconfig_FOUND FALSE)
if(PkgConfig_FOUND AND NOT BLOCKSCOPE_LIBRARIES STREQUAL "BUNDLED")
  pkg_check_modules(fontconfig QUIET IMPORTED_TARGET GLOBAL fontconfig)
endif()
add_library(blockscope_fontconfig INTERFACE)
if(fontconfig_FOUND)
  target_link_libraries(blockscope_fontconfig INTERFACE PkgConfig::fontconfig)
  target_compile_definitions(blockscope_fontconfig INTERFACE BLOCKSCOPE_FONTCONFIG)
endif()

set_property(GLOBAL PROPERTY BLOCKSCOPE_IMGUI_ROOT "${IMGUI_ROOT}")  # for the licences in a wheel

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
  target_compile_definitions(${target} PUBLIC IMGUI_DISABLE_OBSOLETE_FUNCTIONS GLFW_INCLUDE_NONE ${ARGN})
  target_compile_options(${target} PRIVATE -w -O2)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)  # its files are made to be compiled one by one
  target_link_libraries(${target} PUBLIC glfw ${CMAKE_DL_LIBS})
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
