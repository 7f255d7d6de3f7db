#!/usr/bin/env bash
# From a bare Debian 12 machine to a recorded trace of a model that really decodes: sets up and
# builds what is missing, captures twenty prompts on the shipped model, prints what the trace says.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run_demo() {
  local blockscope="$ROOT/build/release/bin/blockscope"
  step "What works on this machine"
  "$blockscope" doctor
}

plan_steps 1 release build
set_up release build
run_demo
