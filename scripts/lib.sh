# Functions shared by setup.sh, demo.sh and test.sh; sourced, never run. Each step says what it
# does and how long it took, checks first whether there is anything to do, and ends the script
# with one clear line if it can't.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${BLOCKSCOPE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/blockscope}
# shellcheck source=cmake/versions.env
. "$ROOT/cmake/versions.env"
# shellcheck source=scripts/lib_cuda.sh
. "$ROOT/scripts/lib_cuda.sh"

STEP=0
STEPS=0 # set by plan_steps
PACKAGES=yes
WORK=   # scratch folder inside the cache, removed at exit

die() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

# Cleans up and lets one Ctrl-C end the whole script.
on_exit() {
  [ -z "$WORK" ] || rm -rf "$WORK"
}
trap on_exit EXIT
trap 'exit 130' INT TERM

step() {
  STEP=$((STEP + 1))
  STEP_BEGIN=$SECONDS
  printf '[%d/%d] %s\n' "$STEP" "$STEPS" "$1"
}

note() { printf '      %s\n' "$1"; }

done_step() { note "${1:-done} ($((SECONDS - STEP_BEGIN)) s)"; }

# --- what the machine has ------------------------------------------------------------------------

# free_gib PATH: whole GiB free on the file system that PATH is or will be on.
free_gib() {
  local folder=$1
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }'
}

need_disk() { # GIB PATH
  local free
  free=$(free_gib "$2")
  [ "$free" -ge "$1" ] || die "too little disk: $2 needs $1 GiB free, $free GiB are. HINT: free \
some, or set BLOCKSCOPE_CACHE to a folder on a larger disk"
}

check_disk() { # PART...
  local need=2 # a build tree
  case " $* " in
    *" cuda "*) [ -n "${LIBTORCH_ROOT:-}" ] || [ -f "$(cuda_folder)/.complete" ] || need=12 ;;
    *) [ -f "$(libtorch_folder)/.complete" ] || need=8 ;;
  esac
  need_disk $need "$CACHE"
  need_disk 2 "$ROOT"
}

# packages PART...: names of the packages of these parts.
packages() {
  local part
  for part in "$@"; do
    awk -v part="$part" '!/^#/ && $2 == part { print $1 }' "$ROOT/scripts/packages.txt"
  done
}

# missing_packages PART...: those that are not installed.
missing_packages() {
  local name
  for name in $(packages "$@"); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
  done
}

# Without packages: a compiler and Python have to be there; CMake and Ninja come from PyPI where they are missing or
# too old, and the libraries from source archives (cmake/libraries.cmake).
check_programs() {
  local compiler=${CXX:-g++}
  command -v "$compiler" >/dev/null || die "no C++ compiler ($compiler). HINT: apt-get install g++; or conda install \
-c conda-forge gxx; or set CXX"
  printf '#include <compare>\n#include <ranges>\nint main() {}\n' |
    "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
    die "$compiler $("$compiler" -dumpversion): expected one that knows C++20 (g++ 11 or newer). HINT: \
conda install -c conda-forge gxx, or set CXX"
  find_python >/dev/null || exit 1
}

# has_cmake PATH: whether there are Ninja and a CMake that is new enough.
has_cmake() {
  PATH=$1 command -v ninja >/dev/null && PATH=$1 cmake -P "$ROOT/cmake/check_version.cmake" >/dev/null 2>&1
}

# CMake and Ninja in a folder of the cache, in front of PATH.
install_cmake() {
  local tools="$CACHE/cmake-$PYPI_CMAKE_VERSION"
  ! has_cmake "$PATH" || return 0
  if [ ! -f "$tools/.complete" ]; then
    note "CMake $PYPI_CMAKE_VERSION and Ninja from PyPI into $CACHE"
    "$PYTHON" -m pip install --quiet --no-deps --retries 2 --disable-pip-version-check --target "$WORK/cmake" \
      "cmake==$PYPI_CMAKE_VERSION" "ninja==$PYPI_NINJA_VERSION" >"$WORK/pip.log" 2>&1 || pip_failed "install CMake and Ninja"
    publish "$WORK/cmake" "$tools"
  fi
  export PATH="$tools/bin:$PATH" PYTHONPATH="$tools${PYTHONPATH:+:$PYTHONPATH}"
}

# packages_wanted: whether Debian's packages can and should be installed here; nobody is asked for a password.
packages_wanted() {
  [ "$PACKAGES" = yes ] && command -v dpkg-query >/dev/null &&
    { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

install_packages() { # PART...
  local missing=() as_root=() log
  step "Debian packages"
  if ! packages_wanted; then
    check_programs
    done_step "none are installed; as root, or after sudo -v, apt installs what is missing"
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    done_step "all there"
    return
  fi
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  need_disk 2 /usr
  note "installing ${missing[*]}"
  log=$(mktemp)
  # apt-get update succeeds without a network; what then fails is the install.
  if ! { "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    die "apt-get could not install the packages: $(grep -m 1 '^E:' "$log"). HINT: is there a \
network? --no-packages builds without them. All that apt-get said is in $log"
  fi
  rm -f "$log"
  done_step
}

# --- the third-party cache -----------------------------------------------------------------------

libtorch_folder() { echo "$CACHE/libtorch-$TORCH_VERSION"; }
venv_folder() { echo "$CACHE/venv-$(sha256sum "$ROOT/tests/requirements.txt" | cut -c 1-12)"; }
python_tools_folder() {
  echo "$CACHE/python-tools-$(sha256sum "$ROOT/python/requirements.txt" | cut -c 1-12)"
}
imgui_folder() { echo "$CACHE/imgui-bundle-$IMGUI_BUNDLE_VERSION"; }

# Debian's Python first: the pins of tests/requirements.txt were resolved with it.
find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "no python3 (3.10 or newer) with pip. HINT: apt-get install python3 python3-pip"
}

# One process at a time changes the cache; the others wait here. The lock goes with the process.
open_cache() {
  mkdir -p "$CACHE" || die "can't write to the cache $CACHE. HINT: set BLOCKSCOPE_CACHE"
  exec 9>"$CACHE/lock"
  flock -n 9 || { note "waiting for another set-up to finish"; flock 9; }
  PYTHON=$(find_python) || exit 1
  WORK=$(mktemp -d "$CACHE/tmp.XXXXXX")
}

# pip_failed ACTION: ends the script with the reason found in pip's output.
pip_failed() {
  local reason hint="is there a package index that pip knows?"
  # Without a network pip's last word is "no matching distribution"; the truth comes before.
  if grep -qE 'Retrying|Temporary failure|Connection' "$WORK/pip.log"; then
    reason="no connection to the package index"
    hint="check the network, and pip's proxy and index settings"
  else
    reason=$(grep -E '^ERROR|No space' "$WORK/pip.log" | tail -n 1)
  fi
  die "pip could not $1: ${reason:-$(tail -n 1 "$WORK/pip.log")}. HINT: $hint"
}

# pip_download FOLDER ARGUMENT...: fetches into FOLDER; a file that is there is not fetched again.
pip_download() {
  local folder=$1
  shift
  if ! "$PYTHON" -m pip download --quiet --no-deps --retries 2 --disable-pip-version-check \
    --dest "$folder" "$@" >"$WORK/pip.log" 2>&1; then
    pip_failed "download $*"
  fi
}

# publish NEW FOLDER: puts a finished folder in its place in one step.
publish() {
  touch "$1/.complete"
  rm -rf "$2"
  mv "$1" "$2"
}

# unpack WHEEL FOLDER [PATTERN...] [-x PATTERN...]: all files, or those that match; less those after -x.
unpack() {
  "$PYTHON" - "$@" <<'PY' || die "can't unpack $1. HINT: delete it and run again"
import fnmatch, sys, zipfile
wheel, folder, *rest = sys.argv[1:]
cut = rest.index("-x") if "-x" in rest else len(rest)
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if (not rest[:cut] or any(fnmatch.fnmatch(name, p) for p in rest[:cut])) and not any(
                fnmatch.fnmatch(name, p) for p in rest[cut + 1:]):
            archive.extract(name, folder)
PY
}

torch_wheel() { # downloads it if needed and prints its path
  pip_download "$CACHE/wheels" "torch==$TORCH_VERSION"
  ls "$CACHE/wheels/torch-$TORCH_VERSION-"*"$("$PYTHON" -c \
    'import sys; print("cp%d%d" % sys.version_info[:2])')-"*.whl
}

# The CPU libraries and headers of the wheel, and the two small CUDA libraries that
# libtorch_cpu.so links (its RPATH finds them in ../../nvidia/cu13/lib), and libc10_cuda.so, which our
# CUDA kernels link. The wheel's 510 MB of CUDA kernels are left out: nothing is built with them.
fetch_libtorch() {
  local new="$WORK/libtorch" wheel
  note "downloading 545 MB into $CACHE"
  wheel=$(torch_wheel) || exit 1
  pip_download "$WORK/nvidia" "nvidia-cuda-runtime==$NVIDIA_CUDA_RUNTIME_VERSION"
  pip_download "$WORK/nvidia" "nvidia-cuda-cupti==$NVIDIA_CUDA_CUPTI_VERSION"
  note "unpacking"
  unpack "$wheel" "$new" 'torch/include/*' torch/lib/libtorch_cpu.so torch/lib/libc10.so \
    torch/lib/libc10_cuda.so 'torch/lib/libgomp*'
  unpack "$WORK"/nvidia/nvidia_cuda_runtime-*.whl "$new" 'nvidia/cu13/lib/libcudart.so*'
  unpack "$WORK"/nvidia/nvidia_cuda_cupti-*.whl "$new" 'nvidia/cu13/lib/libcupti.so*'
  publish "$new" "$(libtorch_folder)"
}

# A cache from before the CUDA kernels lacks libc10_cuda.so, 0.6 MB of the wheel. The Python of the
# tests has it, if it was made over this LibTorch; else the wheel is fetched again.
complete_libtorch() {
  local lib python_lib wheel
  lib="$(libtorch_folder)/torch/lib"
  [ ! -f "$lib/libc10_cuda.so" ] || return 0
  mkdir -p "$WORK/torch/lib"
  for python_lib in "$(venv_folder)"/lib/python3*/site-packages/torch/lib; do
    if [ "$python_lib/libc10.so" -ef "$lib/libc10.so" ] && [ -f "$python_lib/libc10_cuda.so" ]; then
      cp "$python_lib/libc10_cuda.so" "$WORK/torch/lib/"
    fi
  done
  if [ ! -f "$WORK/torch/lib/libc10_cuda.so" ]; then
    note "downloading 545 MB into $CACHE, for libc10_cuda.so"
    wheel=$(torch_wheel) || exit 1
    unpack "$wheel" "$WORK" torch/lib/libc10_cuda.so
  fi
  mv "$WORK/torch/lib/libc10_cuda.so" "$lib/"
}

install_libtorch() {
  step "LibTorch $TORCH_VERSION"
  if [ -n "${LIBTORCH_ROOT:-}" ]; then
    [ -f "$LIBTORCH_ROOT/lib/libtorch_cpu.so" ] ||
      die "LIBTORCH_ROOT=$LIBTORCH_ROOT: expected lib/libtorch_cpu.so there, found none"
    done_step "yours, in $LIBTORCH_ROOT"
  elif [ -f "$(libtorch_folder)/.complete" ]; then
    complete_libtorch
    done_step "in the cache"
  else
    fetch_libtorch
    done_step
  fi
}

# The Python of the oracle tests: pinned packages, and torch over LibTorch's own libraries.
install_test_python() {
  local new site wheel torch
  step "Python packages of the tests"
  if [ -f "$(venv_folder)/.complete" ]; then
    done_step "in the cache"
    return
  fi
  [ -f "$(libtorch_folder)/.complete" ] || fetch_libtorch
  note "downloading 150 MB into $CACHE"
  # A virtual environment can't be moved: it is made in place and counts once it has its stamp.
  new=$(venv_folder)
  rm -rf "$new"
  "$PYTHON" -m venv "$new" >"$WORK/venv.log" 2>&1 ||
    die "can't make a virtual environment: $(tail -n 1 "$WORK/venv.log"). HINT: apt-get install \
python3-venv"
  "$new/bin/pip" install --quiet --no-deps --retries 2 --disable-pip-version-check \
    --requirement "$ROOT/tests/requirements.txt" >"$WORK/pip.log" 2>&1 ||
    pip_failed "install tests/requirements.txt"
  wheel=$(torch_wheel) || exit 1
  site=$("$new/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  torch="$(libtorch_folder)/torch"
  unpack "$wheel" "$site" -x 'torch/include/*' 'torch/share/*' torch/bin/ptxas \
    'torch/bin/protoc*' torch/lib/libtorch_cpu.so torch/lib/libc10.so 'torch/lib/libgomp*' \
    torch/lib/libc10_cuda.so \
    torch/lib/libtorch_nvshmem.so torch/lib/libtorch_cuda_linalg.so
  chmod +x "$site/torch/bin/torch_shm_manager"
  ln -s "$torch"/lib/*.so* "$site/torch/lib/"
  ln -s "$(libtorch_folder)/nvidia" "$site/nvidia"
  "$new/bin/python" "$ROOT/scripts/stub_cuda_libraries.py" "$site/torch/lib" \
    "$site/nvidia/cu13/lib" || die "can't complete the libraries of torch"
  "$new/bin/python" -c 'import h5py, tokenizers, torch, transformers, xarray' ||
    die "the Python packages of the tests don't load; the reason is above"
  rm -f "$wheel" # nothing needs it any more
  touch "$new/.complete"
  done_step
}

# What builds and tests the Python package (nanobind, pytest, a notebook's kernel, Dask), 65 MB, in a folder of their
# own so that a new version of one does not cost a new environment.
install_python_tools() {
  local new="$WORK/python-tools"
  [ ! -f "$(python_tools_folder)/.complete" ] || return 0
  "$(venv_folder)/bin/python" -m pip install --quiet --no-deps --retries 2 --disable-pip-version-check \
    --target "$new" --requirement "$ROOT/python/requirements.txt" >"$WORK/pip.log" 2>&1 ||
    pip_failed "install python/requirements.txt"
  publish "$new" "$(python_tools_folder)"
}

# For the tests, where there is an nvcc: the program that reads its machine code, 5 MB.
install_nvdisasm() {
  local new="$WORK/nvdisasm" folder="$CACHE/nvdisasm-$NVIDIA_CUDA_NVDISASM_VERSION"
  if [ -f "$folder/.complete" ] || ! command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null; then return; fi
  pip_download "$WORK/nvdisasm-wheel" "nvidia-cuda-nvdisasm==$NVIDIA_CUDA_NVDISASM_VERSION"
  unpack "$WORK"/nvdisasm-wheel/*.whl "$new" 'nvidia/cu13/bin/nvdisasm'
  chmod +x "$new/nvidia/cu13/bin/nvdisasm"
  publish "$new" "$folder"
}

# Dear ImGui, ImPlot, the test engine and portable-file-dialogs, for the viewer.
install_imgui() {
  local new="$WORK/imgui" top="imgui_bundle-$IMGUI_BUNDLE_VERSION" name
  step "Dear ImGui sources (imgui-bundle $IMGUI_BUNDLE_VERSION)"
  if [ -f "$(imgui_folder)/.complete" ]; then
    done_step "in the cache"
    return
  fi
  note "downloading 33 MB into $CACHE"
  pip_download "$WORK/sdist" --no-binary imgui-bundle "imgui-bundle==$IMGUI_BUNDLE_VERSION"
  mkdir -p "$new"
  for name in imgui implot imgui_test_engine portable_file_dialogs; do
    tar -xzf "$WORK/sdist/$top.tar.gz" -C "$new" --strip-components=2 "$top/external/$name" ||
      die "no external/$name in $top.tar.gz"
  done
  publish "$new" "$(imgui_folder)"
  done_step
}

# --- build ---------------------------------------------------------------------------------------

# Compilers with LibTorch's headers take up to 2 GiB each.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# build PRESET [CMAKE_OPTION...]
build() {
  local preset=$1 log
  shift
  step "Build ($preset)"
  # The compiler cache is shared by clones: paths inside the clone are made relative.
  export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros # without it nothing with a precompiled header
  log="$ROOT/build/$preset/configure.log"
  mkdir -p "$ROOT/build/$preset"
  (cd "$ROOT" && cmake --preset "$preset" "$@") >"$log" 2>&1 || {
    grep -A 6 -E 'CMake Error|error:' "$log" >&2
    die "cmake --preset $preset failed; all of its output is in build/$preset/configure.log"
  }
  cmake --build "$ROOT/build/$preset" --parallel "$(build_jobs)" ||
    die "the build failed; the first error is above"
  done_step
}

# set_up PRESET PART...: everything up to a built tree. PRESET may be empty (no build); the parts
# are those of packages.txt.
set_up() {
  local preset=$1 options=()
  shift
  case " $* " in
    *" tests "*)
      options=(-DWITH_TESTS=ON -DWITH_PYTHON=ON "-DPython_EXECUTABLE=$(venv_folder)/bin/python"
        "-Dnanobind_DIR=$(python_tools_folder)/nanobind/cmake")
      ;;
    # The demo's first build leaves the tests out; a tree that has them keeps them.
    *) [ -f "$ROOT/build/$preset/CMakeCache.txt" ] || options=(-DWITH_TESTS=OFF) ;;
  esac
  case " $* " in *" cuda "*) check_disk cuda ;; *) check_disk ;; esac
  install_packages "$@"
  case " $* " in *" driver "*) check_driver ;; esac
  open_cache
  case " $* " in
    *" cuda "*)
      install_cuda_torch
      find_nvcc
      ;;
    *) install_libtorch ;;
  esac
  case " $* " in *" tests "*)
      install_test_python
      install_python_tools
      install_nvdisasm
      ;;
  esac
  case " $* " in *" viewer "*) install_imgui ;; esac
  install_cmake
  flock -u 9
  [ -n "$preset" ] || return 0
  case " $* " in
    *" cuda "*)
      mapfile -t -O ${#options[@]} options < <(cuda_options "$preset")
      build "$preset" "${options[@]}"
      check_cuda_build "$preset"
      ;;
    *) build "$preset" "${options[@]}" ;;
  esac
}

# plan_steps EXTRA PRESET PART...: how many steps set_up takes with these arguments, plus EXTRA.
plan_steps() {
  local extra=$1 preset=$2
  shift 2
  # Packages, and LibTorch, test Python, ImGui, nvcc and driver: one for each part.
  STEPS=$((extra + 1 + $#))
  [ -z "$preset" ] || STEPS=$((STEPS + 1))
}
