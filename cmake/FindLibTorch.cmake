# LibTorch for the CPU path, without find_package(Torch), which drags in the CUDA machinery.
# LIBTORCH_ROOT (cache variable or environment) is a folder with lib/ and include/: an unpacked
# LibTorch archive, `site-packages/torch`, or what scripts/setup.sh unpacked from the PyPI wheel. `pip install .`
# takes the torch of its own environment.
# Defines LibTorch::torch_cpu, and LibTorch::c10_cuda where the root has libc10_cuda.so.
set(_torch_default "${BLOCKSCOPE_CACHE}/libtorch-${TORCH_VERSION}/torch")
if(DEFINED ENV{LIBTORCH_ROOT})
  set(_torch_default "$ENV{LIBTORCH_ROOT}")
elseif(SKBUILD)
  # pip hides the environment's packages from a build, and uv builds in an environment of its own.
  execute_process(COMMAND "${Python_EXECUTABLE}" -I -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE _torch_site OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(_torch_default "${_torch_site}/torch")
  foreach(_environment IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}")
    set(_torch_candidate "${_environment}/lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}/site-packages/torch")
    if(_environment AND NOT EXISTS "${_torch_default}" AND EXISTS "${_torch_candidate}")
      set(_torch_default "${_torch_candidate}")
    endif()
  endforeach()
endif()
set(LIBTORCH_ROOT "${_torch_default}" CACHE PATH "Folder with LibTorch's lib/ and include/")

find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/all.h
  PATHS "${LIBTORCH_ROOT}/include" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_C10_CUDA_LIBRARY
  LibTorch_INCLUDE_DIR)

if(LibTorch_INCLUDE_DIR)
  set(_torch_version_h "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  if(NOT EXISTS "${_torch_version_h}")
    set(_torch_version_h "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
  endif()
  file(STRINGS "${_torch_version_h}" _torch_version
    REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _torch_version "${_torch_version}")
  list(JOIN _torch_version "." LibTorch_VERSION)
endif()
# The CUDA that it was built for, as 12.8: version.py of a Python environment's torch has it.
set(LibTorch_CUDA_VERSION "")
if(EXISTS "${LIBTORCH_ROOT}/version.py")
  file(STRINGS "${LIBTORCH_ROOT}/version.py" _torch_cuda REGEX "^cuda[^=]*= *'[0-9.]+'")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" LibTorch_CUDA_VERSION "${_torch_cuda}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  # libtorch_cpu.so needs libcudart and libcupti; the wheel's own RPATH finds them in sibling folders:
  # CUDA 13's in one, CUDA 12's in one each. A root elsewhere finds them through the linker's path.
  get_filename_component(_torch_lib_dir "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  set(_torch_cuda_dirs "${LIBTORCH_ROOT}/../nvidia/cu13/lib"
    "${LIBTORCH_ROOT}/../nvidia/cuda_runtime/lib" "${LIBTORCH_ROOT}/../nvidia/cuda_cupti/lib"
    /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}")
  # -idirafter, not -isystem: the folder also holds copies of fmt and other libraries, whose
  # headers must not shadow the system's (we link the system's libfmt).
  foreach(_dir "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
    target_compile_options(LibTorch::c10 INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${_dir}\">")
  endforeach()
  add_library(LibTorch::torch_cpu SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10")
  foreach(_dir IN LISTS _torch_cuda_dirs)
    if(EXISTS "${_dir}")
      target_link_options(LibTorch::torch_cpu INTERFACE "LINKER:-rpath-link,${_dir}")
    endif()
  endforeach()
  # Wheels since 2.7 use the C++11 ABI; an older or special build would fail at link time.
  target_compile_definitions(LibTorch::torch_cpu INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  # at::parallel_for is an OpenMP loop in a header. The wheel's libgomp has the soname of GCC's
  # (libgomp.so.1), so a process loads one OpenMP runtime, whichever is found first. clang's libomp
  # stands before libtorch and also has libgomp's functions, so it serves both.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(LibTorch::torch_cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
    file(GLOB _torch_gomp "${_torch_lib_dir}/libgomp*.so*")
    if(_torch_gomp)
      list(GET _torch_gomp 0 _torch_gomp)
      target_link_libraries(LibTorch::torch_cpu INTERFACE "${_torch_gomp}")
    else()
      target_link_options(LibTorch::torch_cpu INTERFACE -fopenmp)
    endif()
  else()
    find_package(OpenMP COMPONENTS CXX)
    if(OpenMP_CXX_FOUND)
      target_link_libraries(LibTorch::torch_cpu INTERFACE OpenMP::OpenMP_CXX)
    else()
      message(WARNING "No OpenMP for ${CMAKE_CXX_COMPILER}: Blockscope's operators will run on one "
        "thread. Install clang's OpenMP (Debian: libomp-dev, conda: llvm-openmp), then configure "
        "again.")
    endif()
  endif()
  # Its headers need those of the CUDA toolkit. The kernels need nothing of libtorch_cuda.so.
  if(LibTorch_C10_CUDA_LIBRARY)
    add_library(LibTorch::c10_cuda SHARED IMPORTED GLOBAL)
    set_target_properties(LibTorch::c10_cuda PROPERTIES
      IMPORTED_LOCATION "${LibTorch_C10_CUDA_LIBRARY}"
      INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu")
  endif()
endif()
