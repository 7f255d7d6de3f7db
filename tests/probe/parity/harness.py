"""Runs the `blockscope` binary for the parity tests and counts what was compared."""

import os
import subprocess
import sys
import tempfile

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")


def run(*arguments, expect=0):
    """Runs blockscope; the exit code must be `expect`. Returns its stdout."""
    command = [BINARY, *[str(a) for a in arguments]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode != expect:
        sys.exit(f"{' '.join(command)}\nexit code {result.returncode}, expected {expect}\n"
                 f"{result.stdout}{result.stderr}")
    return result.stdout


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="blockscope-parity-")


def require(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def start():
    """Call first: without the binary the test is skipped, as ctest understands it."""
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
