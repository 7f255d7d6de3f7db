#!/usr/bin/env bash
# Prepares a Debian 12 machine and builds Blockscope: packages, LibTorch in the cache, one preset.
# Safe to run again; a second run takes seconds.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: scripts/setup.sh [--tests] [--viewer] [--no-build] [--preset NAME]
  --tests        also what the tests need: packages, Python environment
  --viewer       also what the viewer needs: packages, Dear ImGui sources
  --no-build     only prepare the machine and the cache
  --preset NAME  release (default), debug, asan or cuda
Environment: BLOCKSCOPE_CACHE (default ~/.cache/blockscope), LIBTORCH_ROOT (your own LibTorch).
TEXT
}

parts=(build)
preset=release
while [ $# -gt 0 ]; do
  case $1 in
    --tests) parts+=(tests) ;;
    --viewer) parts+=(viewer) ;;
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

plan_steps 0 "$preset" "${parts[@]}"
set_up "$preset" "${parts[@]}"
