#!/bin/sh
# run_python.sh PYTHON SCRIPT ARGUMENT...: runs an oracle test; exit 77 (skipped) without PYTHON.
if [ ! -x "$1" ]; then
  echo "skipped: no $1; scripts/setup.sh --tests makes it"
  exit 77
fi
exec "$@"
