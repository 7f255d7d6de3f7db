"""Plain Llama, Qwen2, Qwen3, Qwen3-MoE and Nemotron run autoregressively: greedy tokens, their probabilities and the stop rule against
transformers without a cache, one token at a time; batches of unequal prompts."""

import json
import pathlib

import harness
import torch
from checkpoints import spec_of, write_checkpoint
from trace_file import Trace

NEAR_TIE = 1e-4  # in logits
LENGTHS, GEN_LENGTH = [1, 5, 12, 30], 16


def greedy(model, prompt, stop_ids):
    tokens, confidence, margin = list(prompt), [], float("inf")
    for _ in range(GEN_LENGTH):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].float()
        best = logits.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        confidence.append(float(logits.softmax(-1).max()))
        tokens.append(int(logits.argmax()))
        if tokens[-1] in stop_ids:
            break
    harness.require(margin > NEAR_TIE, f"a near tie of {margin:.1e}; choose another seed")
    return tokens[len(prompt):], confidence


def check(folder, name, stop_from):
    spec = spec_of(name)
    model = write_checkpoint(folder / name, spec)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, spec["vocab"], (n,), generator=generator).tolist() for n in LENGTHS]
    stop_ids = [greedy(model, prompts[2], [])[0][stop_from]] if stop_from else []
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"id": f"p{i}", "input_ids": ids}) + "\n"
                             for i, ids in enumerate(prompts)))
    flags = [flag for token in stop_ids for flag in ("--stop-id", token)]
    harness.run("capture", folder / name, "--prompts", lines, "--gen-length", GEN_LENGTH, "-o",
                folder / "ar.h5", "--force", "--quiet", "--dtype", "float32", "--threads", 1,
                "--batch-size", 3, *flags)
    trace, worst, stopped = Trace(folder / "ar.h5"), 0.0, 0
    harness.require(int(trace.file["/model"].attrs["logit_shift"]) == 1, "no logit shift")
    for i, prompt in enumerate(prompts):
        expected, confidence = greedy(model, prompt, stop_ids)
        deltas = [trace.delta(int(row)) for row in trace.rows_of(trace.names().index(f"p{i}"))]
        positions, tokens, ours = (sum((d[k] for d in deltas), []) for k in range(3))
        harness.require(positions == list(range(len(expected))), f"p{i}: positions {positions}")
        harness.require(tokens == expected, f"p{i}: {tokens}, transformers {expected}")
        worst = max([worst, *[abs(a - b) for a, b in zip(ours, confidence, strict=True)]])
        stopped += len(expected) < GEN_LENGTH
    harness.require(worst < 1e-4, f"confidence differs by {worst}")
    harness.require(bool(stop_ids) == bool(stopped), "the stop id was not reached")
    print(f"{name}: largest difference of a confidence {worst:.1e}, {stopped} stopped")


def main():
    harness.start()
    with harness.temporary_folder() as path:
        check(pathlib.Path(path), "qwen3-g2", None)
        check(pathlib.Path(path), "qwen3-linear-tied", 4)
        check(pathlib.Path(path), "qwen2-g2", 3)
        check(pathlib.Path(path), "qwen3moe-8", None)
        check(pathlib.Path(path), "llama31-g2", 2)
        check(pathlib.Path(path), "llama2-mha", None)
        check(pathlib.Path(path), "nemotron-scaled", None)


if __name__ == "__main__":
    main()
