# What scripts/setup.sh --cuda adds to lib.sh: the driver, LibTorch with its CUDA part, nvcc. Sourced,
# never run. Only the driver needs root: the rest comes with pip into the cache where it is missing.
# shellcheck shell=bash

TORCH_CUDA= # what install_cuda_torch found, as 12.8

# A virtual environment for the torch that cuda_torch_version names.
cuda_folder() { echo "$CACHE/torch-cuda-$(cuda_torch_version)"; }
site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The torch that setup.sh fetches: the newest of PyPI whose CUDA the driver can run.
cuda_torch_version() {
  local driver
  driver=$(driver_cuda)
  if [ -n "$driver" ] && [ "$driver" -lt 13000 ]; then
    echo "$TORCH_CUDA12_VERSION"
  else
    echo "$TORCH_VERSION"
  fi
}

# torch_cuda ROOT: the CUDA release of a torch (12.8), from its version.py, or the build-version of a LibTorch archive.
torch_cuda() {
  local found
  found=$(sed -n "s/^cuda[^=]*= *'\\([0-9.]*\\)'.*/\\1/p" "$1/version.py" 2>/dev/null)
  [ -n "$found" ] || found=$(sed -n 's/.*+cu\([0-9]*\)\([0-9]\)$/\1.\2/p' "$1/../build-version" "$1/build-version" 2>/dev/null)
  echo "$found"
}

# The driver's CUDA version and the number of GPUs ("12080 1"), "missing" or "no-gpu". No nvidia-smi: containers may lack it.
driver_verdict() {
  python3 - <<'PYTHON'
import ctypes

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit(print("missing"))
version, count = ctypes.c_int(0), ctypes.c_int(0)
driver.cuDriverGetVersion(ctypes.byref(version))
if version.value >= 12000 and (driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0
                               or count.value == 0):
    print("no-gpu")
else:
    print(version.value, count.value)
PYTHON
}

# The driver's CUDA version, 12080; nothing without a driver or a GPU.
driver_cuda() { driver_verdict | sed -n 's/^\([0-9]*\) .*/\1/p'; }

# 12080 as 12.8
cuda_release() { echo "$(($1 / 1000)).$(($1 % 1000 / 10))"; }

driver_hint() {
  if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
    echo "in a container the driver is the host's: start it with --gpus all (docker) or --nv (apptainer)"
  elif [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; then
    echo "install NVIDIA's driver 525 or newer, 580 for CUDA 13 (as root; on Debian 12 from NVIDIA's repository, \
package nvidia-open or cuda-drivers), and reboot"
  else
    echo "only root can install a driver: ask for NVIDIA's 525 or newer, 580 for CUDA 13"
  fi
}

check_driver() {
  local verdict also="--no-driver prepares and builds without one"
  step "NVIDIA driver"
  verdict=$(driver_verdict)
  case $verdict in
    missing) die "no NVIDIA driver (libcuda.so.1). HINT: $(driver_hint); $also" ;;
    no-gpu) die "the NVIDIA driver finds no GPU. HINT: does nvidia-smi list one, and what does \
CUDA_VISIBLE_DEVICES say? $also" ;;
  esac
  [ "${verdict% *}" -ge 12000 ] || die "the NVIDIA driver is for CUDA $(cuda_release "${verdict% *}"), expected \
12.0 or newer. HINT: $(driver_hint); $also"
  done_step "${verdict#* } GPU(s), CUDA $(cuda_release "${verdict% *}")"
}

# pip_install ENVIRONMENT ARGUMENT...: it needs no pip of its own.
pip_install() {
  local environment=$1
  shift
  "$PYTHON" -m pip --python "$environment/bin/python" install --quiet --retries 2 \
    --disable-pip-version-check "$@" >"$WORK/pip.log" 2>&1 || pip_failed "install $*"
}

# Sets LIBTORCH_ROOT to a LibTorch that has libtorch_cuda.so, and TORCH_CUDA.
install_cuda_torch() {
  local driver folder root version
  version=$(cuda_torch_version)
  if [ -n "${LIBTORCH_ROOT:-}" ]; then
    step "LibTorch with CUDA"
    root=$LIBTORCH_ROOT
    [ -f "$root/lib/libtorch_cuda.so" ] || die "LIBTORCH_ROOT=$root: expected \
lib/libtorch_cuda.so there, found none. HINT: unset it, and torch==$version is fetched with pip"
  else
    step "LibTorch $version with CUDA"
    folder=$(cuda_folder)
    if [ ! -f "$folder/.complete" ]; then
      note "installing torch, numpy, h5py and safetensors with pip, 3 GB, into $folder"
      # A virtual environment can't be moved: it is made in place and counts once it has its stamp.
      rm -rf "$folder"
      "$PYTHON" -m venv --without-pip "$folder" || die "can't make a virtual environment in $folder"
      pip_install "$folder" "torch==$version" numpy h5py safetensors
      touch "$folder/.complete"
    fi
    root="$(site_of "$folder")/torch"
    [ -f "$root/lib/libtorch_cuda.so" ] || die "$root: expected lib/libtorch_cuda.so, found none: pip \
chose a torch without CUDA. HINT: does pip's index have the Linux wheel of PyPI? Delete $folder, or set \
LIBTORCH_ROOT"
  fi
  TORCH_CUDA=$(torch_cuda "$root")
  [ -n "$TORCH_CUDA" ] || die "$root: expected the CUDA release in version.py or build-version, found none. HINT: \
set LIBTORCH_ROOT to the torch folder of a Python environment"
  driver=$(driver_cuda)
  if [ -n "$driver" ] && [ "$((driver / 1000))" -lt "${TORCH_CUDA%%.*}" ]; then
    die "the torch in $root is built for CUDA $TORCH_CUDA, and the NVIDIA driver is for CUDA \
$(cuda_release "$driver"). HINT: pip install torch==$TORCH_CUDA12_VERSION there, unset LIBTORCH_ROOT, or install \
driver 580"
  fi
  export LIBTORCH_ROOT=$root
  done_step "CUDA $TORCH_CUDA, in $root"
}

# nvcc_release NVCC: 12.8
nvcc_release() { "$1" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\),.*/\1/p'; }

# nvcc of the CUDA that torch was built for: 12.x fits 12.x, 13.x fits 13.x (CUDA's minor version compatibility).
# Sets NVCC.
find_nvcc() {
  local candidate found="" major=${TORCH_CUDA%%.*} release
  step "nvcc $major (only to build)"
  [ "$major" != 13 ] || [ ! -x "$(cuda_folder)/bin/python" ] || found="$(site_of "$(cuda_folder)")/nvidia/cu13/bin/nvcc"
  for candidate in "${CUDACXX:-}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/nvcc}" "$(command -v nvcc || true)" \
    "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" "/usr/local/cuda-$TORCH_CUDA/bin/nvcc" "$found"; do
    [ -x "$candidate" ] || continue
    release=$(nvcc_release "$candidate")
    if [ "${release%%.*}" = "$major" ] && [ "$release" != 12.0 ] && [ "$release" != 12.1 ]; then
      NVCC=$candidate
      done_step "$NVCC, release $release"
      return
    fi
    note "not $candidate: release $release"
  done
  [ "$major" = 13 ] || die "no nvcc for CUDA $major, which the torch in $LIBTORCH_ROOT needs. PyPI has none. HINT: \
conda install -c nvidia cuda-nvcc=$TORCH_CUDA cuda-cudart-dev=$TORCH_CUDA; or module load cuda/$TORCH_CUDA; or set CUDACXX"
  install_nvcc
}

# nvcc 13 from PyPI, whose packages lack two names that CMake and linkers look for.
install_nvcc() {
  local folder toolkit
  folder=$(cuda_folder)
  note "none here; installing $NVIDIA_CUDA_NVCC_VERSION with pip, 100 MB, into $folder"
  [ -x "$folder/bin/python" ] || "$PYTHON" -m venv --without-pip "$folder" ||
    die "can't make a virtual environment in $folder"
  pip_install "$folder" --no-deps "nvidia-cuda-nvcc==$NVIDIA_CUDA_NVCC_VERSION" \
    "nvidia-nvvm==$NVIDIA_CUDA_NVCC_VERSION" "nvidia-cuda-crt==$NVIDIA_CUDA_NVCC_VERSION" \
    "nvidia-cuda-cccl==$NVIDIA_CUDA_CCCL_VERSION" \
    "nvidia-cuda-runtime==$NVIDIA_CUDA_RUNTIME_VERSION" \
    "nvidia-cuda-sanitizer-api==$NVIDIA_CUDA_SANITIZER_VERSION"
  toolkit="$(site_of "$folder")/nvidia/cu13"
  [ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
  [ -e "$toolkit/lib/libcudart.so" ] || ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
  chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
  NVCC=$toolkit/bin/nvcc
  [ -n "$(nvcc_release "$NVCC")" ] || die "$NVCC does not run. HINT: install the CUDA toolkit 13 \
(root: cuda-toolkit-13-0 from NVIDIA's repository; without: its runfile with --toolkitpath)"
  done_step "$NVCC"
}

# A tree configured for another LibTorch or nvcc keeps what it found then.
cuda_options() {
  local cache="$ROOT/build/$1/CMakeCache.txt" name
  printf '%s\n' "-DLIBTORCH_ROOT=$LIBTORCH_ROOT" "-DCMAKE_CUDA_COMPILER=$NVCC"
  [ -f "$cache" ] || return 0
  for name in "LIBTORCH_ROOT:PATH=$LIBTORCH_ROOT" "CMAKE_CUDA_COMPILER:FILEPATH=$NVCC"; do
    grep -qxF "$name" "$cache" || { echo --fresh && return; }
  done
}

# What a user will call: the kernels and LibTorch's CUDA part are where it looks for them.
check_cuda_build() {
  local program="$ROOT/build/$1/bin/blockscope" name
  for name in "LibTorch for CUDA" "CUDA kernels"; do
    "$program" doctor | grep -qE "ok +$name" || die "blockscope doctor: '$name' is not there. HINT: $program \
doctor says why; the build's log is above"
  done
  note "$program capture models/needle --prompts models/needle/demo.jsonl --device cuda -o run.h5"
}
