"""--intervene: the recorded parts of changed heads against float64 attention with the same keys left out (h5py on a
trace of level full), against a checkpoint whose weights do the same, and what must stay bit for bit as it is."""

import json
import pathlib
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
        prompt = [] if "--replay" in arguments else ["--input-ids", ids, "--gen-length", gen_length, "--no-stop"]
        code, _, err = capture(model or self.model, *prompt, "--record", "full", "--array-type", "f32", "-o", path,
                               "--force", *arguments)
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

    def test_the_trace_says_which_heads_were_changed(self):
        path = self.recorded("marked", "--intervene", "scale,by=0.5,layers=1,heads=2,steps=2", "--intervene",
                             "hide_keys,positions=4000,layers=0")
        with h5py.File(path) as file:
            found = file["/attention/intervened"][()].astype(bool)
            want = np.zeros(found.shape, bool)
            want[(file["/steps/step"][()] == 2) & (file["/steps/kind"][()] == 1), 1, 2] = True
        self.assertTrue(want.any() and np.array_equal(found, want))
        self.assertNotIn("attention/intervened", read(self.recorded("plain")))

    def test_a_patch_is_the_other_run_at_the_same_step(self):
        """From a run with other attention; with the run's own values nothing changes."""
        plain = self.recorded("plain")
        other = self.recorded("other", "--intervene", "scale,by=3,layers=0", "--replay", plain)
        whole, theirs = read(plain), read(other)
        rows = whole["steps/kind"] == 1

        def patched(what, source, where):
            return read(self.recorded("patched", "--intervene", f"{what},trace={source},{where}", "--replay", plain))

        for what, sides in (("patch_external", ["external"]), ("patch_head", ["external", "internal"])):
            found = patched(what, other, "layers=1,heads=1+3,steps=2-9")
            hit = rows & (whole["steps/step"] > 1)
            self.assertTrue(hit.any())
            for side in ("external", "internal"):
                for name in (f"attention/{side}", f"attention/lse_{side}"):
                    want = whole[name].copy()
                    if side in sides:
                        want[np.ix_(hit, [1], [1, 3])] = theirs[name][np.ix_(hit, [1], [1, 3])]
                    self.assertTrue(np.array_equal(found[name], want, equal_nan=True), (what, name))
            same = patched(what, plain, "layers=0")
            np.testing.assert_allclose(same["prediction/confidence"], whole["prediction/confidence"], rtol=1e-4)
        found = patched("patch_hidden", other, "layers=1")
        self.assertFalse(np.allclose(whole["hidden/hidden"][rows][:, 1], theirs["hidden/hidden"][rows][:, 1]))
        self.assertTrue(np.array_equal(found["hidden/hidden"][rows][:, 1], theirs["hidden/hidden"][rows][:, 1]))
        self.assertTrue(np.array_equal(found["hidden/hidden"][rows][:, 0], whole["hidden/hidden"][rows][:, 0]))
        np.testing.assert_allclose(found["query/query"][rows][:, 1], theirs["query/query"][rows][:, 1], atol=1e-5)
        same = patched("patch_hidden", plain, "layers=0-1")
        np.testing.assert_allclose(same["prediction/confidence"], whole["prediction/confidence"], rtol=1e-4)

    def test_a_file_names_a_trace_with_a_comma(self):
        plain = self.recorded("plain")
        other = self.recorded("other", "--intervene", "scale,by=3,layers=0", "--replay", plain)
        comma = shutil.copy(other, self.root / "other,1.h5")
        file = self.root / "patch.json"
        file.write_text(json.dumps([{"what": "patch_head", "trace": str(comma), "layers": [1], "heads": 2}]))
        want = read(self.recorded("text", "--intervene", f"patch_head,trace={other},layers=1,heads=2", "--replay", plain))
        found = read(self.recorded("file", "--intervene", file, "--replay", plain))
        for name in ("attention/external", "attention/internal", "prediction/confidence"):
            self.assertTrue(np.array_equal(found[name], want[name], equal_nan=True), name)

    def test_false_is_a_value_of_switches_only(self):
        file = self.root / "false.json"
        for entry, code in (({"what": "drop_head", "mean": False}, 0), ({"what": "drop_head", "layers": False}, 2),
                            ({"what": "drop_head", "other": False}, 2)):
            file.write_text(json.dumps([entry]))
            got, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 4, "--intervene", file, "-o",
                                  self.root / "false.h5", "--force")
            self.assertEqual(got, code, err)

    def test_heads_that_share_keys_are_named(self):
        def notes(text):
            code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 4, "--intervene", text, "-o",
                                   self.root / "shared.h5", "--force")
            self.assertEqual(code, 0, err)
            return err

        for text, shared in (("hide_keys,heads=0,region=first", "KV head 0 (changes 0, leaves 1)"),
                             ("drop_external,heads=1-2",
                              "KV head 0 (changes 1, leaves 0), KV head 1 (changes 2, leaves 3)")):
            self.assertIn(f"changes some of the heads that share keys and values: {shared}", notes(text))
        for text in ("hide_keys,heads=0-1,region=first", "drop_head,heads=0", "drop_external"):
            self.assertNotIn("share", notes(text))

    def test_patches_of_bidirectional_models(self):
        model = write_family(self.root / "llada-to-patch", "llada")
        size = ["--block-length", 4]
        plain = self.recorded("llada", *size, model=model)
        other = self.recorded("llada-other", *size, "--intervene", "scale,by=3,layers=0", "--replay", plain, model=model)
        whole, theirs = read(plain), read(other)
        found = read(self.recorded("llada-patched", *size, "--intervene", f"patch_hidden,trace={other},layers=1",
                                   "--replay", plain, model=model))
        rows = whole["steps/kind"] == 1
        self.assertTrue(np.array_equal(found["hidden/hidden"][rows][:, 1], theirs["hidden/hidden"][rows][:, 1]))
        self.assertFalse(np.array_equal(whole["hidden/hidden"][rows][:, 1], theirs["hidden/hidden"][rows][:, 1]))

    def test_patches_from_rows_that_were_computed_in_part(self):
        needle = [MODELS / "needle-bidirectional", "--record", "full"]
        part, out = self.root / "part.h5", self.root / "refused.h5"
        code, _, err = capture(*needle, "--input-ids", ",".join(map(str, range(1, 40))), "--block-length", 8,
                               "--gen-length", 16, "--cache", "d2cache", "-o", part)
        self.assertEqual(code, 0, err)
        for what in ("patch_head", "patch_hidden"):
            code, _, err = capture(*needle, "--replay", part, "--cache", "none", "--intervene",
                                   f"{what},trace={part},layers=3", "-o", out, "--force")
            self.assertTrue(code == 2 and "expected values of the whole block" in err, err)
            pathlib.Path(f"{out}.partial").unlink(missing_ok=True)

    def test_patches_that_do_not_fit(self):
        plain = self.recorded("plain")
        low = self.root / "low.h5"
        self.assertEqual(capture(self.model, "--input-ids", IDS, "--gen-length", 16, "--no-stop", "--layers", "0", "-o",
                                 low)[0], 0)
        some = self.recorded("some", "--layers", "0", "--heads", "0", "--steps", "1")
        wide = self.recorded("wide", ids="5,6,7,8")
        llada = self.recorded("llada", "--block-length", 4, model=write_family(self.root / "llada-other", "llada"))
        for text, words in (
            (f"patch_head,trace={low}", "expected /attention/external, got a trace of level summary"),
            (f"patch_hidden,trace={low}", "level full"),
            (f"patch_external,trace={some},steps=1,heads=0", "expected layer 1, got layers 0"),
            (f"patch_external,trace={some},steps=1,layers=0", "expected head 1, got heads 0"),
            (f"patch_external,trace={some},layers=0,heads=0", "step 2, got no such recorded row"),
            (f"patch_external,trace={wide}", "expected the prompt of sequence 0"),
            (f"patch_external,trace={llada}", "expected the model's"),
            (f"patch_hidden,trace={plain},heads=1", "heads"),
            (f"patch_head,trace={plain},commits", "commits"),
            ("patch_head", "trace: expected the file of a trace"), ("patch_head,trace=/none.h5", "/none.h5"),
        ):
            out = self.root / "refused.h5"
            code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 8, "--no-stop", "--intervene", text,
                                   "-o", out)
            self.assertTrue(code != 0 and words in err and not out.exists(), (text, code, err))
            for left in (out, self.root / "refused.h5.partial"):
                left.unlink(missing_ok=True)

    def test_commit_passes_on_request(self):
        """Without attention in layer 0, the keys of layer 1 depend on their tokens alone: equal tokens have keys of the
        same norm, because rotations keep it."""
        plain = self.recorded("plain", gen_length=48)

        def spreads(text):
            found = read(self.recorded("commits", "--replay", plain, "--cache", "commit", "--intervene", text))
            ends = found["prefix/end"]
            rows = np.searchsorted(ends, np.arange(len(found["prefix/position"])), side="right")
            committed = found["steps/kind"][rows] == 2
            tokens = dict(zip(found["frames/position"] + len(PROMPT), found["frames/token"]))
            norms = {}
            for i in np.flatnonzero(committed & (found["prefix/position"] >= len(PROMPT))):
                norms.setdefault(tokens[found["prefix/position"][i]], []).append(
                    np.linalg.norm(found["prefix/key"][i, 1], axis=-1))
            groups = [np.ptp(group, 0).max() for group in norms.values() if len(group) > 1]
            self.assertTrue(groups, "no token twice")
            return max(groups), found["prefix/key"][:, 0]

        exact, keys = spreads("drop_head,layers=0")
        changed, same_keys = spreads("drop_head,layers=0,commits")
        self.assertTrue(np.array_equal(keys, same_keys))  # layer 0 reads embeddings
        self.assertGreater(exact, 1e-2)
        self.assertLess(changed, 1e-4)
        out = self.root / "refused.h5"
        code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 8, "--intervene", "drop_head,commits",
                               "-o", out)
        self.assertTrue(code != 0 and "no commit passes" in err and not out.exists(), err)

    def test_bench_times_them(self):
        code, out, err = run("bench", self.model, "--context", 8, "--gen-length", 8, "--runs", 1, "--levels",
                             "off,summary", "--intervene", "drop_head,layers=1", "-q")
        self.assertEqual(code, 0, err)

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
