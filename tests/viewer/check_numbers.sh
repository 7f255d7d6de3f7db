#!/bin/sh
# check_numbers.sh MAKE_TRACE BENCH_VIEWER: the viewer on a trace of 10 GB (a sparse file) stays
# within limits of time and memory.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" "$folder/vast.h5" --vast --vast-sequences 2 --real-rows 6
"$2" "$folder/vast.h5" --limits
