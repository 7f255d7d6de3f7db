"""`blockscope lens` against a float64 recomputation from the recorded hidden states, read with h5py, and the
checkpoint's final norm and LM head: two families, one of which predicts the next position, and a tied LM head."""

import csv
import io
import json
import unittest

import h5py
import numpy as np
from capture_harness import MODELS, CheckpointCase, capture, require_binary, run, safetensors_parts
from family_case import write_family

ARRAYS = ("lens_probability", "lens_rank", "lens_first")


def tensors_of(folder):
    """float64 by name, without the library."""
    header, data = safetensors_parts(folder / "model.safetensors")
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        found[name] = values.reshape(entry["shape"]).astype(np.float64)
    return found


def decided(file, rows, origin, length):
    final, when = {}, {}
    for t, row in enumerate(rows):
        begin, end = (int(file["/frames/delta_end"][row - 1]) if row else 0), int(file["/frames/delta_end"][row])
        for position, token in zip(file["/frames/position"][begin:end], file["/frames/token"][begin:end]):
            if 0 <= position - origin < length:
                final[int(position) - origin], when[int(position) - origin] = int(token), t
    return final, when


def expected(path, norm, head, epsilon):
    sums = {}
    with h5py.File(path) as file:
        steps = {name: file["/steps/" + name][()] for name in ("sequence", "block", "step", "kind", "block_start",
                                                               "recorded")}
        shift = int(file["/model"].attrs.get("logit_shift", file.attrs.get("logit_shift", 0)))
        length = file["/hidden/hidden"].shape[2]
        blocks = {}
        for row in np.flatnonzero(steps["kind"] == 1):
            blocks.setdefault((steps["sequence"][row], steps["block"][row]), []).append(int(row))
        for (sequence, _), rows in blocks.items():
            prompt = int(file["/sequences/prompt_length"][sequence])
            final, when = decided(file, rows, int(steps["block_start"][rows[0]]) - prompt, length)
            for t, row in enumerate(rows):
                for layer in range(len(file["/layer"])):
                    hidden = file["/hidden/hidden"][row, layer].astype(np.float64)
                    normed = hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + epsilon) * norm
                    logits = normed @ head.T
                    for place, token in final.items():
                        if when[place] < t or place < shift:
                            continue
                        of_row = logits[place - shift]
                        probability = 1 / np.exp(of_row - of_row[token]).sum()
                        rank = (of_row > of_row[token]).sum() + 1
                        cell = sums.setdefault((int(file["/layer"][layer]), int(steps["step"][row])), [])
                        cell.append((probability, np.log2(rank), rank == 1))
    return {cell: (np.mean(values, 0), len(values)) for cell, values in sums.items()}


class Lens(CheckpointCase):
    def check(self, model, norm, head, epsilon, *flags, of_both=()):
        path = self.root / "lens.h5"
        code, _, err = capture(model, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16, "--record", "full",
                               "--force", "-o", path, *flags, *of_both)
        self.assertEqual(code, 0, err)
        numbers = self.root / "lens.csv"
        code, _, err = run("lens", model, path, "--csv", numbers, "--force", "-q", *of_both)
        self.assertEqual(code, 0, err)
        want = expected(path, norm, head, epsilon)
        found = {}
        for row in csv.DictReader(io.StringIO(numbers.read_text())):
            if row["value"]:
                found[row["array"], int(row["layer"]), int(row["step"])] = float(row["value"]), int(row["terms"])
        self.assertEqual(len(found), 3 * len(want))
        for (layer, step), (values, terms) in want.items():
            for name, value in zip(ARRAYS, values):
                got = found[name, layer, step]
                self.assertEqual(got[1], terms, (name, layer, step))
                self.assertLess(abs(got[0] - value), 1e-5, (name, layer, step, got, value))
        return path

    def test_against_float64(self):
        model = write_family(self.root / "sdar", "sdar")
        weights = tensors_of(model)
        self.check(model, weights["model.norm.weight"], weights["lm_head.weight"], 1e-6)

    def test_a_model_that_predicts_the_next_position(self):
        model = write_family(self.root / "dream", "Dream")
        weights = tensors_of(model)
        self.check(model, weights["model.norm.weight"], weights["lm_head.weight"], 1e-6, "--block-length", 8)

    def test_a_tied_head_and_outputs(self):
        weights = tensors_of(MODELS / "needle")
        path = self.check(MODELS / "needle", weights["model.norm.weight"], weights["model.embed_tokens.weight"], 1e-6,
                          of_both=("--dtype", "float32"))
        out = self.root / "lens.json"
        code, _, err = run("lens", MODELS / "needle", path, "--json", out, "--layer", "1,5", "--step", "1-3", "-q")
        self.assertEqual(code, 0, err)
        axes = json.loads(out.read_text())["metrics"][0]["arrays"][0]["axes"]
        self.assertEqual([axis["index"] for axis in axes], [[1, 5], [1, 2, 3]])
        for ending, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
            figure = self.root / f"lens.{ending}"
            code, _, err = run("lens", MODELS / "needle", path, "--figure", figure, "-q")
            self.assertTrue(code == 0 and figure.read_bytes().startswith(start), err)
        code, text, err = run("lens", MODELS / "needle", path, "--by", "step,layer", "-q")
        self.assertTrue(code == 0 and "lens_probability" in text, err)
        code, _, err = run("lens", MODELS / "needle", path, "--json", out, "-q")
        self.assertTrue(code != 0 and "exists" in err and "--force" in err, err)

    def test_what_is_refused(self):
        model = write_family(self.root / "other", "sdar", seed=3)
        low, full = self.root / "low.h5", self.root / "full.h5"
        for path, level in ((low, "outputs"), (full, "full")):
            code, _, err = capture(model, "--input-ids", "5,6", "--gen-length", 8, "--record", level, "-o", path)
            self.assertEqual(code, 0, err)
        for arguments, words in [
            ((model, low), "--record full"),
            ((self.model, full), "expected a trace of this checkpoint"),
            ((model, full, "--layer", 90), "--layer: 90 was not recorded"),
            ((model, full, "--step", 90), "no recorded step"),
            ((model, full, "--block-length", 4), "--block-length: does nothing"),
            ((model, full, "--by", "head"), "--by"), ((model, full, "--figure", "lens.gif"), ".svg or .pdf, got lens.gif"),
            ((model, self.root / "none.h5"), "none.h5"),
        ]:
            code, out, err = run("lens", *arguments)
            self.assertTrue(code != 0 and out == "" and words in err and len(err.splitlines()) == 1,
                            (arguments, code, out, err))


if __name__ == "__main__":
    require_binary()
    unittest.main()
