# Third-party targets. C and C++ libraries are the system's where they fit, or built from pinned archives
# (libraries.cmake); LibTorch comes from LIBTORCH_ROOT or the cache that scripts/setup.sh fills. Folders link:
#   hdf5::hdf5_hl  CLI11::CLI11  nlohmann_json::nlohmann_json  spdlog::spdlog  fmt::fmt
#   Eigen3::Eigen  oniguruma::oniguruma  utf8proc::utf8proc  LibTorch::torch_cpu
#   GTest::gtest_main  GTest::gmock  benchmark::benchmark (tests)
find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)

# spdlog is compiled against fmt, so both come from one place.
blockscope_system(spdlog ${SPDLOG_VERSION})
if(spdlog_FOUND)
  find_package(fmt ${FMT_VERSION} REQUIRED)
else()
  blockscope_build(fmt ARCHIVE f/fmtlib/fmtlib_9.1.0+ds1.orig.tar.gz
    SHA256 84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583
    OPTIONS -DFMT_TEST=OFF -DFMT_DOC=OFF)
  blockscope_imported(fmt::fmt fmt libfmt.a)
  blockscope_build(spdlog ARCHIVE s/spdlog/spdlog_1.10.0+ds.orig.tar.xz
    SHA256 620ca6842b5c21014470bd42eb4716024674214fb973b5ffa3aaea33310ad327
    OPTIONS -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF -Dfmt_DIR=${fmt_PREFIX}/lib/cmake/fmt)
  blockscope_imported(spdlog::spdlog spdlog libspdlog.a LINK fmt::fmt Threads::Threads)
  target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
endif()

blockscope_system(CLI11 ${CLI11_VERSION})
if(NOT CLI11_FOUND)
  blockscope_build(CLI11 ARCHIVE c/cli11/cli11_2.1.2+ds.orig.tar.xz
    SHA256 8143d20b688e98ccce8e24562d3b68e5f47c12e896c42c7ca8553dbde5bed55d HEADERS include)
  blockscope_imported(CLI11::CLI11 CLI11)
endif()

blockscope_system(nlohmann_json ${NLOHMANN_JSON_VERSION})
if(NOT nlohmann_json_FOUND)
  blockscope_build(nlohmann_json ARCHIVE n/nlohmann-json3/nlohmann-json3_3.11.2.orig.tar.gz
    SHA256 d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273 HEADERS include)
  blockscope_imported(nlohmann_json::nlohmann_json nlohmann_json)
endif()

blockscope_system(Eigen3 ${EIGEN_VERSION})
if(NOT Eigen3_FOUND)
  blockscope_build(Eigen3 ARCHIVE e/eigen3/eigen3_3.4.0.orig.tar.bz2
    SHA256 b4c198460eba6f28d34894e3a5710998818515104d6e74e5cc331ce31e46e626 HEADERS .)
  blockscope_imported(Eigen3::Eigen Eigen3)
endif()

blockscope_system(HDF5 ${HDF5_VERSION} COMPONENTS C HL)
if(NOT HDF5_FOUND)
  blockscope_zlib()
  blockscope_build(HDF5 ARCHIVE h/hdf5/hdf5_1.10.8+repack1.orig.tar.gz
    SHA256 7b38e58ff83b13fd8959a90b13bf896bc318ba096c940ab0847abf3ad41a0b31
    OPTIONS -DBUILD_TESTING=OFF -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_BUILD_CPP_LIB=OFF
            -DHDF5_ENABLE_Z_LIB_SUPPORT=ON -DHDF5_ENABLE_EMBEDDED_LIBINFO=OFF ${ZLIB_OPTIONS})
  blockscope_imported(hdf5::hdf5 HDF5 libhdf5.a LINK ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS} m)
  blockscope_imported(hdf5::hdf5_hl HDF5 libhdf5_hl.a LINK hdf5::hdf5)
endif()

blockscope_pkg_config(oniguruma oniguruma ${ONIGURUMA_VERSION})
if(NOT oniguruma_FOUND)
  blockscope_build(oniguruma ARCHIVE libo/libonig/libonig_6.9.8.orig.tar.gz
    SHA256 26372720bab6733c869a9eb69377f73971138dc5e3eff4a81f5ba8aea5435fb2 OPTIONS -DBUILD_TEST=OFF)
  blockscope_imported(oniguruma::oniguruma oniguruma libonig.a)
endif()

blockscope_pkg_config(utf8proc libutf8proc ${UTF8PROC_VERSION})
if(NOT utf8proc_FOUND)
  blockscope_build(utf8proc ARCHIVE u/utf8proc/utf8proc_2.8.0.orig.tar.gz
    SHA256 a0a60a79fe6f6d54e7d411facbfcc867a6e198608f2cd992490e46f04b1bcecc)
  blockscope_imported(utf8proc::utf8proc utf8proc libutf8proc.a)
  target_compile_definitions(utf8proc::utf8proc INTERFACE UTF8PROC_STATIC)
endif()

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
