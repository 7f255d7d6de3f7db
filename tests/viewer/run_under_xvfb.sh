#!/bin/sh
# run_under_xvfb.sh PROGRAM ARGUMENT...: runs it with a display of its own; exit 77 (skipped)
# where there is no Xvfb. Without -noreset the server starts over when its last window closes, and the next
# window may come too early.
if ! command -v xvfb-run >/dev/null; then
  echo "skipped: no xvfb-run; scripts/test.sh installs it"
  exit 77
fi
exec xvfb-run -a -s "-screen 0 2600x1700x24 -noreset" "$@"
