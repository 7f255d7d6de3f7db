# What scripts/setup.sh --cuda adds to lib.sh: the driver, LibTorch with its CUDA part, nvcc. Sourced,
# never run. Only the driver needs root: the rest comes with pip into the cache where it is missing.
# shellcheck shell=bash

CUDA_DRIVER=580 # the first with CUDA 13

cuda_folder() { echo "$CACHE/torch-cuda-$TORCH_VERSION"; } # a virtual environment
site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The driver's CUDA version as 13000, "missing", or "old 12.4". No nvidia-smi: containers may lack it.
driver_verdict() {
  python3 - <<'PYTHON'
import ctypes

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit(print("missing"))
version, count = ctypes.c_int(0), ctypes.c_int(0)
driver.cuDriverGetVersion(ctypes.byref(version))
if version.value < 13000:
    print(f"old {version.value // 1000}.{version.value % 1000 // 10}")
elif driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
    print("no-gpu")
else:
    print("there", count.value)
PYTHON
}

driver_hint() {
  if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
    echo "in a container the driver is the host's: start it with --gpus all (docker) or --nv (apptainer)"
  elif [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; then
    echo "install NVIDIA's driver $CUDA_DRIVER or newer (as root; on Debian 12 from NVIDIA's repository, \
package nvidia-open or cuda-drivers), and reboot"
  else
    echo "only root can install a driver: ask for NVIDIA's $CUDA_DRIVER or newer"
  fi
}

check_driver() {
  local verdict also="--no-driver prepares and builds without one"
  step "NVIDIA driver"
  verdict=$(driver_verdict)
  case $verdict in
    there*) done_step "${verdict#there } GPU(s), CUDA 13" ;;
    missing) die "no NVIDIA driver (libcuda.so.1). HINT: $(driver_hint); $also" ;;
    no-gpu) die "the NVIDIA driver finds no GPU. HINT: does nvidia-smi list one, and what does \
CUDA_VISIBLE_DEVICES say? $also" ;;
    *) die "the NVIDIA driver is of CUDA ${verdict#old }, expected 13. HINT: $(driver_hint); $also" ;;
  esac
}

# pip_install ENVIRONMENT ARGUMENT...: it needs no pip of its own.
pip_install() {
  local environment=$1
  shift
  "$PYTHON" -m pip --python "$environment/bin/python" install --quiet --retries 2 \
    --disable-pip-version-check "$@" >"$WORK/pip.log" 2>&1 || pip_failed "install $*"
}

# Sets LIBTORCH_ROOT to a LibTorch that has libtorch_cuda.so.
install_cuda_torch() {
  local folder root
  step "LibTorch $TORCH_VERSION with CUDA"
  if [ -n "${LIBTORCH_ROOT:-}" ]; then
    [ -f "$LIBTORCH_ROOT/lib/libtorch_cuda.so" ] || die "LIBTORCH_ROOT=$LIBTORCH_ROOT: expected \
lib/libtorch_cuda.so there, found none. HINT: unset it, and torch==$TORCH_VERSION is fetched with pip"
    done_step "yours, in $LIBTORCH_ROOT"
    return
  fi
  folder=$(cuda_folder)
  if [ ! -f "$folder/.complete" ]; then
    note "installing torch, numpy, h5py and safetensors with pip, 3 GB, into $folder"
    # A virtual environment can't be moved: it is made in place and counts once it has its stamp.
    rm -rf "$folder"
    "$PYTHON" -m venv --without-pip "$folder" || die "can't make a virtual environment in $folder"
    pip_install "$folder" "torch==$TORCH_VERSION" numpy h5py safetensors
    touch "$folder/.complete"
  fi
  root="$(site_of "$folder")/torch"
  [ -f "$root/lib/libtorch_cuda.so" ] || die "$root: expected lib/libtorch_cuda.so, found none: pip \
chose a torch without CUDA. HINT: does pip's index have the Linux wheel of PyPI? Delete $folder, or set \
LIBTORCH_ROOT"
  export LIBTORCH_ROOT=$root
  done_step "in $root"
}

# nvcc_release NVCC: its first number.
nvcc_release() { "$1" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p'; }

# Sets NVCC. The pip packages lack two names that CMake and linkers look for.
find_nvcc() {
  local candidate found="" folder toolkit
  step "nvcc 13 (only to build)"
  folder=$(cuda_folder)
  [ ! -x "$folder/bin/python" ] || found="$(site_of "$folder")/nvidia/cu13/bin/nvcc"
  for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" \
    "$found"; do
    if [ -x "$candidate" ] && [ "$(nvcc_release "$candidate")" -ge 13 ]; then
      NVCC=$candidate
      done_step "$NVCC"
      return
    fi
    [ ! -x "$candidate" ] || note "not $candidate: release $(nvcc_release "$candidate")"
  done
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
  [ "$(nvcc_release "$NVCC")" -ge 13 ] || die "$NVCC does not run. HINT: install the CUDA toolkit 13 \
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
