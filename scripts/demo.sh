#!/usr/bin/env bash
# From a bare Debian 12 machine to the whole loop on a trained model: sets up and builds what is
# missing, captures twenty prompts, draws the report, calibrates which heads may reuse attention,
# decodes with this reuse, and prints what it saved and cost.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run_demo() {
  local blockscope="$ROOT/build/release/bin/blockscope" out="build/demo"
  local model="models/needle" verdict look_at="$out/verify.json"
  cd "$ROOT" # so the traces have paths relative to the repository
  mkdir -p "$out"
  step "Capture: twenty prompts with $model, all of its attention outputs"
  "$blockscope" capture "$model" --prompts "$model/demo.jsonl" \
    --gen-length 32 --batch-size 4 --record full -o "$out/run.h5" --force
  done_step
  step "Analyse: what the trace says"
  "$blockscope" info "$out/run.h5"
  "$blockscope" analyze "$out/run.h5" --metric similarity,external_mass --json "$out/run.json" --force \
    >"$out/analyze.txt"
  done_step
  step "Report: the same as pictures"
  if [[ -n ${BLOCKSCOPE_GNUPLOT:-} ]] || command -v gnuplot >/dev/null; then
    "$blockscope" report "$out/run.h5" -o "$out/report.html" --force
    done_step
    look_at="$out/report.html"
  else
    done_step "left out: gnuplot is missing (Debian: gnuplot-nox, conda: gnuplot)"
  fi
  step "Calibrate: the heads that may reuse the attention of an earlier step"
  "$blockscope" calibrate "$out/run.h5" --saving 0.3 --granularity kv-group --tau 2 -o "$out/reuse.json" --force
  done_step
  step "Verify: the same prompts with and without reuse"
  "$blockscope" verify "$model" --policy "flashblock,reuse=$out/reuse.json" --prompts "$model/demo.jsonl" \
    --gen-length 32 --batch-size 4 --repeats 1 -o "$out/verify.json" --force | tee "$out/verify.txt"
  done_step "look at $look_at; README.md shows how to read $out/run.h5 in Python"

  verdict=$(grep -E '^(Saved|Cost):' "$out/verify.txt")
  printf '\n%s\n%s\n' "$(python3 "$ROOT/scripts/demo_similarity.py" "$out/run.json")" "$verdict"
}

plan_steps 5 release build
set_up release build
run_demo
