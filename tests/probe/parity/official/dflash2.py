"""DFlash and DFlash 2 drafts of z-lab's own code against our capture: every round's drafted tokens, candidates, scores
of the selector, accepted lengths, and the answers.

python dflash2.py BLOCKSCOPE DFLASH [--pairs N] [--seed S]

BLOCKSCOPE is the binary, DFLASH a work tree of z-lab/dflash at 07ebd93 or newer. Random pairs, prompts and
configurations (taps, groups, ranks, candidates, factors, windows, causal layers), float32, greedily. The official loop makes its last
blocks shorter so as not to pass the length. It therefore decodes more tokens than ours, and the common rounds count."""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time

import h5py
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]
from dflash_checkpoints import Shape, write_pair  # noqa: E402
from dflash_rounds import official, run  # noqa: E402

TOLERANCE = 1e-4  # of a score, in units of the largest
NEAR_TIE = 1e-4   # between candidates, and between the target's best tokens


def random_shape(chance, seed):
    layers = chance.randint(1, 3)
    block = chance.randint(3, 10)
    vocab = chance.randint(8, 24)
    second = (chance.randint(1, 3), chance.choice([4, 8, 16, 32]), chance.randint(2, 8), chance.randint(2, 7))
    factors = {"input_embedding_scale": 1.3, "output_multiplier": 0.6, "final_logit_softcapping": 4.0}
    window = chance.randint(block, 20)
    return Shape(
        vocab=vocab, layers=chance.randint(4, 7), draft_layers=layers, block_size=block, tied=chance.random() < 0.3,
        target_layers=tuple(chance.sample(range(4), chance.randint(1, 3))), block_key_inside=True,
        second=second if chance.random() < 0.75 else None,
        factors={key: value for key, value in factors.items() if chance.random() < 0.5},
        windows=tuple(window if chance.random() < 0.6 else 0 for _ in range(layers)) if chance.random() < 0.6 else (),
        causal=chance.choice([None, False, True]), seed=seed)


def load(module, folder, shape):
    target = Qwen3ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32,
                                              attn_implementation="eager").eval()
    config = Qwen3Config(**json.loads((folder / "draft" / "config.json").read_text()), attn_implementation="eager")
    kind = module.DFlash2DraftModel if shape.second else module.DFlashDraftModel
    draft = kind(config).float().eval()
    books = {f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor")}
    draft.load_state_dict({name + ".weight" if name in books else name: tensor
                           for name, tensor in load_file(folder / "draft" / "model.safetensors").items()})
    return draft, target


def official_rounds(module, draft, target, prompt, count):
    """-> rounds as {drafted, candidates [B - 1, C] with their scores after the token before, accepted}, the answer."""
    rounds, compute = [], module.DFlashDraftModel.compute_logits

    def compute_logits(self, hidden, head):
        logits = compute(self, hidden, head)
        rounds.append({"drafted": logits[0].argmax(-1).tolist(), "gap": gap_of(logits[0])})
        return logits

    module.DFlashDraftModel.compute_logits = compute_logits
    selector = getattr(draft, "candidate_selector", None)
    if selector is not None:
        select = selector.select

        def watched(hidden, logits, anchor_ids, temperature):
            path, candidates, q = select(hidden, logits, anchor_ids, temperature)
            before = torch.cat([anchor_ids[:, None], path[:, :-1]], 1)
            gate = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)
            edges = (gate[:, :, None] * selector.successor_codebook(candidates)).sum(-1)
            scores = logits.gather(-1, candidates) + edges
            best = logits[0].sort(-1, descending=True).values[:, :candidates.shape[-1] + 1]
            rounds[-1] |= {"drafted": path[0].tolist(), "candidates": candidates[0].tolist(),
                           "scores": scores[0].tolist(),
                           "gap": min(gap_of(scores[0]), float((best[:, :-1] - best[:, 1:]).min()))}
            return path, candidates, q
        selector.select = watched
    try:
        found = module.dflash_generate(draft, target, torch.tensor([prompt]), count, None, 0.0, return_stats=True)
    finally:
        module.DFlashDraftModel.compute_logits = compute
        if selector is not None:
            selector.select = select
    for row, length in zip(rounds, found.acceptance_lengths):
        row["accepted"] = length - 1
    return rounds, found.output_ids[0, len(prompt):].tolist()


def gap_of(values):
    if values.shape[-1] < 2:
        return float("inf")
    top = values.topk(2, -1).values
    return float((top[:, 0] - top[:, 1]).min())


def our_rounds(folder, name):
    with h5py.File(folder / "ours.h5") as file:
        rows = int(file["/steps/committed"][0])
        numbers = np.flatnonzero((file["/steps/kind"][:rows] == 1) & (file["/steps/sequence"][:rows] == name))
        ends = np.concatenate([[0], file["/frames/delta_end"][:rows]])
        tokens = {}
        for row in np.flatnonzero(file["/steps/sequence"][:rows] == name):
            part = slice(ends[row], ends[row + 1])
            tokens |= dict(zip(file["/frames/position"][part].tolist(), file["/frames/token"][part].tolist()))
        rounds = [{"drafted": file["/draft/token"][row][1:].tolist(), "accepted": int(file["/draft/accepted"][row])}
                  for row in numbers]
        for row, one in zip(numbers, rounds if "draft_candidates" in file.attrs else ()):
            one |= {"candidates": file["/draft/candidate_token"][row][1:].tolist(),
                    "scores": file["/draft/candidate_score"][row][1:].tolist()}
    return rounds, [tokens[i] for i in sorted(tokens)]


def check(a, module, chance, seed, folder):
    """-> compared rounds, accepted tokens, rounds after a near tie, candidates."""
    shape = random_shape(chance, seed)
    write_pair(folder, shape)
    draft, target = load(module, folder, shape)
    prompts = [([chance.randrange(shape.vocab - 1) for _ in range(chance.randint(1, 40))], chance.randint(10, 50))
               for _ in range(2)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"id": f"p{i}", "input_ids": ids, "gen_length": n}) + "\n"
                                                  for i, (ids, n) in enumerate(prompts)))
    run(a.binary, "capture", folder / "target", "--draft", folder / "draft", "--prompts", folder / "prompts.jsonl",
        "-o", folder / "ours.h5", "--record", "trajectory", "--dtype", "float32", "--threads", 1, "-q", "--no-stop",
        "--no-draft-cost")
    totals = np.zeros(4, int)
    for i, (prompt, count) in enumerate(prompts):
        theirs, answer = official_rounds(module, draft, target, prompt, count + 2 * shape.block_size)
        ours, text = our_rounds(folder, i)
        assert text == answer[:count], (seed, shape, text, answer)
        for number, (mine, his) in enumerate(zip(ours, theirs)):
            where = (seed, i, number, shape)
            if his["gap"] < NEAR_TIE:
                totals[2] += len(ours) - number
                break
            assert mine["drafted"] == his["drafted"] and mine["accepted"] == his["accepted"], (where, mine, his)
            if "candidates" in his:
                for slot, (tokens, scores) in enumerate(zip(his["candidates"], his["scores"])):
                    theirs_by = dict(zip(tokens, scores))
                    ours_by = dict(zip(mine["candidates"][slot], mine["scores"][slot]))
                    assert theirs_by.keys() == ours_by.keys(), (where, slot, theirs_by, ours_by)
                    size = max(1.0, *map(abs, theirs_by.values()))
                    far = [t for t in ours_by if abs(theirs_by[t] - ours_by[t]) >= TOLERANCE * size]
                    assert not far, (where, theirs_by, ours_by)
                    totals[3] += len(tokens)
            totals[:2] += 1, mine["accepted"]
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("repository", type=pathlib.Path, help="work tree of z-lab/dflash")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    torch.set_num_threads(1)
    module, totals = official(a.repository), np.zeros(4, int)
    module.DynamicCache = __import__("transformers").DynamicCache  # as this version of the loop expects it
    module._cuda_time = time.perf_counter
    with tempfile.TemporaryDirectory(prefix="dflash2-") as name:
        for seed in range(a.seed, a.seed + a.pairs):
            totals += check(a, module, random.Random(seed), seed, pathlib.Path(name) / str(seed))
    print(f"{a.pairs} pairs, {totals[0]} rounds, {totals[1]} drafts accepted, {totals[3]} candidates: no difference; "
          f"{totals[2]} rounds from a near tie on left out")


if __name__ == "__main__":
    main()
