# Third-party targets. Debian packages (scripts/packages.txt) come first; LibTorch comes from
# LIBTORCH_ROOT or the cache that scripts/setup.sh fills. Folders link these names:
#   hdf5::hdf5  CLI11::CLI11  nlohmann_json::nlohmann_json  spdlog::spdlog  fmt::fmt
#   Eigen3::Eigen  Onig::onig  utf8proc::utf8proc  LibTorch::torch_cpu
#   GTest::gtest_main  GTest::gmock  benchmark::benchmark (tests)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(CLI11 ${CLI11_VERSION} REQUIRED)
find_package(nlohmann_json ${NLOHMANN_JSON_VERSION} REQUIRED)
find_package(fmt ${FMT_VERSION} REQUIRED)
find_package(spdlog ${SPDLOG_VERSION} REQUIRED)
find_package(Eigen3 ${EIGEN_VERSION} REQUIRED)
find_package(HDF5 ${HDF5_VERSION} REQUIRED COMPONENTS C HL)

# The two libraries that ship only pkg-config files.
function(blockscope_pkg_target target module version)
  string(MAKE_C_IDENTIFIER "${module}" prefix)
  pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET GLOBAL "${module}>=${version}")
  add_library(${target} ALIAS PkgConfig::${prefix})
endfunction()
blockscope_pkg_target(Onig::onig oniguruma ${ONIGURUMA_VERSION})
blockscope_pkg_target(utf8proc::utf8proc libutf8proc ${UTF8PROC_VERSION})

if(NOT WITH_TORCH STREQUAL "OFF")
  find_package(LibTorch)
  if(NOT LibTorch_FOUND AND WITH_TORCH STREQUAL "ON")
    message(FATAL_ERROR "WITH_TORCH=ON, and no LibTorch ${TORCH_VERSION} in ${LIBTORCH_ROOT}. "
                        "HINT: run scripts/setup.sh, or set LIBTORCH_ROOT")
  endif()
endif()
set(BLOCKSCOPE_HAS_TORCH ${LibTorch_FOUND})
if(NOT BLOCKSCOPE_HAS_TORCH)
  set(BLOCKSCOPE_HAS_TORCH FALSE)
  message(STATUS "LibTorch: off; capture, check, train, eval and bench are left out "
                 "(scripts/setup.sh fetches it)")
endif()

if(WITH_TESTS OR WITH_FUZZERS)
  find_package(GTest ${GTEST_VERSION} REQUIRED)
  find_package(benchmark REQUIRED)
endif()
