"""Reads a trace with h5py and numpy alone, following docs/trace_format.md."""

import json

import h5py
import numpy as np


class Trace:
    def __init__(self, path):
        self.file = h5py.File(path, "r")
        self.num_rows = int(self.file["/steps/committed"][0])
        self.num_sequences = int(self.file["/sequences/committed"][0])
        self._rows = {}

    def rows(self, path):
        """A per-row dataset, the committed rows only, read once."""
        if path not in self._rows:
            self._rows[path] = self.file[path][: self.num_rows]
        return self._rows[path]

    def has(self, path):
        return path in self.file

    def json(self, path):
        return json.loads(bytes(self.file[path][:]).decode())

    def _text(self, field, index):
        start = int(self.file[f"/sequences/{field}_start"][index])
        length = int(self.file[f"/sequences/{field}_length"][index])
        return bytes(self.file["/sequences/bytes"][start:start + length])

    def names(self):
        return [self._text("name", i).decode() for i in range(self.num_sequences)]

    def prompt(self, index):
        start = int(self.file["/sequences/prompt_start"][index])
        length = int(self.file["/sequences/prompt_length"][index])
        return self.file["/sequences/prompt_token"][start:start + length].tolist()

    def rows_of(self, index):
        """Row numbers of a sequence, in order."""
        return np.flatnonzero(self.rows("/steps/sequence") == index)

    def delta(self, row):
        """-> positions after the prompt, tokens, confidences that a row transferred."""
        end = self.file["/frames/delta_end"]
        begin, end = (int(end[row - 1]) if row else 0), int(end[row])
        return tuple(self.file[f"/frames/{name}"][begin:end].tolist()
                     for name in ("position", "token", "confidence"))

    def prefix(self, name, index, length):
        """Committed keys or values of a sequence: [layers, kv_heads, length, head_dim] float64."""
        count = int(self.rows("/prefix/end")[-1])
        mine = np.flatnonzero(self.file["/prefix/sequence"][:count] == index)
        position = self.file["/prefix/position"][:count][mine]
        values = self.file[f"/prefix/{name}"][:count].astype(np.float64)[mine]
        values = values[np.argsort(position, kind="stable")]
        if sorted(position.tolist())[:length] != list(range(length)):
            raise AssertionError(f"sequence {index}: positions 0..{length - 1} are not all there")
        return values[:length].transpose(1, 2, 0, 3)
