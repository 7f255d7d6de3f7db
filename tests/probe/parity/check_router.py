"""Router choices (`capture --record-router`) against llada2_model.py and transformers' routers, position by
position, and what `analyze --metric router` makes of them against numpy."""

import json
import math
import pathlib

import harness
import numpy as np
import torch
from checkpoints import block_causal_mask, mask_id, spec_of, write_checkpoint
from oracle_decoder import DENOISE, Options, decode_with
from trace_file import Trace

TOLERANCE = 1e-4  # of a weight; an expert's own weight is above 0.01 here
NAMES = ("llada2-groups", "llada2-one-expert", "sdarmoe-16", "qwen3moe-raw-weights")
LENGTHS = (6, 13)
GEN_LENGTH = 11
STEPS = 3


def routed_by(model, spec):
    """-> f(ids, mask, positions): logits [T, V], choices[layer] = [(expert, weight), ...] per position."""
    if spec["model_type"] == "llada2_moe":
        def run(ids, mask, positions):
            out = model(ids, attention_mask=mask, position_ids=positions)
            return out.logits[0], out.routed
        return run
    heard = {}
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate"):
            def hear(_module, _inputs, outputs, index=index):
                _, weights, experts = outputs
                heard[index] = [list(zip(e.tolist(), w.tolist())) for e, w in zip(experts, weights)]
            layer.mlp.gate.register_forward_hook(hear)

    def run(ids, mask, positions):
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, position_ids=positions).logits[0].float()
        return logits, [heard.get(index, []) for index in range(spec["layers"])]
    return run


def compare_row(trace, row, choices, begin, size, where):
    """-> largest difference of a weight; experts must be the same, in the order of their weights."""
    expert = trace.rows("/router/expert")[row]
    weight = trace.rows("/router/weight")[row]
    worst = 0.0
    for layer, chosen in enumerate(choices):
        if not chosen:
            harness.require((expert[layer] == -1).all() and np.isnan(weight[layer]).all(),
                            f"{where}: layer {layer} has no experts, got {expert[layer]}")
            continue
        for i in range(size):
            theirs = sorted(chosen[begin + i], key=lambda pair: -pair[1])
            harness.require(expert[layer, i].tolist() == [e for e, _ in theirs],
                            f"{where}, layer {layer}, position {i}: {expert[layer, i]}, {theirs}")
            worst = max(worst, max(abs(w - float(ours)) for (_, w), ours in zip(theirs, weight[layer, i])))
    harness.require(worst <= TOLERANCE, f"{where}: weights differ by {worst}")
    return worst


def check_analysis(folder, trace_path, trace, experts):
    """usage, entropy and agreement, counted again."""
    out = folder / "router.json"
    harness.run("analyze", trace_path, "--metric", "router", "--json", out, "--force", "--quiet")
    result = json.loads(out.read_text())["metrics"][0]
    arrays = {array["name"]: array for array in result["arrays"]}
    for axis in {axis["name"] for array in result["arrays"] for axis in array["axes"]}:
        harness.run("analyze", trace_path, "--metric", "router", "--by", axis)
    rows = np.flatnonzero(trace.rows("/steps/kind") == 1)
    chosen = trace.rows("/router/expert")[rows]  # [row, layer, position, k]
    k = chosen.shape[-1]
    before = {int(row): int(trace.rows("/steps/previous")[row]) for row in rows}
    step = trace.rows("/steps/step")
    agreement = {}
    usage, entropy = [], []
    for layer in range(chosen.shape[1]):
        ids = chosen[:, layer].reshape(-1)
        if (ids < 0).all():
            usage.append([None] * experts)
            entropy.append(None)
            continue
        share = np.bincount(ids, minlength=experts) / (len(ids) / k)
        usage.append(share.tolist())
        entropy.append(-sum(p / k * math.log(p / k) for p in share if p > 0))
        for row in rows:
            if step[row] == 1:
                continue
            now, then = (trace.rows("/router/expert")[r][layer] for r in (row, before[int(row)]))
            kept = [len(set(a) & set(b)) / k for a, b in zip(now.tolist(), then.tolist())]
            agreement.setdefault((layer, int(step[row])), []).extend(kept)

    def same(name, ours, theirs):
        harness.require(len(ours) == len(theirs), f"{name}: {len(ours)} values, expected {len(theirs)}")
        for a, b in zip(ours, theirs):
            harness.require((a is None) == (b is None) and (a is None or abs(a - b) < 1e-9),
                            f"{name}: ours {a}, numpy {b}")

    same("usage", arrays["usage"]["values"], sum(usage, []))
    same("entropy", arrays["entropy"]["values"], entropy)
    steps = range(1, int(step[rows].max()) + 1)
    same("agreement", arrays["agreement"]["values"],
         [float(np.mean(agreement[layer, s])) if (layer, s) in agreement else None
          for layer in range(chosen.shape[1]) for s in steps])


def check_checkpoint(folder, name):
    spec = spec_of(name)
    checkpoint = folder / name
    size = spec["block_length"]
    route = routed_by(write_checkpoint(checkpoint, spec), spec)
    generator = torch.Generator().manual_seed(70 + spec["seed"])
    prompts = [torch.randint(0, spec["vocab"] - 5, (n,), generator=generator).tolist() for n in LENGTHS]
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"input_ids": ids, "gen_length": GEN_LENGTH}) + "\n"
                             for ids in prompts))
    path = folder / "run.h5"
    diffusion = ("--mask-token-id", mask_id(spec), "--block-length", size)
    harness.run("capture", checkpoint, "--prompts", lines, "--record-router", "-o", path, "--force",
                "--quiet", "--dtype", "float32", "--threads", 1, "--denoising-steps", STEPS,
                "--strategy", "low_confidence_static",
                "--batch-size", 2, *(diffusion if spec["model_type"] == "qwen3_moe" else ()))
    trace = Trace(path)
    worst, compared = 0.0, 0
    for index, ids in enumerate(prompts):
        expected = []

        def logits_of(tokens, begin, step):
            mask = block_causal_mask(begin + size, size)
            logits, choices = route(torch.tensor([tokens[:begin + size]]), mask,
                                    torch.arange(begin + size)[None])
            expected.append((begin, choices))
            return logits[begin:]

        decode_with(logits_of, ids, Options("low_confidence_static", mask_id(spec), size, STEPS, GEN_LENGTH))
        rows = [r for r in trace.rows_of(index) if trace.rows("/steps/kind")[r] == DENOISE]
        harness.require(len(rows) == len(expected), f"{name}: {len(rows)} steps, {len(expected)}")
        for row, (begin, choices) in zip(rows, expected):
            worst = max(worst, compare_row(trace, row, choices, begin, size, f"{name}, row {row}"))
            compared += 1
    check_analysis(folder, path, trace, spec["experts"])
    print(f"{name:24} {compared} steps, weights within {worst:.1e}")


def check_refusals(folder):
    write_checkpoint(folder / "sdar-g2", spec_of("sdar-g2"))
    harness.run("capture", folder / "sdar-g2", "--input-ids", "1,2,3", "--record-router", "-o",
                folder / "no.h5", expect=2)
    harness.run("capture", folder / "llada2-groups", "--input-ids", "1,2,3", "--record-router",
                "--record", "trajectory", "-o", folder / "no.h5", expect=2)


def main():
    harness.start()
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        for name in NAMES:
            check_checkpoint(folder, name)
        check_refusals(folder)


if __name__ == "__main__":
    main()
