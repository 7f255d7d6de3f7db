#!/usr/bin/env bash
# All checks that need a GPU, in one command and one Markdown report: builds, compares every wrapper and
# operator with the CPU, runs compute-sanitizer, decodes on both devices, and times attention compared
# with torch's, FlashInfer's and flex_attention. Exit code 0 if all passed, 1 without a GPU or if
# something failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'END'
Usage: scripts/gpu_check.sh [--quick] [--built] [--limit SECONDS] [--out FOLDER] [--dry-run]
  --quick        fewer cases, short contexts, 0.6B instead of 8B: minutes instead of an hour
  --built        nothing is installed or built: build/cuda is there, and programs in FOLDER are kept
  --limit S      end a step that takes longer than this (default: 3600)
  --out FOLDER   logs and report.md (default build/gpu_check)
  --dry-run      runs nothing: a report in which everything is unmeasured
Environment: as scripts/setup.sh; GPU_PYTHON, a Python with torch, numpy, h5py and safetensors (default:
that of setup.sh --cuda, or that of LIBTORCH_ROOT).
END
}

OUT=$ROOT/build/gpu_check
quick=no
dry=no
built=no
limit=3600
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --dry-run) dry=yes ;;
    --built) built=yes ;;
    --limit)
      limit=${2:?--limit needs seconds}
      shift
      ;;
    --out)
      OUT=$(realpath -m "${2:?--out needs a folder}")
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done
cd "$ROOT"
mkdir -p "$OUT"
rm -f "$OUT"/*.log "$OUT"/*.status "$OUT"/*.command "$OUT"/*.title

number=10

# check NAME TITLE COMMAND...: its output, command line and exit status, for the report. 77: skipped.
check() {
  local name=$number-$1 title=$2
  shift 2
  number=$((number + 1))
  printf '%s\n' "$title" >"$OUT/$name.title"
  printf '%s ' "${@/#"$ROOT"\//}" >"$OUT/$name.command"
  if [ $dry = yes ]; then
    echo "dry run" >"$OUT/$name.log"
    echo 77 >"$OUT/$name.status"
    return
  fi
  run_step "$name" "$title" "$@"
}

# check_meanwhile NAME TITLE COMMAND...: a check that times nothing, and runs while others do, until `wait`.
check_meanwhile() {
  if [ $dry = yes ]; then
    check "$@"
    return
  fi
  check "$@" &
  number=$((number + 1))
}

run_step() { # NAME TITLE COMMAND...
  local name=$1 title=$2 status=0 begin=$SECONDS said
  shift 2
  if [ "$(type -t "$1")" = function ]; then
    "$@" >"$OUT/$name.log" 2>"$OUT/$name.log.err" </dev/null || status=$?
  else
    timeout "$limit" "$@" >"$OUT/$name.log" 2>"$OUT/$name.log.err" </dev/null || status=$?
  fi
  grep -v -E 'Warning|^ +return ' "$OUT/$name.log.err" | tail -n 20 >>"$OUT/$name.log" || true
  rm -f "$OUT/$name.log.err"
  case $status in
    0) said=passed ;;
    77) said="skipped: $(tail -n 1 "$OUT/$name.log")" ;;
    124) said="FAILED: took longer than $limit s; see $OUT/$name.log" ;;
    *) said="FAILED ($status); see $OUT/$name.log" ;;
  esac
  note "$title: $said ($((SECONDS - begin)) s)"
  echo $status >"$OUT/$name.status"
}

compile() { # OUTPUT SOURCE...: without CMake, for this machine's GPU
  [ $built = no ] || [ ! -x "$1" ] || return 0
  "$NVCC" -std=c++20 -O3 -I. -arch=native -o "$@"
}

# sanitize TOOL: three cases of each operator; torch's allocator would hide accesses after a tensor's end.
sanitize() {
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || true)
  [ -n "$sanitizer" ] || sanitizer=$(dirname "$NVCC")/compute-sanitizer
  [ -x "$sanitizer" ] || { echo "no compute-sanitizer" && return 77; }
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "$limit" "$sanitizer" --tool "$1" --error-exitcode 9 --kernel-name \
    kernel_substring=blockscope "$PYTHON" tests/gpu/check_operators.py "$KERNELS" --cases 2 --seed 1
}

if [ $dry = no ]; then
  STEPS=1
  if [ $built = yes ]; then
    NVCC=${CUDACXX:-$(command -v nvcc || echo nvcc)}
  else
    STEPS=20
    set_up cuda build cuda driver
  fi
  PYTHON=${GPU_PYTHON:-$(cuda_folder)/bin/python}
  if [ -z "${GPU_PYTHON:-}" ] && [ ! -x "$PYTHON" ]; then
    PYTHON=$(realpath -m "$LIBTORCH_ROOT/../../../../bin/python")
  fi
  "$PYTHON" -c 'import torch, numpy, h5py, safetensors; assert torch.cuda.is_available()' ||
    die "$PYTHON: expected torch with a usable GPU, numpy, h5py and safetensors. HINT: GPU_PYTHON names another"
else
  PYTHON=python3 NVCC=nvcc
fi
KERNELS=$ROOT/build/cuda/lib/libblockscope_kernels_cuda.so
BLOCKSCOPE=$ROOT/build/cuda/bin/blockscope
emulator=(kernels/device/emulated_device.cpp kernels/device/emulator.cpp kernels/device/fiber.cpp)
cases=60 shape=8b contexts=(2048 16384) lengths=(4096 32768 131072) blocks=(32 4)
dtypes=(float32 bfloat16) block_context=131072 batches=1,4
if [ $quick = yes ]; then
  cases=6 shape=0.6b contexts=(2048) lengths=(8192) blocks=(32) dtypes=(float32) block_context=16384 batches=1
fi

step "Checks"
check doctor "This machine and this build" "$BLOCKSCOPE" doctor
check build-conformance "Build: wrappers" compile "$OUT/test_conformance" tests/gpu/test_conformance.cu \
  tests/gpu/wrapper_probes_emulated.cpp "${emulator[@]}"
check_meanwhile conformance "Every wrapper compared with the emulator's" "$OUT/test_conformance"
check_meanwhile operators "Every operator compared with float64 on the CPU" "$PYTHON" tests/gpu/check_operators.py \
  "$KERNELS" --cases $cases
for tool in memcheck racecheck synccheck; do
  check_meanwhile "$tool" "compute-sanitizer: $tool" sanitize $tool
done
check_meanwhile devices "Captures on the CPU and on the GPU" "$PYTHON" tests/gpu/compare_devices.py "$BLOCKSCOPE" \
  --dtypes "${dtypes[@]}"
commands=(env BLOCKSCOPE_BINARY="$BLOCKSCOPE" PYTHONPATH=tests/support "$PYTHON")
check_meanwhile families "Every family on the CPU and on the GPU" "${commands[@]}" tests/cli/test_device.py gpu \
  Device.test_families Device.test_verify
check_meanwhile commands "The other commands on the CPU and on the GPU" "${commands[@]}" \
  tests/cli/test_device_commands.py gpu
check_meanwhile drafts "Drafts on the CPU and on the GPU" "${commands[@]}" tests/cli/test_device_draft.py gpu
wait
check attention "split_attention compared with attention without the split" "$PYTHON" scripts/bench/gpu_attention.py \
  "$KERNELS" --lengths "${lengths[@]}" --blocks "${blocks[@]}"
check build-shapes "Build: shapes" compile "$OUT/bench_split_shapes" tests/gpu/bench_split_shapes.cu
check shapes "Snapshot and tile shapes" "$OUT/bench_split_shapes"
check sparse "Operators that read less, compared with exact attention" "$PYTHON" scripts/bench/gpu_operators.py "$KERNELS"
check decode "What recording adds to a step" "$PYTHON" scripts/bench/gpu_decode.py "$BLOCKSCOPE" --shape $shape \
  --contexts "${contexts[@]}"
check decode-experts "The same for a mixture of experts" "$PYTHON" scripts/bench/gpu_decode.py "$BLOCKSCOPE" --shape moe \
  --contexts 2048
check blocks "Time per output block" env BLOCKSCOPE_BINARY="$BLOCKSCOPE" "$PYTHON" scripts/bench/block_time.py \
  build/bench/models/gpu-$shape-random --device cuda --contexts $block_context --batches $batches

python3 scripts/bench/gpu_report.py "$OUT" >"$OUT/report.md"
echo "$OUT/report.md"
! grep -qvxE '0|77' "$OUT"/*.status
