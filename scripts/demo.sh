#!/usr/bin/env bash
# From a bare Debian 12 machine to a recorded trace of a model that really decodes: sets up and
# builds what is missing, captures twenty prompts on the shipped model, prints what the trace says.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run_demo() {
  local blockscope="$ROOT/build/release/bin/blockscope" trace="$ROOT/build/demo/run.h5"
  step "Capture: twenty prompts with models/needle, all of their attention outputs"
  mkdir -p "$(dirname "$trace")"
  "$blockscope" capture "$ROOT/models/needle" --prompts "$ROOT/models/needle/demo.jsonl" \
    --gen-length 32 --batch-size 4 --record outputs -o "$trace" --force
  done_step
  step "What the trace says (blockscope info)"
  "$blockscope" info "$trace"
  done_step "${trace#"$ROOT"/} is yours to look at; README.md shows how to read it in Python"
}

plan_steps 2 release build
set_up release build
run_demo
