#!/usr/bin/env bash
# Sets up and builds what is missing, runs every test and a few seconds of each fuzzer, and ends
# with one line "N passed, N failed[, N skipped]". Exit code 1 if any failed.
#   BLOCKSCOPE_ASAN=1         also runs the unit tests under address and undefined sanitizers
#   BLOCKSCOPE_FUZZ_SECONDS=5 time for each fuzzer; 0 leaves them out
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

passed=0
failed=0
skipped=0

# run_ctest PRESET CTEST_OPTION...: adds its counts to the totals.
run_ctest() {
  local preset=$1 report total fails skips
  shift
  step "Tests ($preset)"
  report="$ROOT/build/$preset/tests.xml"
  rm -f "$report"
  (cd "$ROOT" && ctest --preset "$preset" -j2 --no-tests=error --output-junit "$report" "$@") || true
  [ -s "$report" ] || die "ctest left no report; what it printed is above"
  total=$(report_count tests "$report")
  fails=$(report_count failures "$report")
  skips=$(($(report_count skipped "$report") + $(report_count disabled "$report")))
  passed=$((passed + total - fails - skips))
  failed=$((failed + fails))
  skipped=$((skipped + skips))
  done_step
}

# report_count NAME FILE: the attribute NAME of the report's <testsuite>.
report_count() { grep -m 1 -oE "\b$1=\"[0-9]+\"" "$2" | grep -oE '[0-9]+'; }

# Each fuzzer runs on a copy of its corpus, so that the committed one stays small.
run_fuzzers() {
  local seconds=$1 fuzzer name corpus
  build fuzz
  step "Fuzzers, $seconds s each"
  for fuzzer in "$ROOT"/build/fuzz/fuzzers/*; do
    name=$(basename "$fuzzer")
    corpus="$WORK/$name"
    mkdir -p "$corpus" "$ROOT/tests/fuzz/corpus/$name"
    if "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
      -artifact_prefix="$ROOT/build/fuzz/" "$corpus" "$ROOT/tests/fuzz/corpus/$name" \
      >"$corpus.log" 2>&1; then
      passed=$((passed + 1))
      note "$name: passed"
    else
      failed=$((failed + 1))
      tail -n 40 "$corpus.log"
      note "$name: FAILED; the input is in build/fuzz/"
    fi
  done
  done_step
}

fuzz_seconds=${BLOCKSCOPE_FUZZ_SECONDS:-5}
[ -f "$ROOT/tests/fuzz/CMakeLists.txt" ] || fuzz_seconds=0
asan=${BLOCKSCOPE_ASAN:-0}

extra=1
[ "$fuzz_seconds" = 0 ] || extra=$((extra + 2))
[ "$asan" = 0 ] || extra=$((extra + 2))
plan_steps "$extra" release build tests
set_up release build tests
run_ctest release
if [ "$asan" != 0 ]; then
  build asan
  run_ctest asan --label-regex unit
fi
[ "$fuzz_seconds" = 0 ] || run_fuzzers "$fuzz_seconds"

summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
printf '%s\n' "$summary"
[ "$failed" -eq 0 ]
