#!/usr/bin/env bash
# Makes a wheel of the Python package into build/wheels and tests it in an empty virtual environment: with
# nothing but what the wheel asks for, and nothing of this folder on its path.
#   scripts/wheel.sh [PYTHON...]    # default: python3; each makes and tests a wheel of its version
# The wheel is for other machines, so it has no runtime, which belongs to one torch. It holds the operators where
# LibTorch is (LIBTORCH_ROOT, or what scripts/setup.sh fetched); they are run in the
# torch that scripts/setup.sh --tests keeps, where it is one of that Python.
# Needs a package index that pip knows, and what scripts/setup.sh installs to build.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# quiet LOG COMMAND...: shows the end of what the command printed only where it fails.
quiet() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    die "failed: $*"
  }
}

make_wheel() { # PYTHON FOLDER
  # The compiler cache is shared by clones, as in the builds of lib.sh.
  export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
  export CC=${CC:-cc} CXX=${CXX:-c++} # Python's own choice has another name, which the cache takes for another compiler
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(build_jobs)}
  [ -n "${LIBTORCH_ROOT:-}" ] || [ ! -d "$(libtorch_folder)/torch" ] || export LIBTORCH_ROOT="$(libtorch_folder)/torch"
  quiet "$2/wheel.log" "$1" -m pip wheel --config-settings=cmake.define.WITH_RUNTIME=OFF --no-deps \
    --disable-pip-version-check --wheel-dir "$2" "$ROOT"
}

test_wheel() { # PYTHON FOLDER
  local wheel=("$2"/blockscope-*.whl)
  quiet "$2/venv.log" "$1" -m venv "$2/empty"
  quiet "$2/install.log" "$2/empty/bin/python" -m pip install --disable-pip-version-check "${wheel[0]}"
  (cd "$2" && env -u PYTHONPATH PATH="$2/empty/bin:/usr/bin:/bin" \
    "$2/empty/bin/python" -I "$ROOT/tests/python/check_wheel.py" "$ROOT")
}

# torch_of PYTHON WHEEL: the folder with the torch of the tests, if PYTHON has its version and the wheel its operators.
torch_of() {
  local site
  "$1" -m zipfile -l "$2" | grep -q libblockscope_kernels.so || return 0
  site="$(venv_folder)/lib/python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages"
  [ ! -d "$site/torch" ] || echo "$site"
}

test_operators() { # PYTHON FOLDER
  local wheel=("$2"/blockscope-*.whl) site
  site=$(torch_of "$1" "${wheel[0]}")
  if [ -z "$site" ]; then
    note "operators: not run; they need LibTorch, and scripts/setup.sh --tests with this Python"
    return
  fi
  (cd "$2" && env -u PYTHONPATH PATH="/usr/bin:/bin" \
    "$2/empty/bin/python" -I "$ROOT/tests/python/check_wheel.py" "$ROOT" "$site")
}

pythons=("$@")
[ $# -gt 0 ] || pythons=("$(find_python)")
STEPS=$((2 * ${#pythons[@]}))
WORK=$(mktemp -d)
mkdir -p "$ROOT/build/wheels"
for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
    die "$python: expected a Python, got none"
  mkdir "$WORK/$version"
  step "Wheel (Python $version)"
  make_wheel "$python" "$WORK/$version"
  done_step "$(du -h "$WORK/$version"/*.whl | cut -f 1) $(basename "$WORK/$version"/*.whl)"
  step "Test in an empty environment (Python $version)"
  test_wheel "$python" "$WORK/$version"
  test_operators "$python" "$WORK/$version"
  cp "$WORK/$version"/*.whl "$ROOT/build/wheels/"
  done_step
done
