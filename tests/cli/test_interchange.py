"""`blockscope import`, and what `export` writes for other tools: round trips, checked with h5py and by files made up in
interchange_files.py. test_interchange.py TRACE_TOOL"""

import json
import math
import pathlib
import subprocess
import sys
import unittest

import h5py
import numpy as np

from capture_harness import require_binary, run, temporary_folder
from interchange_files import MASK, VOCAB, Frames, klass_run, wino_run

TOOL = sys.argv[1]
NEEDLE = pathlib.Path(__file__).parents[2] / "models" / "needle"
FACTS = ["--vocab-size", VOCAB, "--mask-token-id", MASK]


def states(trace, sequence):
    """[(tokens, confidence, steps)] after each denoising row, by docs/trace_format.md's rules, from the columns."""
    rows = int(trace["/steps/committed"][0])
    length = int(trace["/sequences/gen_length"][sequence])
    mask = int(trace["/model"].attrs["mask_token_id"])
    state = [[mask] * length, [-math.inf] * length, [-1] * length]
    result = []
    for row in range(rows):
        if trace["/steps/sequence"][row] != sequence:
            continue
        def part(name):
            return slice(int(trace[f"/frames/{name}"][row - 1]) if row else 0, int(trace[f"/frames/{name}"][row]))
        here, inserted, deleted = part("delta_end"), part("insert_end"), part("delete_end")
        for values, name in zip(state, ("token", "confidence", "step")):
            for position, value in zip(trace["/frames/position"][here], trace[f"/frames/{name}"][here]):
                values[position] = value
            places = sorted(zip(trace["/frames/insert_position"][inserted], range(inserted.start, inserted.stop)))
            for place, element in reversed(places):
                values.insert(place, trace[f"/frames/insert_{name}"][element])
            for position in sorted(trace["/frames/delete_position"][deleted], reverse=True):
                del values[position]
        if trace["/steps/kind"][row] == 1:
            result.append(tuple(list(values) for values in state))
    return result


class Interchange(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def must(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, 0, (arguments, err))
        return out

    def imported(self, document, name, *flags):
        source, trace = self.root / f"{name}.json", self.root / f"{name}.h5"
        source.write_text(json.dumps(document))
        self.must("import", source, "-o", trace, *flags)
        return trace

    def exported(self, trace, *flags):
        return json.loads(self.must("export", trace, *flags))

    def test_klass_comes_back_as_it_was(self):
        for seed, (dialect, shape) in enumerate([
                ("llada", {}), ("dream", {}), ("llada", dict(prompt=0, block=1, blocks=5)),
                ("llada", dict(prompt=33, block=32, blocks=2)), ("dream", dict(prompt=1, block=3)),
                ("llada", dict(mask=126336))]):
            steps, decided = klass_run(seed, dialect, **shape)
            facts = ["--vocab-size", VOCAB, "--mask-token-id", shape.get("mask", MASK)]
            path = self.imported(steps, f"klass{seed}", *facts)
            self.assertEqual(self.exported(path, "--format", "klass"), steps)
            prompt, block = shape.get("prompt", 5), shape.get("block", 8)
            with h5py.File(path) as trace:
                ends = [0, *trace["/frames/delta_end"][:]]
                self.assertEqual(len(ends) - 1, len(decided))
                for row, expected in enumerate(decided):
                    here = slice(ends[row], ends[row + 1])
                    self.assertEqual([p + prompt for p in trace["/frames/position"][here]], [p for p, _, _ in expected])
                    self.assertEqual(list(trace["/frames/token"][here]), [t for _, t, _ in expected])
                    np.testing.assert_array_equal(trace["/frames/confidence"][here],
                                                  np.float32([c for _, _, c in expected]))
                    start = int(trace["/steps/block_start"][row])
                    best = {start + b: (t, c) for b, (t, c) in enumerate(zip(
                        trace["/prediction/token"][row], trace["/prediction/confidence"][row])) if t >= 0}
                    self.assertEqual(best, {t["position"]: (t["token_id"], np.float32(t["confidence"]))
                                            for t in steps[row]["all_tokens"]})
                    self.assertEqual(trace["/steps/masks_left"][row], len(steps[row]["all_tokens"]))
                    first = trace["/steps/step"][row] == 1
                    self.assertEqual(trace["/steps/changed"][row], 0 if first else len(decided[row - 1]))
                blocks = 1 if dialect == "dream" else shape.get("blocks", 3)
                self.assertEqual(int(trace["/block_position"].shape[0]), block * (1 if dialect == "llada" else shape.get("blocks", 3)))
                self.assertEqual(len(set(trace["/steps/block"][:])), blocks)
                self.assertEqual(list(trace["/sequences/prompt_token"][:]), [shape.get("mask", MASK)] * prompt)

    def test_klass_with_the_prompt(self):
        steps, _ = klass_run(9, prompt=3)
        path = self.imported(steps, "prompted", *FACTS, "--input-ids", "7,8,9")
        with h5py.File(path) as trace:
            self.assertEqual(list(trace["/sequences/prompt_token"][:]), [7, 8, 9])
        self.assertEqual(self.exported(path, "--format", "klass"), steps)

    def test_frames_come_back_as_they_were(self):
        runs = [wino_run(seed, block=block, prompt=prompt) for seed, (block, prompt) in
                enumerate([(None, 4), (4, 4), (5, 0), (12, 9), (1, 2)])]
        changing = Frames(31, length=10)
        for insert, delete in ((2, 0), (0, 3), (3, 3), (1, 0)):
            changing.step(insert=insert, delete=delete)
        runs.append(changing)
        for number, frames in enumerate(runs):
            path = self.imported(frames.record(), f"frames{number}", *FACTS)
            back = self.exported(path, "--format", "frames")
            self.assertEqual(back["vocab_size"], VOCAB)
            item = back["sequences"][0]
            self.assertEqual({key: item[key] for key in frames.record()}, frames.record(), number)
            with h5py.File(path) as trace:
                for got, expected in zip(states(trace, 0), frames.states, strict=True):
                    self.assertEqual(got[0], expected[0])
                    self.assertEqual(got[2], expected[2])
                    np.testing.assert_array_equal(np.float32(got[1]), np.float32(
                        [-math.inf if c is None else c for c in expected[1]]))
            again = self.root / f"again{number}.json"
            again.write_text(json.dumps(back))
            self.must("import", again, "-o", again.with_suffix(".h5"))
            self.assertEqual(self.exported(again.with_suffix(".h5"), "--format", "frames"), back)

    def test_several_sequences_share_a_trace(self):
        records = [dict(wino_run(seed, prompt=seed).record(), name=f"s{seed}", text="a \"b\"") for seed in (1, 2, 3)]
        path = self.imported({"sequences": records}, "several", *FACTS)
        back = self.exported(path, "--format", "frames")["sequences"]
        for record, item in zip(records, back, strict=True):
            self.assertEqual({key: item[key] for key in record}, record)
        one = self.exported(path, "--format", "frames", "--sequence", "1")["sequences"]
        self.assertEqual(one, back[1:2])
        code, _, err = run("export", path, "--format", "klass")
        self.assertEqual(code, 2)
        self.assertIn("--sequence 0", err)

    def test_a_captured_trace_goes_out_and_in(self):
        made = self.root / "made.h5"
        subprocess.run([TOOL, "fixture", made, "f32"], check=True)
        with h5py.File(made, "r+") as file:  # its values follow from the row number, and are no probabilities
            file["/prediction/confidence"][...] = file["/prediction/confidence"][()] / 128
        # Its blocks begin at the prompt's end, though it says that its model looks back only.
        frames = dict(self.exported(made, "--format", "frames"), bidirectional=True)
        path = self.imported(frames, "frames")
        self.assertEqual(self.exported(path, "--format", "frames"), frames)
        with h5py.File(made) as before, h5py.File(path) as after:
            for sequence in range(2):
                for one, two in zip(states(before, sequence), states(after, sequence), strict=True):
                    self.assertEqual(one, two)
            final = states(before, 0)[-1]
        steps = self.exported(made, "--format", "step_map")["sequences"][0]
        self.assertEqual(steps["step_map"], [int(s) + 1 for s in final[2]])
        self.assertEqual(steps["token_ids"], final[0])

    def test_a_step_map_counts_from_one_and_has_zeros_for_masks(self):
        frames = Frames(5, length=6)
        frames.deltas = [{"transfer_index": index, "decoded_tokens": [7] * 6} for index in ([3], [0, 1])]
        path = self.imported(frames.record(), "map", *FACTS)
        item = self.exported(path, "--format", "step_map")["sequences"][0]
        self.assertEqual((item["step_map"], item["token_ids"]), ([2, 2, 0, 1], [7, 7, MASK, 7]))

    def test_any_trajectory_goes_to_klass_and_back(self):
        frames = wino_run(7, revoking=False, block=4)
        path = self.imported(frames.record(), "plain", *FACTS, "--tokenizer", NEEDLE)
        steps = self.exported(path, "--format", "klass")
        token = json.loads((NEEDLE / "tokenizer.json").read_text())["model"]["vocab"]
        prompt, state = len(frames.prompt), frames.initial["generated_tokens"]
        for number, (step, delta) in enumerate(zip(steps, frames.deltas, strict=True)):
            self.assertEqual(step["step"], number + 1)
            chosen = delta["transfer_index"]
            self.assertEqual([t["position"] - prompt for t in step["decoded_tokens"]], chosen)
            block = chosen[0] // 4
            masks = [p for p in range(4 * block, 4 * block + 4) if state[p] == MASK]
            self.assertEqual([(t["position"], t["token_id"], t["confidence"]) for t in step["all_tokens"]],
                             [(p + prompt, delta["decoded_tokens"][p], round(delta["confidence"][p], 4)) for p in masks])
            self.assertEqual({t["kl_divergence"] for t in step["all_tokens"]}, {None})
            for entry in step["decoded_tokens"]:
                self.assertEqual(token[entry["decoded_token"].replace(" ", "Ġ").replace("\n", "Ċ")], entry["token_id"])
            state = frames.states[number][0]
        again = self.imported(steps, "klass", *FACTS)
        self.assertEqual(self.exported(again, "--format", "klass"), steps)

    def test_klass_has_no_words_for_some_trajectories(self):
        changing = Frames(31, length=10)
        changing.step(insert=1)
        for name, frames, words in (("wino", wino_run(3), "changes a decided token"), ("insert", changing, "insertions")):
            code, _, err = run("export", self.imported(frames.record(), name, *FACTS), "--format", "klass")
            self.assertEqual(code, 1)
            self.assertIn(words, err)
            self.assertIn("--format frames", err)
        code, _, err = run("export", self.root / "wino.h5", "--sequence", "1")
        self.assertEqual(code, 2)
        self.assertIn("--sequence", err)

    def test_every_command_reads_what_was_imported(self):
        steps, decided = klass_run(3)
        for path in (self.imported(steps, "klass", *FACTS),
                     self.imported(wino_run(3).record(), "frames", *FACTS)):
            table = self.must("info", path)
            self.assertIn("shape unknown: not in the imported file", table)
            self.assertTrue(json.loads(self.must("info", path, "--json"))["complete"])
            self.must("analyze", path)
            self.must("diff", path, path)
            self.must("report", path, "-o", path.with_suffix(".html"))
            self.assertNotIn("1 layers", path.with_suffix(".html").read_text())
            self.must("repack", path, "-o", path.with_suffix(".packed.h5"), "--compress", "deflate", "-q")
            for name in ("csv", "json", "step_map", "frames"):
                self.must("export", path, "--format", name)
        info = json.loads(self.must("info", self.root / "klass.h5", "--json"))
        self.assertEqual(info["tokens_decided"], sum(len(step) for step in decided))
        self.assertEqual(info["rows"]["denoise"], len(steps))


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=sys.argv[:1])
