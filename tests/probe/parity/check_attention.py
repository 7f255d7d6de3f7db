"""Oracle C: everything a `full` trace says about attention, recomputed in float64 from the
recorded queries, block keys and values and committed keys and values, read with h5py alone."""

import dataclasses
import json
import pathlib

import attention_math as am
import harness
import numpy as np
import torch
from checkpoints import mask_id, spec_of, write_checkpoint
from layer_math import Layers
from oracle_decoder import DENOISE, _block_logits
from trace_file import Trace

TAUS = (2.0, 3.0, 4.0, float("inf"))


@dataclasses.dataclass
class Case:
    name: str
    checkpoint: str
    flags: list
    lengths: tuple = (3, 17, 30)
    set_size: int = 6
    normaliser: str = "prefix"
    overrides: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("G = 3, B = 8", "sdar-g3-tied", ["--denoising-steps", 8], lengths=(3, 17, 300)),
    Case("G = 2, sets over prefix + block", "sdar-g2", ["--denoising-steps", 3],
         normaliser="prefix+block"),
    Case("D = 128, B = 32", "sdar-d128-b32",
         ["--denoising-steps", 8], lengths=(70, 161), set_size=16),
    Case("B = 1", "sdar-g1-fp16", ["--block-length", 1], lengths=(1, 9), set_size=3),
    Case("G = 4, B = 5, one prompt of N = 0", "sdar-g4-bf16-sharded", [], lengths=(4, 26),
         set_size=40),
]


class Worst:
    """The largest error of each quantity, and what it may be."""

    def __init__(self):
        self.errors = {}

    def add(self, name, ours, expected, tolerance, scale=1.0):
        ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
        harness.require(ours.shape == expected.shape,
                        f"{name}: shape {ours.shape}, expected {expected.shape}")
        same_holes = np.array_equal(np.isnan(ours), np.isnan(expected)) and np.array_equal(
            np.isinf(ours), np.isinf(expected))
        if not same_holes:  # printing the arrays takes far longer than comparing them
            harness.require(False, f"{name}: NaN or infinities at other places\n{ours}\n{expected}")
        finite = np.isfinite(expected)
        error = float(np.abs(ours[finite] - expected[finite]).max(initial=0.0)) / scale
        count, before = self.errors.get(name, (0, 0.0))
        self.errors[name] = (count + int(finite.sum()), max(before, error))
        harness.require(error <= tolerance, f"{name}: error {error:.2e} > {tolerance:.0e}")


def capture(folder, case, checkpoint, spec, extra=()):
    generator = np.random.default_rng(7)
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps(
        {"id": f"p{i}", "gen_length": 12 + 5 * i,
         "input_ids": generator.integers(0, spec["vocab"] - 5, n).tolist()}) + "\n"
        for i, n in enumerate(case.lengths)))
    trace = folder / "full.h5"
    harness.run("capture", checkpoint, "--prompts", lines, "--record", "full", "--array-type",
                "f32", "--set-size", case.set_size, "--set-normaliser", case.normaliser,
                "--strategy", "low_confidence_dynamic,threshold=0.3", "--batch-size", 2,
                "--dtype", "float32", "--threads", 1, "-o", trace, "--force", "--quiet",
                *case.flags, *extra)
    return Trace(trace)


def check_set(worst, name, index, probability, truth, k):
    """index, probability [..., k] recorded; truth [..., N] float64 mean probabilities."""
    count = min(k, truth.shape[-1])
    harness.require((index[..., count:] == -1).all() and (probability[..., count:] == 0).all(),
                    f"{name}: entries behind the prefix are not empty")
    index, probability = index[..., :count].astype(int), probability[..., :count]
    harness.require((index >= 0).all() and (np.sort(index, -1)[..., 1:] !=
                                            np.sort(index, -1)[..., :-1]).all(),
                    f"{name}: a position is missing or there twice")
    chosen = np.take_along_axis(truth, index, -1)
    worst.add(f"{name} probability", probability, chosen, 2e-6)
    # Equal to the true order up to float32's resolution of neighbouring probabilities.
    best = -np.sort(-truth, -1)[..., :count]
    worst.add(f"{name} order", chosen, best, 2e-6)


class Block:
    """What later steps of a block are compared with, by layer."""

    def __init__(self, layers):
        self.first, self.previous = [None] * layers, [None] * layers
        self.source = [[None] * len(TAUS) for _ in range(layers)]
        self.since_read = [[0] * len(TAUS) for _ in range(layers)]  # tokens decided since the source


class RowChecker:
    def __init__(self, trace, case, spec, index, worst):
        self.trace, self.case, self.spec, self.worst = trace, case, spec, worst
        rows = trace.rows_of(index)
        kinds = trace.rows("/steps/kind")
        longest = int(max(trace.rows("/steps/context_length")[r] for r in rows))
        self.key = trace.prefix("key", index, longest)
        self.value = trace.prefix("value", index, longest)
        self.scale = spec["head_dim"] ** -0.5
        self.rows = [int(r) for r in rows if kinds[r] == DENOISE]

    def run(self):
        for row in self.rows:
            if int(self.trace.rows("/steps/step")[row]) == 1:
                block = Block(self.spec["layers"])
            for layer in range(self.spec["layers"]):
                self.check(row, layer, block)
        return len(self.rows)

    def at(self, path, row, *index):
        return self.trace.file[path][(row, *index)]

    def check(self, row, layer, block):
        count = int(self.trace.rows("/steps/context_length")[row])
        get = lambda path: self.at(path, row, layer).astype(np.float64)
        query, key, value = get("/query/query"), get("/kv/key"), get("/kv/value")
        prefix_key, prefix_value = self.key[layer, :, :count], self.value[layer, :, :count]
        outer = am.scores_of(query, prefix_key, self.scale)
        inner = am.scores_of(query, key, self.scale)
        external = am.attention(outer, prefix_value)
        internal = am.attention(inner, value)
        size = max(1.0, np.abs(inner).max(), np.abs(outer).max(initial=0.0))
        add = self.worst.add
        for name, pair in (("external", external), ("internal", internal)):
            add(f"A_{name}", get(f"/attention/{name}"), pair[0], 2e-5, np.abs(value).max() * size)
            add(f"L_{name}", get(f"/attention/lse_{name}"), pair[1], 2e-6, size)
        recorded = [get(f"/attention/{n}")
                    for n in ("external", "lse_external", "internal", "lse_internal")]
        whole = am.attention(np.concatenate([outer, inner], -1),
                             np.concatenate([prefix_value, value], 1))[0]
        recorded = recorded[:2], recorded[2:]
        add("merge of the recorded parts", am.merge(recorded)[0], whole, 2e-5,
            np.abs(value).max() * size)
        self.check_sets(row, layer, count, outer, external[1], internal[1], block)
        self.check_summary(row, layer, count, query, recorded, block)

    def check_sets(self, row, layer, count, outer, lse_external, lse_internal, block):
        k, heads = self.case.set_size, self.spec["kv_heads"]
        lse = lse_external if self.case.normaliser == "prefix" else np.logaddexp(lse_external,
                                                                                 lse_internal)
        index = self.at("/sets/topk", row, layer)
        probability = self.at("/sets/probability", row, layer)
        check_set(self.worst, "block set", index, probability,
                  am.mean_probability(outer, lse, heads), k)
        self.worst.add("covered", self.at("/sets/covered", row, layer), probability.sum(-1), 1e-6)
        token_index = self.at("/sets/topk_token", row, layer)  # [K, B, k]
        truth = am.mean_probability(outer, lse, heads, per_token=True)
        found = np.take_along_axis(truth, np.clip(token_index, 0, None).astype(int), -1) \
            if count else np.zeros(token_index.shape)
        check_set(self.worst, "token set", token_index, np.where(token_index < 0, 0.0, found),
                  truth, k)
        unions = [len(set(token_index[h].ravel().tolist()) - {-1}) for h in range(heads)]
        self.worst.add("union size", self.at("/sets/union_size", row, layer), unions, 0)
        step = int(self.trace.rows("/steps/step")[row])
        sets = [set(index[h].tolist()) - {-1} for h in range(heads)]
        if step == 1:
            block.first_sets = getattr(block, "first_sets", {}) | {layer: sets}
        recall = [np.nan] * heads
        if step > 1 and count > k:
            recall = [len(a & b) / k for a, b in zip(block.first_sets[layer], sets)]
        self.worst.add("recall", self.at("/sets/recall", row, layer), recall, 1e-7)

    def check_summary(self, row, layer, count, query, recorded, block):
        add, heads = self.worst.add, self.spec["heads"]
        external, internal = recorded
        hidden = self.at("/hidden/hidden", row, layer).astype(np.float64)
        none = np.full(heads, np.nan)
        similar_external, similar_internal, mass, gap, block_gap = none, none, none, none, none
        hidden_gap, errors = np.nan, np.full((len(TAUS), heads, 4), np.nan)
        if count > 0:
            mass = (1 / (1 + np.exp(internal[1] - external[1]))).mean(-1)
        if block.previous[layer] is None:
            block.first[layer] = (am.unit(query), am.unit(hidden))
        else:
            before = block.previous[layer]
            if count > 0:
                similar_external = am.cosine(external[0], before[0][0]).mean(-1)
            similar_internal = am.cosine(internal[0], before[1][0]).mean(-1)
            difference = am.unit(query) - block.first[layer][0]
            gap = np.linalg.norm(difference, axis=-1).mean(-1)
            block_gap = np.linalg.norm(difference.mean(1), axis=-1)
            hidden_gap = np.linalg.norm(am.unit(hidden) - block.first[layer][1], axis=-1).mean()
            harness.require((block_gap <= gap + 1e-9).all(), "S4 > S3")
        # Every pass of the run reads, so this is what the step before decided, [MASK] included.
        decided = int(self.trace.rows("/steps/since_read")[row])
        for t, tau in enumerate(TAUS):
            block.since_read[layer][t] += decided
            if block.previous[layer] is None or not block.since_read[layer][t] < tau:
                block.source[layer][t] = external
                block.since_read[layer][t] = 0
            if count > 0:
                errors[t] = am.error_sums(block.source[layer][t], external, internal)
        block.previous[layer] = (external, internal)
        get = lambda name: self.at(f"/summary/{name}", row, layer)
        add("similarity_external", get("similarity_external"), similar_external, 1e-6)
        add("similarity_internal", get("similarity_internal"), similar_internal, 1e-6)
        add("external_mass", get("external_mass"), mass, 1e-6)
        add("query_gap S3", get("query_gap"), gap, 2e-6)
        add("query_block_gap S4", get("query_block_gap"), block_gap, 2e-6)
        add("hidden_gap S2", get("hidden_gap"), hidden_gap, 2e-6)
        recorded_errors = self.at("/summary/reuse_error", row, slice(None), layer)
        size = max(1e-6, np.nan_to_num(errors[..., 2]).max())
        # sum e^2 of a tiny e is a difference of near-equal numbers: measured against sum ref^2
        add("reuse_error", recorded_errors, errors, 2e-5, size)


def check_kl(trace, index, model, spec, case, worst):
    """S1: KL(p at step 1 || p now) at positions still masked, logits by transformers."""
    size = int(trace.rows("/steps/valid").shape[1])
    tokens = trace.prompt(index)
    prompt_length, mask = len(tokens), mask_id(spec)
    tokens = tokens + [mask] * int(trace.file["/sequences/gen_length"][index])
    for row in trace.rows_of(index):
        if trace.rows("/steps/kind")[row] != DENOISE:
            continue
        begin = int(trace.rows("/steps/block_start")[row])
        tokens = tokens + [mask] * (begin + size - len(tokens))
        log_p = _block_logits(model, tokens, begin, begin + size, size).double().log_softmax(-1)
        masked = torch.tensor([t == mask for t in tokens[begin:begin + size]])
        expected = np.full(size, np.nan)
        if int(trace.rows("/steps/step")[row]) == 1:
            first = log_p
        else:
            kl = (first.exp() * (first - log_p)).sum(-1)
            expected[masked.numpy()] = kl[masked].numpy()
        worst.add("KL to step 1, S1", trace.rows("/prediction/kl_step1")[row], expected, 5e-5)
        for position, token in zip(*trace.delta(int(row))[:2]):
            tokens[prompt_length + position] = token


def main():
    harness.start()
    worst, num_rows = Worst(), 0
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        for case in CASES:
            spec = spec_of(case.checkpoint, **case.overrides)
            model = write_checkpoint(folder / case.checkpoint, spec)
            trace = capture(folder, case, folder / case.checkpoint, spec)
            layers = Layers(model, spec)
            for index in range(trace.num_sequences):
                checker = RowChecker(trace, case, spec, index, worst)
                num_rows += checker.run()
                check_kl(trace, index, model, spec, case, worst)
                for row in checker.rows:
                    layers.check(trace, row, worst)
            print(case.name, flush=True)
    print(f"{num_rows} rows")
    for name, (count, error) in worst.errors.items():
        print(f"  {name:30} {count:8} values, largest error {error:.1e}")
    for name in ("recall", "reuse_error", "KL to step 1, S1", "similarity_external"):
        harness.require(worst.errors[name][0] > 100, f"{name}: hardly anything was compared")


if __name__ == "__main__":
    main()
