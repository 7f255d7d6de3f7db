#!/bin/sh
# run_python.sh PYTHON SCRIPT ARGUMENT...: runs an oracle test; exit 77 (skipped) without PYTHON. With
# BLOCKSCOPE_FORK_SERVER set, a fork server answers the commands that the script starts (support/fork_server.cpp).
if [ ! -x "$1" ]; then
  echo "skipped: no $1; scripts/setup.sh --tests makes it"
  exit 77
fi
PYTHONPATH=$(dirname "$0")/support${PYTHONPATH:+:$PYTHONPATH}  # what judges share
export PYTHONPATH
[ -n "${BLOCKSCOPE_FORK_SERVER:-}" ] || exec "$@"

folder=$(mktemp -d)
export BLOCKSCOPE_FORK_SOCKET="$folder/socket"
LD_PRELOAD=$BLOCKSCOPE_FORK_SERVER "$BLOCKSCOPE_FORK_BINARY" "$BLOCKSCOPE_FORK_SOCKET" \
  "$BLOCKSCOPE_FORK_LIBRARY" &
server=$!
trap 'kill "$server"; rm -rf "$folder"' EXIT
while [ ! -S "$BLOCKSCOPE_FORK_SOCKET" ] && kill -0 "$server"; do sleep 0.05; done
"$@"
