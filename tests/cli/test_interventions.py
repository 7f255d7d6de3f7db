"""--intervene: the recorded parts of changed heads against float64 attention with the same keys left out (h5py on a
trace of level full), against a checkpoint whose weights do the same, and what must stay bit for bit as it is."""

import json
import shutil
import unittest

import h5py
import numpy as np
from attention_math import attend, merge
from capture_harness import (MODELS, CheckpointCase, capture, require_binary, run, safetensors_bytes, safetensors_parts,
                             write_prompts)
from family_case import BIDIRECTIONAL, write_family
from test_attention_map import external_keys, masked_before

PROMPT = [5, 6, 7, 8, 9, 10, 11, 7, 12, 13]
IDS = ",".join(map(str, PROMPT))


def read(path, names=None):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return {name: values for name, values in found.items() if names is None or name in names}


def external_values(file, row, slot, places):
    sequence, values = file["/steps/sequence"][row], {}
    bidirectional = bool(file["/model"].attrs.get("bidirectional", 0))
    end = int(file["/prefix/end"][row if bidirectional else row - 1])
    for i in np.flatnonzero(file["/prefix/sequence"][:end] == sequence):
        values[int(file["/prefix/position"][i])] = file["/prefix/value"][i, slot].astype(np.float64)
    return np.stack([values[p] for p in places]).swapaxes(0, 1)


class Sides:
    """Keys of one row and layer, and the exact attention of a part of them."""

    def __init__(self, file, row, slot):
        self.places, self.key = external_keys(file, row, slot)
        self.value = external_values(file, row, slot, self.places) if len(self.places) else self.key
        self.start = int(file["/steps/block_start"][row])
        self.block_key = file["/kv/key"][row, slot].astype(np.float64)
        self.block_value = file["/kv/value"][row, slot].astype(np.float64)
        self.query = file["/query/query"][row, slot].astype(np.float64)
        self.scale = float(file.attrs["softmax_scale"])
        self.length = self.query.shape[1]
        self.inside = self.start + np.arange(self.length)

    def attend(self, outside=None, inside=None):
        """Both parts over the keys that are True in outside [H, N] and inside [H, T]."""
        heads, kv_heads = len(self.query), len(self.block_key)

        def part(key, value, seen):
            if not key.shape[1]:
                return np.zeros_like(self.query), np.full(self.query.shape[:2], -np.inf)
            seen = np.ones((heads, key.shape[1]), bool) if seen is None else seen
            return attend(self.query, key, value, self.scale, seen.reshape(kv_heads, heads // kv_heads, 1, -1))

        return part(self.key, self.value, outside), part(self.block_key, self.block_value, inside)

    def weights(self):
        """Mean weight of every key, [H, N + T]: external ones, then the block's."""
        keys = np.concatenate([self.key, self.block_key], 1)
        grouped = self.query.reshape(len(keys), -1, self.length, self.query.shape[-1])
        scores = (grouped @ keys[:, None].swapaxes(-1, -2) * self.scale).reshape(len(self.query), self.length, -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)).mean(1)


class Interventions(CheckpointCase):
    def recorded(self, name, *arguments, model=None, ids=IDS, gen_length=16):
        path = self.root / f"{name}.h5"
        code, _, err = capture(model or self.model, "--input-ids", ids, "--gen-length", gen_length, "--no-stop",
                               "--record", "full", "--array-type", "f32", "-o", path, "--force", *arguments)
        self.assertEqual(code, 0, err)
        return path

    def check(self, path, layers, heads, keep):
        """Recorded parts of every row: those of `keep(sides, masks, row)` -> outside, inside in the chosen layers and
        heads, exact ones elsewhere."""
        compared = 0
        with h5py.File(path) as file:
            rows = np.flatnonzero((file["/steps/kind"][()] == 1) & (file["/steps/recorded"][()] == 1))
            for row in rows:
                for slot in range(len(file["/layer"])):
                    sides = Sides(file, row, slot)
                    prompt = int(file["/sequences/prompt_length"][0])
                    masks = masked_before(file, row, sides.start, sides.length, prompt)
                    exact, changed = sides.attend(), sides.attend(*keep(sides, masks, row))
                    for side, one, other in zip(("external", "internal"), exact, changed):
                        output, lse = (x.copy() for x in one)
                        if slot in layers:
                            output[heads], lse[heads] = other[0][heads], other[1][heads]
                        found = file[f"/attention/{side}"][row, slot], file[f"/attention/lse_{side}"][row, slot]
                        np.testing.assert_allclose(found[0], output, atol=2e-4, err_msg=f"{side} of row {row}")
                        np.testing.assert_allclose(found[1], lse, atol=2e-4)
                        compared += output.size
        self.assertGreater(compared, 1000)

    def test_sides_and_keys_are_left_out_as_asked(self):
        heads = [0, 2]
        where = "layers=1,heads=0+2"

        def regions(*names):
            def keep(sides, masks, _):
                of = np.where(sides.places < 4, "first", np.where(sides.places < len(PROMPT), "prompt", "answer"))
                of_block = np.array(["masks" if p in masks else "decided" for p in sides.inside])
                return tuple(np.broadcast_to(~np.isin(x, names), (4, len(x))) for x in (of, of_block))
            return keep

        def positions(*hidden):
            return lambda sides, *_: tuple(np.broadcast_to(~np.isin(x, hidden), (4, len(x)))
                                           for x in (sides.places, sides.inside))

        def heaviest(count):
            def keep(sides, *_):
                weights = sides.weights()
                order = np.argsort(-weights, -1)[:, :count]
                seen = np.ones(weights.shape, bool)
                np.put_along_axis(seen, order, False, -1)
                return seen[:, :len(sides.places)], seen[:, len(sides.places):]
            return keep

        def without_sinks(sides, *_):
            weights = sides.weights()
            seen = weights <= 1.5 / weights.shape[1]
            return seen[:, :len(sides.places)], np.ones((4, sides.length), bool)

        for text, keep in (
            ("drop_external", lambda s, *_: (np.zeros((4, len(s.places)), bool), None)),
            ("drop_internal", lambda s, *_: (None, np.zeros((4, s.length), bool))),
            ("drop_head", lambda s, *_: (np.zeros((4, len(s.places)), bool), np.zeros((4, s.length), bool))),
            ("hide_keys,region=first", regions("first")), ("hide_keys,region=masks", regions("masks")),
            ("hide_keys,region=answer", regions("answer")), ("hide_keys,region=decided", regions("decided")),
            ("hide_keys,positions=2+5-6+11", positions(2, 5, 6, 11)),
            ("hide_keys,token=7", positions(*(i for i, token in enumerate(PROMPT) if token == 7))),
            ("hide_keys,top=3", heaviest(3)), ("hide_keys,sinks=1.5", without_sinks),
            ("hide_keys,positions=0-200", lambda s, *_: (np.zeros((4, len(s.places)), bool),
                                                         np.zeros((4, s.length), bool))),
        ):
            with self.subTest(text):
                path = self.recorded("changed", "--intervene", f"{text},{where}")
                self.check(path, [1], heads, keep)

    def test_bidirectional_models(self):
        for family in BIDIRECTIONAL:
            with self.subTest(family):
                model = write_family(self.root / f"of-{family}", family)
                path = self.recorded(f"after-{family}", "--block-length", 4, "--intervene",
                                     "hide_keys,region=after,layers=0,heads=1", model=model)
                self.check(path, [0], [1], lambda s, *_: (np.broadcast_to(s.places < s.start, (4, len(s.places))), None))

    def test_only_the_named_steps_and_blocks(self):
        plain, path = self.recorded("plain"), self.recorded("steps", "--intervene", "drop_external,steps=2,blocks=3")
        whole, part = read(plain), read(path)
        with h5py.File(path) as file:
            hit = (file["/steps/step"][()] == 2) & (file["/steps/block"][()] == 3) & (file["/steps/kind"][()] == 1)
            dropped = (part["attention/lse_external"] == -np.inf).all((1, 2, 3))
            lengths = file["/steps/context_length"][()] > 0
        self.assertTrue((dropped[lengths] == hit[lengths]).all() and hit.any())
        before = np.flatnonzero(hit)[0]
        for name in ("attention/external", "attention/internal", "query/query", "hidden/hidden"):
            self.assertTrue(np.array_equal(whole[name][:before], part[name][:before], equal_nan=True), name)

    def test_nothing_changed_is_nothing_changed(self):
        plain = read(self.recorded("plain"))
        for text in ("hide_keys,positions=4000", "scale,by=1", "drop_head,steps=900", "freeze_external,from=500"):
            with self.subTest(text):
                for name, values in read(self.recorded("same", "--intervene", text, "--shadow")).items():
                    if name in plain and name not in ("run/json", "run_byte", "steps/pass_time_ns"):
                        self.assertTrue(np.array_equal(values, plain[name], equal_nan=values.dtype.kind == "f"), name)

    def test_no_external_keys_is_an_empty_prefix(self):
        """Through the split with its own branch, and by hiding every position of the prefix."""
        dropped = read(self.recorded("dropped", "--intervene", "drop_external"))
        hidden = read(self.recorded("hidden", *(word for region in ("first", "prompt", "answer")
                                               for word in ("--intervene", f"hide_keys,region={region}"))))
        for found in (dropped, hidden):
            self.assertTrue((found["attention/lse_external"][found["steps/kind"] == 1] == -np.inf).all())
        first = np.flatnonzero(dropped["steps/step"] == 1)[0]  # later rows may have other tokens: roundings differ
        for name in ("hidden/hidden", "attention/internal", "query/query"):
            np.testing.assert_allclose(dropped[name][first], hidden[name][first], atol=1e-4, err_msg=name)

    def test_a_block_without_its_prefix_is_the_end_of_the_prompt_alone(self):
        """Rotary positions are relative, so the first block of a long prompt without its prefix equals that of a prompt
        that begins at the block."""
        dropped = read(self.recorded("dropped", "--intervene", "drop_external"))
        alone = read(self.recorded("tail", ids=",".join(map(str, PROMPT[8:]))))
        rows = [np.flatnonzero((found["steps/kind"] == 1) & (found["steps/block"] == found["steps/block"][
            found["steps/kind"] == 1][0])) for found in (dropped, alone)]
        self.assertEqual(*map(len, rows))
        for name in ("attention/internal", "attention/lse_internal", "hidden/hidden", "prediction/confidence"):
            np.testing.assert_allclose(*(found[name][of] for found, of in zip((dropped, alone), rows)), atol=2e-4,
                                       err_msg=name)
        self.assertTrue(np.array_equal(*(found["prediction/token"][of] for found, of in zip((dropped, alone), rows))))

    def test_weights_that_do_the_same(self):
        """In the last layer, columns of the output projection that are 0 or doubled. Keys don't depend on them."""
        last, dim, head = 1, 8, 1
        for text, factor in (("drop_head", 0.0), ("scale,by=2", 2.0)):
            with self.subTest(text):
                other = self.root / f"times-{factor}"
                shutil.copytree(self.model, other)
                header, data = safetensors_parts(self.model / "model.safetensors")
                tensors = {name: np.frombuffer(data[slice(*one["data_offsets"])], "<f4").reshape(one["shape"]).copy()
                           for name, one in header.items() if name != "__metadata__"}
                config = json.loads((self.model / "config.json").read_text())
                last, dim = config["num_hidden_layers"] - 1, config["head_dim"]
                tensors[f"model.layers.{last}.self_attn.o_proj.weight"][:, head * dim:(head + 1) * dim] *= factor
                (other / "model.safetensors").write_bytes(safetensors_bytes(tensors))
                ours = read(self.recorded("ours", "--intervene", f"{text},layers={last},heads={head}"))
                theirs = read(self.recorded("theirs", model=other))
                for name in ("frames/token", "frames/position", "prediction/token"):
                    self.assertTrue(np.array_equal(ours[name], theirs[name]), name)
                np.testing.assert_allclose(ours["frames/confidence"], theirs["frames/confidence"], rtol=1e-4)

    def test_a_frozen_pair_is_that_of_the_step(self):
        path = self.recorded("frozen", "--intervene", "freeze_external,from=2,layers=1,heads=3")
        found, kept = read(path), {}
        for row in np.flatnonzero(found["steps/kind"] == 1):
            block, step = found["steps/block"][row], found["steps/step"][row]
            pair = [found[f"attention/{name}"][row, 1, 3] for name in ("external", "lse_external")]
            if step == 2:
                kept[block] = pair
            elif step > 2:
                for one, other in zip(pair, kept[block]):
                    self.assertTrue(np.array_equal(one, other))
        self.assertTrue(kept)

    def test_noise_has_its_size_and_seed(self):
        def merged(path):
            parts = [(path[f"attention/{side}"].astype(float), path[f"attention/lse_{side}"].astype(float))
                     for side in ("external", "internal")]
            return merge([(o[1, 1], l[1, 1]) for o, l in parts])[0]

        plain = merged(read(self.recorded("plain")))
        found = [merged(read(self.recorded("noise", "--intervene", f"noise,by=0.5,seed={seed},layers=1,heads=2")))
                 for seed in (1, 1, 2)]
        self.assertTrue(np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2]))
        error = found[0] - plain
        self.assertEqual(np.abs(error[[0, 1, 3]]).max(), 0)
        size = np.sqrt((error[2] ** 2).mean() / (plain[2] ** 2).mean())
        self.assertTrue(0.25 < size < 1, size)

    def test_under_every_policy(self):
        for policy in ("flashblock,tau=2", "mage,k=3", "mage+flashblock,k=3", "quest,k=4,page=2", "recent,k=2"):
            with self.subTest(policy):
                path = self.recorded("policy", "--policy", policy, "--intervene", "drop_external,layers=0,heads=1",
                                     "--shadow")
                found = read(path)
                rows = (found["steps/kind"] == 1) & (found["steps/context_length"] > 0)
                self.assertTrue((found["attention/lse_external"][rows][:, 0, 1] == -np.inf).all())
                self.assertTrue((found["attention/lse_external"][rows][:, 0, [0, 2, 3]] > -np.inf).all())
                self.assertTrue((found["shadow/lse_external"][rows] > -np.inf).all())

    def test_batches_and_files(self):
        prompts = write_prompts(self.root / "prompts.jsonl", 3)
        file = self.root / "changes.json"
        file.write_text(json.dumps([{"what": "drop_external", "layers": [0], "heads": [1, 2], "steps": 2},
                                    "scale,by=0.5,layers=1"]))
        traces = []
        for name, size in (("alone", 1), ("together", 3)):
            path = self.root / f"{name}.h5"
            code, _, err = capture(self.model, "--prompts", prompts, "--batch-size", size, "--record", "trajectory",
                                   "--intervene", file, "-o", path)
            self.assertEqual(code, 0, err)
            traces.append(path)
            run_json = json.loads(read(path)["run/json"].tobytes())
            self.assertEqual(run_json["interventions"],
                             ["drop_external,layers=0,heads=1+2,steps=2", "scale,layers=1,by=0.5"])
        alone, together = (read(path) for path in traces)
        for sequence in range(3):  # rows of a batch alternate
            rows = [[trace["frames/token"][slice(*ends)].tolist() for ends in zip(
                np.concatenate([[0], trace["frames/delta_end"][:-1]]), trace["frames/delta_end"])] for trace in
                (alone, together)]
            of = [[tokens for row, tokens in enumerate(one) if trace["steps/sequence"][row] == sequence and tokens]
                  for one, trace in zip(rows, (alone, together))]
            self.assertEqual(*of)

    def test_what_it_costs(self):
        code, out, err = run("verify", self.model, "--input-ids", IDS, "--gen-length", 8, "--no-stop", "--intervene",
                             "drop_external,layers=1", "--repeats", 1, "--json", "-q")
        self.assertEqual(code, 0, err)
        setting = json.loads(out)["settings"][0]
        self.assertIn("with drop_external,layers=1", json.dumps(setting))
        code, out, err = run("eval", MODELS / "needle", "--tasks", "needle", "--contexts", 256, "--per-cell", 2,
                             "--gen-length", 16, "--intervene", "drop_head,layers=5,heads=0", "-q")
        self.assertEqual(code, 0, err)
        self.assertIn("with drop_head,layers=5,heads=0", out)

    def test_analysis_knows_that_values_are_not_exact(self):
        path = self.recorded("changed", "--intervene", "drop_head,layers=0")
        code, _, err = run("analyze", path, "--metric", "similarity")
        self.assertTrue(code == 1 and "with interventions" in err and "--shadow" in err, err)

    def test_what_is_refused(self):
        file = self.root / "wrong.json"
        for text, words in (
            ("drop_heads", "expected drop_external"), ("drop_head,layers=9", "layers: expected indices in [0, 2), got 9"),
            ("drop_head,heads=4", "heads: expected indices in [0, 4), got 4"),
            ("drop_head,steps=0", "steps"), ("hide_keys", "expected one of positions"),
            ("hide_keys,region=first,top=2", "got several"), ("hide_keys,region=tail", "region"),
            ("hide_keys,token=200", "token 200: expected a token of the prompt"),
            ("scale,by=x", "by"), ("noise", "by"), ("drop_head,from=2", "from"), (str(self.root / "no.json"), "can't be read"),
        ):
            with self.subTest(text):
                out = self.root / "refused.h5"
                code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 8, "--intervene", text, "-o", out)
                self.assertTrue(code != 0 and words in err and not out.exists(), (code, err))
                out.unlink(missing_ok=True)
        for content, words in (("{}", "expected a JSON list"), ("[]", "an empty one"), ("[1]", "entry 0"), ("[", "no JSON"),
                               ('[{"layers": [1]}]', "what"), ('[{"what": "scale", "by": {}}]', "by: expected")):
            file.write_text(content)
            code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 8, "--intervene", file, "-o",
                                   self.root / "refused.h5")
            self.assertTrue(code != 0 and words in err, (content, code, err))

    def test_resume_needs_the_same_interventions(self):
        path = self.recorded("first", "--intervene", "drop_head,layers=0")
        for other in (["--intervene", "drop_head,layers=1"], []):
            code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 16, "--no-stop", "--record", "full",
                                   "--array-type", "f32", "-o", path, "--resume", *other)
            self.assertTrue(code != 0 and "interventions" in err, err)


if __name__ == "__main__":
    require_binary()
    unittest.main()
