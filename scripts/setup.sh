#!/usr/bin/env bash
# Prepares a machine and builds Blockscope: Debian's packages where it may, LibTorch in the cache, one preset.
# Safe to run again; a second run takes seconds.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/setup.sh [--tests] [--viewer] [--cuda [--no-driver]] [--no-packages] [--no-build]
                        [--preset NAME]
  --tests        also what the tests need: packages, Python environment
  --viewer       also what the viewer needs: packages, Dear ImGui sources
  --cuda         for a GPU: checks its driver, finds or fetches LibTorch with CUDA and nvcc, and
                 builds the preset cuda; needs root for the driver and Debian's packages only
  --no-driver    with --cuda: prepare and build on a machine without a GPU
  --no-packages  install no Debian packages: what is missing is built from source archives
  --no-build     only prepare the machine and the cache
  --preset NAME  release (default), debug, asan or cuda
Environment: BLOCKSCOPE_CACHE (default ~/.cache/blockscope), LIBTORCH_ROOT (your own LibTorch).
TEXT
}

parts=(build)
preset=release
driver=yes
while [ $# -gt 0 ]; do
  case $1 in
    --tests) parts+=(tests) ;;
    --viewer) parts+=(viewer) ;;
    --cuda)
      parts+=(cuda)
      preset=cuda
      ;;
    --no-driver) driver=no ;;
    --no-packages) PACKAGES=no ;;
    --no-build) preset= ;;
    --preset)
      preset=${2:?--preset needs a name}
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

case " ${parts[*]} $driver" in
  *" cuda "*yes) parts+=(driver) ;;
  *" cuda "*) ;;
  *no) die "--no-driver does nothing without --cuda. HINT: leave it out" ;;
esac
plan_steps 0 "$preset" "${parts[@]}"
set_up "$preset" "${parts[@]}"
