"""`blockscope analyze --matrix attention` and the datasets of /spread against a float64 softmax of the stored queries and
keys, read with h5py by the rules of docs/trace_format.md: every family, policies, caches, batches and drafts."""

import json
import unittest

import h5py
import numpy as np
from attention_math import scores_of
from capture_harness import (MODELS, CheckpointCase, capture, require_binary, run, write_prompts)
from family_case import BIDIRECTIONAL, FAMILIES, write_family
from test_draft import draft_tensors, write_draft, write_target, zlab_config

SHOWN = 3  # rows of a trace that are compared, spread evenly


def external_keys(file, row, slot):
    """[N], [K, N, D]: the keys outside the block that a row read."""
    sequence, start = file["/steps/sequence"][row], file["/steps/block_start"][row]
    length = file["/query/query"].shape[3]
    bidirectional = bool(file["/model"].attrs.get("bidirectional", 0))
    last = row if bidirectional else row - 1
    end = int(file["/prefix/end"][last]) if last >= 0 else 0
    keys = {}
    for i in np.flatnonzero(file["/prefix/sequence"][:end] == sequence):
        keys[int(file["/prefix/position"][i])] = file["/prefix/key"][i, slot].astype(np.float64)
    places = sorted(p for p in keys if not bidirectional or not start <= p < start + length)
    empty = np.empty((0, *file["/prefix/key"].shape[2:]))
    return np.array(places), np.stack([keys[p] for p in places] or empty).swapaxes(0, 1) if places else \
        empty.swapaxes(0, 1)


def expected(file, row, slot, causal):
    """Positions of the keys [N + T] and weights [H, B, N + T]."""
    places, outside = external_keys(file, row, slot)
    inside = file["/kv/key"][row, slot].astype(np.float64)
    there = ~np.isnan(inside).all((0, 2))
    start = int(file["/steps/block_start"][row])
    query = file["/query/query"][row, slot].astype(np.float64)
    keys = np.concatenate([outside, inside[:, there]], 1)
    scores = scores_of(query, keys, float(file.attrs["softmax_scale"]))
    places = np.concatenate([places, start + np.flatnonzero(there)]).astype(int)
    own = start + np.arange(query.shape[1])[:, None]
    if causal:
        scores = np.where((places[None] > own) & (places >= start)[None], -np.inf, scores)
    window = int(file["/model/layer_window"][file["/layer"][slot]]) if file.attrs.get("ragged", 0) else 0
    if window:
        if file.attrs.get("has_draft", 0):  # it moves with the query
            scores = np.where(places[None] <= own - window, -np.inf, scores)
        external = places > start - window
        places, scores = places[external], scores[..., external]
    with np.errstate(invalid="ignore"):
        return places, np.exp(scores - np.logaddexp.reduce(scores, -1)[..., None])


def entropy(weights):
    return -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0).sum(-1)


def masked_before(file, row, start, length, prompt):
    """Positions of the block that are masks before a row, by the decided tokens of earlier rows."""
    decided, ends = set(), file["/frames/delta_end"][()]
    for earlier in range(row):
        if file["/steps/sequence"][earlier] == file["/steps/sequence"][row]:
            first = ends[earlier - 1] if earlier else 0
            decided |= {prompt + int(p) for p in file["/frames/position"][first:ends[earlier]]}
    return {p for p in range(start, start + length) if p >= prompt and p not in decided}


def spread(file, row, slot, causal, read=None):
    """What /spread holds for a row and layer, [H, ...] each, of the keys that it read: `read` [H, N] bool, or all."""
    places, weights = expected(file, row, slot, causal)
    length = file["/query/query"].shape[3]
    start = int(file["/steps/block_start"][row])
    inside = (places >= start) & (places < start + length)
    if read is not None:
        weights = np.where(np.concatenate([read, np.ones((len(read), inside.sum()), bool)], 1)[:, None], weights, 0)
        weights /= weights.sum(-1, keepdims=True)
    queries = np.flatnonzero(np.isfinite(weights).all((0, 2)))
    weights = weights[:, queries]
    sides = []
    for keys in (~inside, inside):
        side = weights[:, :, keys]
        total = side.sum(-1, keepdims=True)
        sides.append(np.divide(side, total, out=np.zeros_like(side), where=total > 0))
    sides.append(weights)
    found = {"entropy": np.stack([entropy(side).mean(1) for side in sides], -1),
             "largest": np.stack([side.max(-1).mean(1) if side.size else np.zeros(len(side)) for side in sides], -1)}
    mean = weights.mean(1)
    distance, offset = file["/distance"][()], file["/offset"][()]
    of_distance = np.zeros((len(mean), len(distance)))
    for key in np.flatnonzero(~inside):
        before = places[key] < start
        far = start - places[key] if before else places[key] - (start + length) + 1
        of_distance[:, distance.tolist().index((-1 if before else 1) * 2 ** int(np.log2(far)))] += mean[:, key]
    of_offset = np.zeros((len(mean), len(offset)))
    for key in np.flatnonzero(inside):
        for i, query in enumerate(queries):
            of_offset[:, offset.tolist().index(places[key] - start - query)] += weights[:, i, key] / len(queries)
    sequence = file["/steps/sequence"][row]
    prompt = int(file["/sequences/prompt_length"][sequence])
    masks = masked_before(file, row, start, length, prompt)
    regions = file.attrs["regions"].decode().split(",")
    of_region = np.zeros((len(mean), len(regions)))
    of_block = np.zeros((len(mean), len(file["/answer_block"])))
    for key, place in enumerate(places):
        if inside[key]:
            name = "masks" if place in masks else "decided"
        else:
            name = "after" if place >= start else "first" if place < 4 else "prompt" if place < prompt else "answer"
        of_region[:, regions.index(name)] += mean[:, key]
        if name == "answer":
            of_block[:, min((start - 1 - place) // length, of_block.shape[1] - 1)] += mean[:, key]
    return {**found, "distance": of_distance, "offset": of_offset, "region": of_region, "answer_block": of_block}


def external_values(file, row, slot, places):
    """[K, N, D]: the values of the keys at `places`."""
    sequence, values = file["/steps/sequence"][row], {}
    bidirectional = bool(file["/model"].attrs.get("bidirectional", 0))
    last = row if bidirectional else row - 1
    end = int(file["/prefix/end"][last]) if last >= 0 else 0
    for i in np.flatnonzero(file["/prefix/sequence"][:end] == sequence):
        values[int(file["/prefix/position"][i])] = file["/prefix/value"][i, slot].astype(np.float64)
    return np.stack([values[p] for p in places]).swapaxes(0, 1)


class AttentionMap(CheckpointCase):
    def recorded(self, name, model, *arguments, level="full", map_steps="1-2"):
        path = self.root / f"{name}.h5"
        maps = [] if "--draft" in arguments else ["--record-maps", f"heads=0;steps={map_steps}"]
        code, _, err = capture(model, *arguments, *maps, "--record", level, *(["--array-type", "f32"] if level == "full" else []),
                               "-o", path)
        self.assertEqual(code, 0, err)
        return path

    def check(self, path, causal=False):
        """causal: of every layer, of which each row compares one; or a list by layer, and a row compares all."""
        compared = 0
        with h5py.File(path) as file:
            steps = {name: file["/steps/" + name][()] for name in ("sequence", "block", "step", "kind", "recorded")}
            rows, layers = np.flatnonzero((steps["kind"] == 1) & (steps["recorded"] == 1)), len(file["/layer"])
            for row in rows[np.linspace(0, len(rows) - 1, SHOWN).astype(int)]:
                of_layer = {int(row) % layers: causal} if isinstance(causal, bool) else dict(enumerate(causal))
                for slot, is_causal in of_layer.items():
                    compared += self.check_row(path, file, row, slot, is_causal)
        self.assertGreater(compared, 0)

    def check_row(self, path, file, row, slot, causal):
        compared, steps = 0, {name: int(file["/steps/" + name][row]) for name in ("sequence", "block", "step")}
        places, weights = expected(file, row, slot, causal)
        for head in (None, 0, len(file["/head"]) - 1):
            choice = [] if head is None else ["--head", file["/head"][head]]
            code, out, err = run("analyze", path, "--matrix", "attention", "--layer", file["/layer"][slot],
                                 "--sequence", steps["sequence"], "--block", steps["block"], "--step", steps["step"],
                                 *choice, "--json", "-", "--quiet")
            self.assertEqual(code, 0, err)
            array = json.loads(out)["metrics"][0]["arrays"][0]
            self.assertEqual(array["axes"][1]["index"], places.tolist())
            found = np.array([np.nan if x is None else x for x in array["values"]])
            want = weights.mean(0) if head is None else weights[head]
            np.testing.assert_allclose(found.reshape(want.shape), want, rtol=2e-5, atol=1e-7)
            compared += np.isfinite(want).sum()
        self.check_spread(file, row, slot, causal)
        self.check_map(file, row, slot)
        self.check_norms(file, row, slot)
        return compared

    def check_map(self, file, row, slot):
        if "/map/weight" not in file:
            return
        found = file["/map/weight"][row, slot]
        if file["/steps/step"][row] not in json.loads(file["/run/json"][()].tobytes())["map_steps"]:
            return self.assertTrue(np.isnan(found).all())
        places, weights = expected(file, row, slot, False)
        want = np.full(found.shape, np.nan)
        want[:, :, places] = weights[file["/map_head"][()]]
        np.testing.assert_allclose(found, want, rtol=2 ** -10, atol=2e-7)
        self.maps_compared = getattr(self, "maps_compared", 0) + np.isfinite(found).sum()

    def check_norms(self, file, row, slot):
        """Norms of the keys in the top-k sets, whose numbers count the external keys."""
        if "/sets/topk" not in file or "/sets/key_norm" not in file:
            return
        places, keys = external_keys(file, row, slot)
        chosen = file["/sets/topk"][row, slot]
        there = chosen >= 0
        for name, rows in (("key", keys), ("value", external_values(file, row, slot, places) if len(places) else keys)):
            want = np.full(chosen.shape, np.nan)
            for head in range(len(chosen)):
                want[head, there[head]] = np.linalg.norm(rows[head][chosen[head][there[head]]], axis=-1)
            np.testing.assert_allclose(file[f"/sets/{name}_norm"][row, slot], want, rtol=1e-5, err_msg=name)

    def check_spread(self, file, row, slot, causal):
        heads = len(file["/head"])
        group = heads // len(file["/kv_head"])
        read = None
        places, _ = external_keys(file, row, slot)
        shadow = file.attrs["has_shadow"]
        if "/attention/selected" in file and not shadow:
            chosen = file["/attention/selected"][row, slot]
            if (chosen >= 0).any():
                read = np.stack([np.isin(np.arange(len(places)), chosen[head // group]) for head in range(heads)])
        want = spread(file, row, slot, causal, read)
        reused = file["/attention/reused"][row, slot].astype(bool) & (not shadow)
        for name, values in want.items():
            found = file["/spread/" + name][row, slot].astype(np.float64)
            if name in ("entropy", "largest"):
                np.testing.assert_allclose(found[:, 1], values[:, 1], atol=3e-5, err_msg=name)
                values, found = values[:, ::2], found[:, ::2]
            self.assertTrue(np.isnan(found[reused]).all())
            np.testing.assert_allclose(found[~reused], values[~reused], atol=3e-5, err_msg=name)

    def test_every_family(self):
        for family in FAMILIES:
            with self.subTest(family):
                model = write_family(self.root / family, family)
                size = ["--block-length", 4] if family in BIDIRECTIONAL else []
                self.check(self.recorded(f"of-{family}", model, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16,
                                         *size, map_steps="1"))  # all that a model without masks has
        self.assertGreater(self.maps_compared, 400)

    def test_policies_show_exact_attention(self):
        for policy in ("flashblock,tau=2", "mage,k=3", "quest,k=4,page=2"):
            with self.subTest(policy):
                self.check(self.recorded(policy.replace(",", "-"), self.model, "--input-ids", "5,6,7,8,9,10,11",
                                         "--gen-length", 16, "--policy", policy))

    def test_shadows_are_exact(self):
        for policy in ("flashblock,tau=2", "mage,k=3"):
            self.check(self.recorded("shadow-" + policy[:4], self.model, "--input-ids", "5,6,7,8,9,10,11",
                                     "--gen-length", 16, "--policy", policy, "--shadow"))

    def test_caches(self):
        for cache in ("dual", "prefix", "dllm-cache,prompt_interval=3,answer_interval=2", "d2cache"):
            with self.subTest(cache):
                self.check(self.recorded(cache.split(",")[0], MODELS / "needle-bidirectional", "--input-ids",
                                         ",".join(str(i) for i in range(1, 40)), "--block-length", 8, "--gen-length",
                                         24, "--cache", cache))

    def test_batches(self):
        prompts = write_prompts(self.root / "prompts.jsonl", 4)
        self.check(self.recorded("batch", self.model, "--prompts", prompts, "--batch-size", 3))

    def test_drafts(self):
        target, draft = write_target(self.root / "target"), write_draft(self.root / "draft", zlab_config(),
                                                                        draft_tensors())
        for which in ("draft", "target"):
            with self.subTest(which):
                self.check(self.recorded(which, target, "--draft", draft, "--recorded-model", which, "--input-ids",
                                         "5,6,7,8,9", "--gen-length", 12, "--no-stop"), causal=which == "target")

    def test_drafts_with_windows_and_causal_layers(self):
        target = write_target(self.root / "target-of-windows")
        for name, causal, changes in (("sliding", [True, False], {}), ("window", [False, False], {"is_causal": False}),
                                      ("causal", [True, True], {"is_causal": True})):
            with self.subTest(name):
                config = zlab_config(use_sliding_window=True, sliding_window=6,
                                     layer_types=["sliding_attention", "full_attention"], **changes)
                draft = write_draft(self.root / f"draft-{name}", config, draft_tensors())
                self.check(self.recorded(f"of-draft-{name}", target, "--draft", draft, "--input-ids", "5,6,7,8,9,10,11",
                                         "--gen-length", 12, "--no-stop"), causal)

    def test_recorded_maps_are_enough(self):
        """A trace of level summary with /map gives the same maps as one of level full."""
        whole = self.recorded("whole", self.model, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16)
        low = self.recorded("with-maps", self.model, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16,
                            level="summary")
        for step in (1, 2):
            arrays = []
            for path in (whole, low):
                code, out, err = run("analyze", path, "--matrix", "attention", "--layer", 1, "--head", 0, "--block", 2,
                                     "--step", step, "--json", "-", "--quiet")
                self.assertEqual(code, 0, err)
                arrays.append(json.loads(out)["metrics"][0]["arrays"][0])
            self.assertEqual(arrays[0]["axes"], arrays[1]["axes"])
            np.testing.assert_allclose(arrays[1]["values"], arrays[0]["values"], rtol=2 ** -10, atol=1e-7)
        for head, step, words in ((3, 1, "the weights of head 3 were not recorded"), (0, 3, "has no recorded weights")):
            code, _, err = run("analyze", low, "--matrix", "attention", "--layer", 1, "--block", 2, "--step", step,
                               "--head", head)
            self.assertTrue(code == 1 and words in err, err)

    def test_without_a_step_the_first_one_with_weights_is_shown(self):
        path = self.recorded("later", self.model, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16, level="summary",
                             map_steps="3")
        code, out, err = run("analyze", path, "--matrix", "attention", "--layer", 1, "--head", 0, "--json", "-", "--quiet")
        self.assertEqual(code, 0, err)
        self.assertIn("step 3", json.loads(out)["metrics"][0]["title"])

    def test_maps_that_cannot_be_recorded(self):
        for text, words in (("layers=9", "layers: expected recorded ones, 0,1, got 9"), ("heads=", "expected layers="),
                            ("keys=1", "got 'keys=1'"), ("steps=90", "steps: 90 is beyond this run"),
                            ("heads=1;heads=0", "expected heads= once")):
            out = self.root / "refused.h5"
            code, _, err = capture(self.model, "--input-ids", "5,6,7", "--gen-length", 8, "--record-maps", text, "-o", out)
            self.assertTrue(code == 2 and words in err and not out.exists(), (text, code, err))

    def test_what_is_refused(self):
        path = self.recorded("plain", self.model, "--input-ids", "5,6,7", "--gen-length", 8)
        low = self.root / "low.h5"
        self.assertEqual(capture(self.model, "--input-ids", "5,6", "--gen-length", 8, "--record", "outputs", "-o",
                                 low)[0], 0)
        for trace, arguments, words in [
            (path, ["--step", "1,2"], "--step: an attention map takes one step, got 2"),
            (path, ["--step", 90], "--matrix: none of"),
            (path, ["--head", 90], "--head: expected indices"),
            (path, ["--field", "query"], "--field: does nothing"),
            (path, ["--row-a", 1, "--row-b", 2], "--row-a: does nothing"),
            (low, [], "--record full"),
        ]:
            code, out, err = run("analyze", trace, "--matrix", "attention", *arguments)
            self.assertTrue(code != 0 and out == "" and words in err, (arguments, code, out, err))


if __name__ == "__main__":
    require_binary()
    unittest.main()
