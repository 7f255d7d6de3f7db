#!/usr/bin/env bash
# Sets up and builds what is missing, runs every test and each fuzzer for a few seconds, and ends
# with one line "N passed, N failed[, N skipped]". Exit code 1 if any failed.
#   BLOCKSCOPE_ASAN=1  also runs the unit tests under address and undefined-behaviour sanitizers
#   BLOCKSCOPE_FUZZ=0  leaves the fuzzers out
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Tests run in parallel; idle OpenMP threads must sleep, not spin on each other's cores.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

passed=0
failed=0
skipped=0

# run_ctest PRESET CTEST_OPTION...: adds its counts to the totals.
run_ctest() {
  local preset=$1 report total fails skips status=0
  shift
  step "Tests ($preset)"
  report="$ROOT/build/$preset/tests.xml"
  rm -f "$report"
  (cd "$ROOT" && ctest --preset "$preset" -j2 --no-tests=error --output-junit "$report" "$@") ||
    status=$?
  [ -s "$report" ] || die "ctest left no report; what it printed is above"
  total=$(report_count tests "$report")
  fails=$(report_count failures "$report")
  skips=$(($(report_count skipped "$report") + $(report_count disabled "$report")))
  # If a test program can't list its cases, ctest fails without an entry in the report.
  [ "$status" -eq 0 ] || [ "$fails" -gt 0 ] || fails=1 total=$((total + 1))
  passed=$((passed + total - fails - skips))
  failed=$((failed + fails))
  skipped=$((skipped + skips))
  done_step
}

# report_count NAME FILE: the attribute NAME of the report's <testsuite>.
report_count() { grep -m 1 -oE "\b$1=\"[0-9]+\"" "$2" | grep -oE '[0-9]+'; }

fuzz=${BLOCKSCOPE_FUZZ:-1}
[ -f "$ROOT/tests/fuzz/CMakeLists.txt" ] || fuzz=0
asan=${BLOCKSCOPE_ASAN:-0}
extra=1
[ "$fuzz" = 0 ] || extra=$((extra + 2))
[ "$asan" = 0 ] || extra=$((extra + 2))

plan_steps "$extra" release build tests viewer
set_up release build tests viewer
run_ctest release
if [ "$asan" != 0 ]; then
  build asan
  run_ctest asan --label-regex unit
fi
if [ "$fuzz" != 0 ]; then
  build fuzz
  run_ctest fuzz
fi

summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
printf '%s\n' "$summary"
[ "$failed" -eq 0 ]
