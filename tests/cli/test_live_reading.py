"""A short soak_live.py: test_live_reading.py [--package FOLDER]"""

import sys

from capture_harness import require_binary
from soak_live import parse, soak


def test_every_command_reads_a_trace_that_is_being_written():
    reads, failures = soak(parse(["--reads", "250", "--seed", "1", "--seconds", "3", *sys.argv[1:]]))
    assert reads >= 250 and not failures, failures


if __name__ == "__main__":
    require_binary()
    test_every_command_reads_a_trace_that_is_being_written()
