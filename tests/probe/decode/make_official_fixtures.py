"""Writes data/official_strategies.json: what the authors' own functions choose, for our rules.

    python make_official_fixtures.py --klass KLASS --pc-sampler PC-Sampler --wino WINO-DLLM \
        --d2cache d2Cache data/official_strategies.json

Each folder is a checkout of shkim0116/KLASS, NEUIR/PC-Sampler, Feng-Hong/WINO-DLLM and
Kamichanw/d2Cache; docs/parity.md names the commits. Functions are taken out of their files by name
and run as they are, with a model that returns random logits; nothing of them is kept. Needs torch
and numpy; runs once, not with the tests.
"""

import argparse
import ast
import json
import math
import pathlib
import types

import numpy as np
import torch
import torch.distributions as dists
import torch.nn.functional as F


def official(path, *names, **known):
    """The functions of these names in a source file, with their plain dependencies."""
    tree = ast.parse(pathlib.Path(path).read_text())
    space = {"torch": torch, "np": np, "F": F, "math": math, "dists": dists, "json": json, **known}
    nodes = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    for name in names:
        code = compile(ast.Module([nodes[name]], []), str(path), "exec")
        exec(code, space)
    return space[names[-1]]


LONGEST = 9  # steps of a WINO case that are kept


class Model:
    """Returns one tensor of logits after another and keeps its inputs."""

    def __init__(self, logits):
        self.logits, self.inputs = list(logits), []
        self.device = torch.device("cpu")
        self.config = types.SimpleNamespace(vocab_size=logits[0].shape[-1])

    def __call__(self, tokens, *_, **__):
        self.inputs.append(tokens[0].clone())
        return types.SimpleNamespace(logits=self.logits[len(self.inputs) - 1][None].clone())


def numbers(tensor):
    digits = 9 if tensor.dtype == torch.float32 else 17
    return [float(f"{float(x):.{digits}g}") for x in tensor.flatten()]


def klass_cases(folder, generator):
    decode = official(pathlib.Path(folder, "src/model/llada_klass.py"), "add_gumbel_noise",
                      "get_num_transfer_tokens", "stable_confident_decode")
    block, vocab, mask = 6, 9, 126336
    for case in range(36):
        choose = ["all", "max_conf", "min_kl"][case // 12]
        scale = 10 ** (-3 * torch.rand(block, 1, generator=generator))  # some rows hardly move
        start = 4 * torch.randn(block, vocab, generator=generator)
        logits = [start + scale * torch.randn(block, vocab, generator=generator) / (1 + step)
                  for step in range(block)]
        threshold, kl_threshold = [(0.9, 0.01), (0.5, 0.01), (0.4, 0.1)][case % 3]
        history = 1 + case % 4
        prompt = torch.tensor([[1, 2]])
        model = Model([torch.cat([torch.zeros(2, vocab), step]) for step in logits])
        final, _ = decode(model, None, prompt, block, block, block, mask_id=mask,
                          conf_threshold=threshold, kl_threshold=kl_threshold,
                          kl_history_length=history, alg="klass",
                          unmask_strategy=choose)
        seen = [x[2:] for x in model.inputs] + [final[0, 2:]]
        steps = [{"logits": numbers(logits[i]),
                  "masked": [bool(x) for x in before == mask],
                  "taken": [int(p) for p in ((before == mask) & (after != mask)).nonzero()]}
                 for i, (before, after) in enumerate(zip(seen, seen[1:]))]
        yield {"block": block, "vocab": vocab, "threshold": threshold, "history": history, "choose": choose,
               "kl_threshold": kl_threshold, "steps": steps}


def pc_cases(folder, generator):
    score = official(pathlib.Path(folder, "src/generate.py"), "pc_sampler_function")
    for decay, alpha in [(1.0, 1.0), (0.25, 10.0), (0.0, 10.0), (0.5, 0.3)] * 4:
        size, vocab = 8, 20
        counts = torch.randint(0, 400, (vocab,), generator=generator)
        share = torch.where(counts > 0, counts, torch.ones(())) / counts.sum()
        token = torch.randint(0, vocab, (1, size), generator=generator)
        confidence = torch.rand(1, size, generator=generator)
        result = score(confidence, token, decay, alpha, share)
        yield {"lambda": decay, "alpha": alpha, "share": numbers(share),
               "token": token[0].tolist(), "confidence": numbers(confidence),
               "score": numbers(result)}


def wino_cases(folder, generator):
    decode = official(pathlib.Path(folder, "LLaDA/decoding.py"), "add_gumbel_noise",
                      "get_num_transfer_tokens", "decoding_wino")
    mask = 126336
    for case in range(12):
        block, vocab = [8, 14, 32, 40][case % 4], 5
        spread = [2.0, 3.0, 6.0][case % 3]
        logits = spread * torch.randn(400, 1 + 2 * block, vocab, generator=generator)
        threshold, back = [(0.6, 0.9), (0.6, 0.7), (0.3, 0.5)][case % 3]
        model = Model(logits)
        try:
            final, _ = decode(model, torch.tensor([[1]]), block, block, mask_id=mask,
                              threshold=threshold, threshold_back=back)
        except IndexError:  # 400 passes were not enough: what was seen is compared
            final = None
        seen = [x[1:1 + block] for x in model.inputs][:LONGEST]
        if final is not None and len(model.inputs) < LONGEST:
            seen.append(final[0, 1:])
        steps = []
        for i, (before, after) in enumerate(zip(seen, seen[1:])):
            probability = logits[i].double().softmax(-1)
            shadow = probability[-block:].gather(
                -1, torch.where(before == mask, 0, before)[:, None])[:, 0]
            steps.append({
                "confidence": numbers(probability[1:1 + block].max(-1).values),
                "shadow": numbers(shadow),
                "masked": [bool(x) for x in before == mask],
                "taken": [int(p) for p in ((before == mask) & (after != mask)).nonzero()],
                "revoked": [int(p) for p in ((before != mask) & (after == mask)).nonzero()]})
        yield {"threshold": threshold, "threshold_back": back, "steps": steps}


def density_cases(folder, generator):
    density = official(pathlib.Path(folder, "src/utils/common.py"), "certainty_density")
    for case in range(24):
        length, sigma = [1, 2, 7, 24, 61, 96][case % 6], [0.3, 1.0, 3.0, 10.0][case // 6]
        decided = torch.rand(1, length, generator=generator) < 0.5
        if case % 5 == 0:
            decided[0, -1] = True
        yield {"sigma": sigma, "decided": decided[0].tolist(),
               "density": numbers(density(decided, sigma))}


def prefix_cases(folder, generator):
    file = pathlib.Path(folder, "src/generation/ar.py")
    span, select = official(file, "get_ar_prefix_mask"), official(file, "autoregressive_unmasking")
    for _ in range(60):
        size = int(torch.randint(1, 12, (1,), generator=generator))
        confidence = torch.rand(1, size, generator=generator)
        masked = torch.rand(1, size, generator=generator) < 0.85
        if not masked.any():
            continue
        due = int(torch.randint(1, 4, (1,), generator=generator))
        threshold = 0.6 * float(torch.rand(1, generator=generator))
        taken = select(confidence, span(masked), due, threshold)[0]
        yield {"confidence": numbers(confidence), "masked": masked[0].tolist(), "due": due,
               "threshold": threshold, "taken": sorted(int(p) for p in taken)}


def score_cases(folder, generator):
    sample = official(pathlib.Path(folder, "src/generation/utils.py"), "sample_tokens",
                      top_p_logits=None, top_k_logits=None)
    for spread in (0.5, 2.0, 8.0, 60.0):
        logits = spread * torch.randn(1, 6, 17, generator=generator)
        yield {"vocab": 17, "logits": numbers(logits),
               "confidence": numbers(sample(logits)[0]),
               "margin": numbers(sample(logits, alg="topk_margin")[0]),
               "negative_entropy": numbers(sample(logits, alg="entropy")[0])}


def quota_cases(folder):
    """The steps' counts of Dream's own loop, by what changes from one of its inputs to the next."""
    tree = ast.parse(pathlib.Path(folder, "src/models/dream/generation_utils.py").read_text())
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    # `l` is a name that the released file misses, for the position ids.
    space = {"torch": torch, "F": F, "dists": dists, "np": np, "l": None}
    for name in ("top_p_logits", "top_k_logits", "sample_tokens", "_sample"):
        function = functions[name]
        for argument in function.args.args:
            argument.annotation = None
        function.returns, function.decorator_list = None, []
        exec(compile(ast.Module([function], []), name, "exec"), space)
    mask = 30
    for masks in (1, 5, 8, 32, 200):
        for steps in (1, 2, 3, 7, 16, 61, 128):
            torch.manual_seed(masks * 1000 + steps)
            model = Model([torch.randn(masks + 1, 30) for _ in range(steps)])
            settings = types.SimpleNamespace(
                output_history=False, return_dict_in_generate=False, max_length=masks + 1,
                mask_token_id=mask, steps=steps, eps=1e-3, alg="maskgit_plus", alg_temp=0.0,
                temperature=0.0, top_p=None, top_k=None)
            final = space["_sample"](model, torch.tensor([[1]]), None, settings,
                                     lambda step, x, logits: x,
                                     lambda step, x, logits: logits)
            seen = model.inputs + [final[0]]
            yield {"masks": masks, "steps": steps,
                   "taken": [int(((a == mask) & (b != mask)).sum())
                             for a, b in zip(seen, seen[1:])]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("klass", "pc-sampler", "wino", "d2cache"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--repeats", type=int, default=1, help="times as many random cases")
    parser.add_argument("output")
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(7)
    makers = {"klass": (klass_cases, args.klass), "pc_sampler": (pc_cases, args.pc_sampler),
              "wino": (wino_cases, args.wino), "density": (density_cases, args.d2cache),
              "prefix_ordered": (prefix_cases, args.d2cache), "score": (score_cases, args.d2cache)}
    cases = {name: [case for _ in range(args.repeats) for case in make(folder, generator)]
             for name, (make, folder) in makers.items()}
    cases["quota"] = list(quota_cases(args.d2cache))
    pathlib.Path(args.output).write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    for name, made in cases.items():
        steps = sum(len(case.get("steps", [0])) if isinstance(case.get("steps"), list) else 1
                    for case in made)
        print(f"{name}: {len(made)} cases, {steps} steps")


if __name__ == "__main__":
    main()
