"""Reads a trace that a killed writer left, with h5py and numpy alone: check_partial.py PATH ROWS.
ROWS were reported as committed; their values follow from the row number (trace_fixture.h)."""

import sys

import h5py
import numpy as np


def expected(field, row, layer, count, dtype=np.dtype("f4")):
    """expected_value() of trace_fixture.h."""
    seed = row * 31 + layer * 7 + field * 13 + np.arange(count)
    if dtype.kind in "iu":
        return seed % (2 if dtype.itemsize == 1 else 4)
    return (seed % 251).astype(np.float32) * 0.5


def field_numbers():
    """Position of each dataset in the schema's table."""
    import pathlib
    import re

    header = pathlib.Path(__file__).parents[2] / "decode_record" / "schema" / "trace_schema.h"
    paths = re.findall(r'\{F::\w+, "(/[^"]+)"', header.read_text())
    return {path: number for number, path in enumerate(paths)}


def main(path, rows):
    numbers = field_numbers()
    with h5py.File(path, "r", swmr=True) as trace:
        committed = int(trace["/steps/committed"][0])
        assert committed >= rows, (committed, rows)
        passes = trace["/steps/pass"][:committed]
        assert np.array_equal(passes, np.arange(committed))
        for row in range(committed - 1, -1, -max(1, committed // 20)):
            for name in ("/attention/external", "/query/query", "/attention/lse_external"):
                values = trace[name][row, 1]
                assert values.dtype == np.float32
                want = expected(numbers[name], row, 1, values.size).reshape(values.shape)
                assert np.array_equal(values, want), (name, row)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
