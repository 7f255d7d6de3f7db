"""Shared by the scripts that run official decoders on tiny random checkpoints and write what each forward pass did.

A script gives the recorder the rows of every pass; the recorder keeps the whole sequence. What came out of
`official` code is judged by nothing here: only near ties are looked for, since two correct programs may
differ there. The fields of the files are described in README.md.
"""

import json
import os
import pathlib

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # official code compiles some functions: not needed here

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

TOO_NEAR = 1e-4    # of confidences, scores and thresholds
TOO_NEAR_LOGIT = 3e-4
MOST_PASSES = 90  # some official loops never end: [MASK] is the best token, and nothing changes any more
SEEDS = 60         # prompts tried for a case before it is given up


class Endless(Exception):
    """More passes than a run can need."""


def number(value):
    return float(f"{float(value):.9g}")


class Recorder:
    """The forward passes of one run. `tokens` is the whole sequence as far as it is known."""

    def __init__(self, tokens, mask_id):
        self.tokens, self.mask_id, self.passes = list(tokens), mask_id, []

    def add(self, positions, ids, logits, **more):
        """A pass over the rows `positions` (absolute) of `ids`; logits [rows, V], raw (never shifted)."""
        if len(self.passes) == MOST_PASSES:
            raise Endless(f"not at an end after {MOST_PASSES} forward passes")
        positions, ids = [int(p) for p in positions], [int(i) for i in ids]
        if len(positions) != len(ids) or len(ids) != len(logits):
            raise ValueError(f"{len(positions)} positions, {len(ids)} ids, {len(logits)} logits")
        known = len(self.tokens)
        self.tokens += [self.mask_id] * (max(positions) + 1 - known)
        for position, token in zip(positions, ids):
            self.tokens[position] = token
        best = logits.float().topk(2, -1).values
        probabilities = logits.double().softmax(-1)
        probability, top1 = probabilities.max(-1)
        entropy = -(probabilities * (probabilities + 1e-10).log()).sum(-1)
        self.passes.append(dict(
            input=list(self.tokens), positions=positions, top1=top1.tolist(),
            probability=[number(p) for p in probability],
            gap=[number(g) for g in best[:, 0] - best[:, 1]],
            second=[number(p) for p in probabilities.topk(2, -1).values[:, 1]],
            entropy=[number(e) for e in entropy], **more))

    def finish(self, tokens):
        """`tokens`: the whole sequence at the end. Adds what every pass changed; new masks are no change."""
        after = [p["input"] for p in self.passes[1:]] + [list(tokens)]
        for row, later in zip(self.passes, after):
            before = row["input"] + [self.mask_id] * (len(later) - len(row["input"]))
            row["changed"] = [[i, new] for i, (old, new) in enumerate(zip(before, later)) if old != new]
        return self.passes


class Margin:
    """How near the decisions of a run were to other ones."""

    def __init__(self):
        self.logit, self.choice = float("inf"), float("inf")

    def of(self, *distances):
        self.choice = min([self.choice, *[abs(float(d)) for d in distances]])

    def of_logits(self, *gaps):
        self.logit = min([self.logit, *[float(g) for g in gaps]])

    def of_cut(self, scores, chosen):
        """`scores`: {position: score} of the candidates, `chosen`: those that were taken, the best ones."""
        inside = [s for p, s in scores.items() if p in chosen]
        outside = [s for p, s in scores.items() if p not in chosen]
        if inside and outside:
            self.of(min(inside) - max(outside))

    def of_ranking(self, scores):
        ranked = sorted(scores.values(), reverse=True)
        self.of(*[a - b for a, b in zip(ranked, ranked[1:])])

    def near(self):
        return self.choice < TOO_NEAR or self.logit < TOO_NEAR_LOGIT

    def fields(self):
        return {"logit_margin": number(min(self.logit, 1e9)), "choice_margin": number(min(self.choice, 1e9))}


def prompt_of(seed, length, vocab, mask_id):
    """Random token ids without the mask's."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab - 1, (length,), generator=generator)
    return (ids + (ids >= mask_id)).tolist()


def without_near_ties(run, first_seed):
    """`run(seed)` -> (case, Margin). The first case that ends and has no near-tie, or None."""
    for seed in range(first_seed, first_seed + SEEDS):
        try:
            case, margin = run(seed)
        except Endless:
            continue
        if not margin.near():
            case.update(margin.fields(), seed=seed)
            return case
    return None


def unchanged_by_noise(model, run, seed, times=2, scale=1e-5):
    """`run(seed)` -> case. None if all weights times 1 + 1e-5 z (z normal, another one each time) decide differently
    anywhere: what is computed, where, and what is written. Else the case. For decisions that cannot be measured."""
    def decisions(case):
        return [case["tokens"], case.get("error"),
                [[p["positions"], p.get("layers"), p["changed"]] for p in case["passes"]]]

    case = run(seed)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    same = True
    for _ in range(times):
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(state[name] * (1 + scale * torch.randn(tensor.shape, generator=generator)))
        same = same and decisions(run(seed)) == decisions(case)
    model.load_state_dict(state)
    return case if same else None


def first_unchanged_by_noise(model, run, first_seed):
    for seed in range(first_seed, first_seed + SEEDS):
        try:
            case = unchanged_by_noise(model, run, seed)
        except Endless:
            continue
        if case is not None:
            case["seed"] = seed
            return case
    return None


def random_weights(model, seed, std, embedding_std, head_std, special=lambda name, weight: None):
    """Overwrites all parameters: norm weights near 1, embeddings and LM head with the given spread."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            kind = special(name, weight)
            if kind is not None:
                weight.copy_(kind(noise))
            elif "norm" in name or ".ln_f." in name:
                weight.copy_((0.1 if name.endswith("bias") else 1.0) + 0.3 * noise)
            elif "wte" in name or "embed_tokens" in name or "word_embeddings" in name:
                weight.copy_(noise * embedding_std)
            elif "transformer.ff_out" in name or "lm_head" in name:
                weight.copy_(noise * head_std)
            else:
                weight.copy_(noise * std)


def write_checkpoint(folder, config, state, shards=1):
    """config.json and float32 safetensors in the Hugging Face layout."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    state = {name: tensor.detach().float().contiguous().clone() for name, tensor in state.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, names = {}, sorted(state)
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = names[index::shards]
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1) + "\n")


def read_state(folder):
    state = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        if not file.name.startswith("logits"):
            state.update(load_file(file))
    return state


def write_logits(folder, ids, logits, mask, block_length=None):
    """The file that `blockscope check --reference` reads."""
    metadata = {"mask": mask} | ({"block_length": str(block_length)} if block_length else {})
    name = "-".join(["logits", *metadata.values()]).replace("_", "-")
    save_file({"input_ids": torch.as_tensor(ids).reshape(1, -1), "logits": logits.detach().contiguous()},
              pathlib.Path(folder) / f"{name}.safetensors", metadata=metadata)


def write_oracle(folder, family, method, source, cases, given_up):
    """source: repository, commit and function."""
    path = pathlib.Path(folder) / f"oracle-{family}-{method}.json"
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = json.dumps(dict(family=family, method=method, source=source, torch=torch.__version__))
    path.write_text(f'{head[:-1]}, "cases": [\n{text}\n]}}\n')
    wrong = sum("error" in case for case in cases)
    passes = sum(len(case["passes"]) for case in cases)
    print(f"{path}: {len(cases)} cases, {passes} passes, {wrong} ended in an error, "
          f"{given_up} given up (near ties)")
