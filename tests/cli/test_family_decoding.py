"""Stop tokens inside a block, and batches of prompts of different length, for every family and some caches: a stopped run is
the beginning of the run without stops, up to where the rules of the family end it, and a batch is the runs of its prompts."""

import json
import unittest

import h5py
import numpy as np
from capture_harness import BLOCK, MASK, assert_same_trajectories, capture, require_binary, trajectories
from family_case import FAMILIES, TOKEN_BY_TOKEN, FamilyCase, side_by_side

STOPPED = np.uint8(2)  # /sequences/finish_reason
ALSO_STOP = 201         # in config.json with the stop token, and in the prompt, where it has no effect
ROWS = ("/steps/kind", "/steps/block", "/steps/step", "/steps/context_length", "/steps/changed", "/steps/masks_left",
        "/prediction/token", "/prediction/confidence", "counts")
DELTAS = ("position", "token", "confidence")
SHARP = ("--temperature", 1, "--seed", 5)  # greedy tokens of random weights repeat themselves
CONFIDENCE_TOLERANCE = 1e-4  # a batch adds in another order


DENOISE = 1  # /steps/kind


def rows_until_stop(family, run, stop, commits_last):
    """How many rows of a run without stops are left of it when `stop` ends it (docs/parity.md): token by token at once;
    Fast-dLLM v2 as soon as no mask is before it; all others after the block that holds it, and its commit
    where a commit is a pass of its own."""
    state, at = {}, 0
    for row, count in enumerate(run["counts"]):
        state |= dict(zip(run["position"][at:at + count].tolist(), run["token"][at:at + count].tolist(), strict=True))
        at += count
        held = [position for position, token in state.items() if token == stop]
        if not held:
            continue
        if family in TOKEN_BY_TOKEN or (family == "Fast_dLLM_Qwen" and all(p in state for p in range(min(held)))):
            return row + 1
        if family not in TOKEN_BY_TOKEN and family != "Fast_dLLM_Qwen":
            of_block = (run["/steps/block"] == run["/steps/block"][row]) & (run["/steps/kind"] == DENOISE)
            return int(np.flatnonzero(of_block)[-1]) + 1 + commits_last
    raise AssertionError(f"{family}: {stop} is not in this run")


def stop_inside(run, block, prompt):
    """A token that first occurs after the answer's first block and is no block's last one; the tokens before it."""
    tokens = dict(zip(run["position"].tolist(), run["token"].tolist(), strict=True))
    for position in sorted(p for p in tokens if p >= block):
        token = tokens[position]
        ends_block = block > 1 and 0 in ((prompt + position + 1) % block, (position + 1) % block)
        if token != MASK and position == min(p for p in tokens if tokens[p] == token) and not ends_block:
            return token, [tokens[p] for p in range(position) if tokens.get(p, MASK) != MASK]
    raise AssertionError("no token occurs late for the first time")


def cut(run, rows):
    deltas = int(run["counts"][:rows].sum())
    return {name: run[name][:rows] for name in ROWS} | {name: run[name][:deltas] for name in DELTAS}


class FamilyDecoding(FamilyCase):
    def decoded(self, name, model, *arguments):
        """-> the trace's path."""
        output = self.root / f"{name}.h5"
        code, _, err = capture(model, *arguments, "-o", output)
        self.assertEqual((code, err), (0, ""), name)
        return output

    def texts(self, path):
        with h5py.File(path) as file:
            whole = file["/sequences/bytes"][:].tobytes()
            return [whole[s:s + n].decode() for s, n in zip(file["/sequences/text_start"][:], file["/sequences/text_length"][:],
                                                            strict=True)]

    def test_a_stop_token_ends_a_run_where_the_family_says(self):
        runs = [(family, ()) for family in FAMILIES] + [("llada", ("--cache", "d2cache")), ("Dream", ("--cache", "dual")),
                                                        ("Fast_dLLM_Qwen", ("--cache", "block")), ("sdar", ("--cache", "commit"))]
        prompt = [1, 2, ALSO_STOP, 4, 5]

        def one(number, family, options):
            block = {"Fast_dLLM_Qwen": 2 * BLOCK}.get(family, 1 if family in TOKEN_BY_TOKEN else BLOCK)
            given = ["--gen-length", 6 * BLOCK, *SHARP, *options]
            ids = ["--input-ids", ",".join(map(str, prompt))]
            model = self.models[family]
            whole = self.decoded(f"whole-{number}", model, *given, *ids, "--no-stop")
            run, = trajectories(whole).values()
            stop, before = stop_inside(run, block, len(prompt))
            flag = trajectories(self.decoded(f"flag-{number}", model, *given, *ids, "--stop-id", stop))
            of_file = self.decoded(f"config-{number}", self.with_stop(number, family, stop), *given, *ids)
            return family, options, run, stop, before, flag, of_file

        for family, options, run, stop, before, flag, of_file in side_by_side(one, [(n, *r) for n, r in enumerate(runs)]):
            with self.subTest(family=family, options=options):
                self.assertNotIn(ALSO_STOP, run["token"])
                rows = rows_until_stop(family, run, stop, "commit" in options)
                self.assertLess(rows, len(run["counts"]), "the stop comes too late to show anything")
                expected = cut(run, rows) | {"reason": STOPPED}
                for got in (flag, trajectories(of_file)):
                    assert_same_trajectories(got, {"prompt-0": expected})
                self.assertEqual(self.texts(of_file), [" ".join(map(str, before))])

    def with_stop(self, number, family, stop):
        """The stop id in config.json, and another one in the same list."""
        folder = self.root / f"stop-{number}"
        folder.mkdir()
        config = json.loads((self.models[family] / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [ALSO_STOP, stop]}))
        (folder / "model.safetensors").symlink_to(self.models[family] / "model.safetensors")
        return folder

    def test_a_prompt_in_a_batch_is_decoded_as_alone(self):
        random = np.random.default_rng(3)
        prompts = [{"id": f"p{i}", "input_ids": random.integers(0, 250, length).tolist(), "gen_length": gen_length}
                   for i, (length, gen_length) in enumerate(((3, 16), (22, 16), (9, 24)))]
        together = self.root / "together.jsonl"
        together.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        for prompt in prompts:
            (self.root / f"{prompt['id']}.jsonl").write_text(json.dumps(prompt) + "\n")
        runs = [(family, ()) for family in FAMILIES] + [
            ("llada", ("--cache", "d2cache,current_k=4")), ("llada", ("--strategy", "wino")),
            ("Dream", ("--cache", "dllm-cache", "--strategy", "klass"))]
        jobs = [(number, file, family, options) for number, (family, options) in enumerate(runs)
                for file in (together, *(self.root / f"{prompt['id']}.jsonl" for prompt in prompts))]

        def one(number, file, family, options):
            return trajectories(self.decoded(f"batch-{number}-{file.stem}", self.models[family], "--prompts", file,
                                             "--batch-size", 3,
                                             "--no-stop", *options))

        found = side_by_side(one, jobs)
        for number, (family, options) in enumerate(runs):
            batch, *alone = found[number * 4:number * 4 + 4]
            with self.subTest(family=family, options=options):
                self.assertEqual(sorted(batch), ["p0", "p1", "p2"])
                for single in alone:
                    (name, expected), = single.items()
                    self.assertGreater(len(expected["token"]), 4)
                    for key, values in expected.items():
                        if "confidence" in key:
                            np.testing.assert_allclose(batch[name][key], values, atol=CONFIDENCE_TOLERANCE,
                                                       err_msg=f"{name} {key}")
                        else:
                            np.testing.assert_array_equal(batch[name][key], values, err_msg=f"{name} {key}")


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
