"""LLaDA2.1's decoding as diffusers runs it (`LLaDA2Pipeline`, `BlockRefinementScheduler`) against `joint_threshold`.

python diffusers_llada2.py BLOCKSCOPE [--runs N]      # needs diffusers 0.42.1

The pipeline decodes tiny random checkpoints through the float64 models of ../checkpoints.py; what the callback sees of
every step is compared with the trace of `blockscope capture`: the block before and after, masks filled, tokens edited.
"""

import argparse
import os
import pathlib
import random
import sys
import types

arguments = argparse.ArgumentParser()
arguments.add_argument("blockscope")
arguments.add_argument("--runs", type=int, default=60)
given = arguments.parse_args()
os.environ["BLOCKSCOPE_BINARY"] = given.blockscope
sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[3] / "support")]

import harness  # noqa: E402
import torch  # noqa: E402
from checkpoints import block_causal_mask, mask_id, spec_of, write_checkpoint  # noqa: E402
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline  # noqa: E402
from trace_file import Trace  # noqa: E402

TOO_NEAR, TOO_NEAR_LOGIT = 3e-5, 2e-4
SETTINGS = [dict(threshold=0.7, editing_threshold=0.5), dict(threshold=0.5, editing_threshold=0.0),  # quality, speed
            dict(threshold=0.3, editing_threshold=0.15), dict(threshold=0.2, editing_threshold=0.1, max_post_steps=2),
            dict(threshold=0.15, editing_threshold=0.3, max_post_steps=0), dict(threshold=0.9, editing_threshold=0.1)]


class Model:
    """What the pipeline asks of a model: logits of the whole window, block-causal."""

    def __init__(self, model, size):
        self.model, self.size, self.logits = model, size, None

    def __call__(self, ids, attention_mask, position_ids):
        with torch.no_grad():
            mask = block_causal_mask(ids.shape[1], self.size)
            out = self.model(ids, attention_mask=mask, position_ids=position_ids)
        self.logits = out.logits.float()
        return types.SimpleNamespace(logits=self.logits)


def official(model, prompt, shape, mask, stop, settings):
    """-> [(block, before, after, filled, edited)], the answer, and how near the decisions were."""
    length, gen_length, size, steps = shape
    wrapped = Model(model, size)
    scheduler = BlockRefinementScheduler(block_length=size)
    pipeline = LLaDA2Pipeline(model=wrapped, scheduler=scheduler, tokenizer=None)
    pipeline.set_progress_bar_config(disable=True)
    seen, near, near_logit = [], [1.0], [1.0]
    step = scheduler.step

    def watched(**values):
        sample, logits = values["sample"], values["model_output"]
        out = step(**values)
        block = wrapped.logits.shape[1] // size - 1
        rows = [p for p in range(size) if block * size + p >= length]
        two = logits[0].topk(2, -1).values
        sure = out.sampled_probs[0].tolist()
        masks = [p for p in rows if int(sample[0, p]) == mask]
        near_logit.extend((two[p, 0] - two[p, 1]).item() for p in rows)
        near.extend(abs(sure[p] - values["threshold"]) for p in masks)
        near.extend(abs(sure[p] - values["editing_threshold"]) for p in rows if p not in masks)
        ranked = sorted((sure[p] for p in masks), reverse=True)
        near.extend(a - b for a, b in zip(ranked, ranked[1:]))
        seen.append((block, sample[0].tolist(), out.prev_sample[0].tolist(),
                     sorted(out.transfer_index[0].nonzero().flatten().tolist()),
                     sorted(out.editing_transfer_index[0].nonzero().flatten().tolist())))
        return out

    scheduler.step = watched
    result = pipeline(input_ids=torch.tensor([prompt]), use_chat_template=False, gen_length=gen_length,
                      block_length=size, num_inference_steps=steps, temperature=0.0, sampling_method="greedy",
                      eos_token_id=stop, eos_early_stop=stop is not None, mask_token_id=mask, output_type="seq",
                      **settings)
    # The loop's last pass over a full block without edits changes nothing where editing is off; ours leaves it out.
    if settings["editing_threshold"] <= 0:
        seen = [one for one in seen if mask in one[1]]
    return seen, result.sequences[0].tolist(), min(near), min(near_logit)


def ours(work, folder, prompt, shape, stop, settings):
    text = ",".join(["joint_threshold"] + [f"{name}={value}" for name, value in settings.items()])
    harness.run("capture", folder, "--input-ids", ",".join(map(str, prompt)), "--gen-length", shape[1],
                "--block-length", shape[2], "--denoising-steps", shape[3], "--strategy", text, "--dtype", "float32",
                "--threads", 1, "--quiet", "--force", "-o", work / "run.h5",
                *(["--no-stop"] if stop is None else ["--stop-id", stop]))
    return Trace(work / "run.h5")


def compare(where, trace, steps, prompt, size, mask, stop):
    """-> tokens, edits, and whether ours ended after a block that holds the stop token, where the pipeline goes on to
    the next block (docs/strategies.md)."""
    rows = [r for r in trace.rows_of(0) if trace.rows("/steps/kind")[r] == 1]
    length = int(trace.file["/sequences/gen_length"][0])
    tokens = list(prompt) + [mask] * length
    edits = 0
    for row, (block, before, after, filled, edited) in zip(rows, steps):
        begin, at = block * size, f"{where}, row {row}"
        harness.require(tokens[begin:begin + size] == before, f"{at}: block {tokens[begin:begin + size]}, {before}")
        positions, new, _ = trace.delta(row)
        theirs = {begin + p: after[p] for p in filled + edited if after[p] != before[p]}
        mine = {len(prompt) + p: t for p, t in zip(positions, new)}
        harness.require(mine == theirs, f"{at}: {mine}, diffusers {theirs}")
        for position, token in mine.items():
            tokens[position] = token
        edits += len(edited)
    ended = len(rows) < len(steps) and steps[len(rows)][0] > steps[len(rows) - 1][0]
    harness.require(len(rows) == len(steps) or ended, f"{where}: {len(rows)} steps, diffusers has {len(steps)}")
    block = tokens[len(prompt):(steps[len(rows) - 1][0] + 1) * size]
    harness.require(not ended or stop in block, f"{where}: ended after {len(rows)} of {len(steps)} steps, {block}")
    return tokens, edits, ended


def main():
    counts = dict(runs=0, steps=0, edits=0, stopped=0, near=0) | {"ended after a block": 0}
    with harness.temporary_folder() as folder:
        work = pathlib.Path(folder)
        models = {name: (spec_of(name), write_checkpoint(work / name, spec_of(name)))
                  for name in ("sdar-g2", "sdar-g3-tied", "llada2-groups", "llada2-one-expert")}
        draw = random.Random(5)
        while counts["runs"] < given.runs:
            name = draw.choice(list(models))
            spec, model = models[name]
            size = draw.choice((4, 8, 12))
            generated = draw.randint(5, 30)
            # The pipeline lowers the steps to the length of the answer (docs/strategies.md, minimal_topk).
            shape = (draw.randint(1, 20), generated, size, draw.randint(1, min(size, generated)))
            settings = draw.choice(SETTINGS)
            prompt = [draw.randrange(spec["vocab"] - 6) for _ in range(shape[0])]
            # The pipeline doesn't end within a block if the prompt holds the stop token (docs/strategies.md).
            tokens = [token for token in range(spec["vocab"] - 6) if token not in prompt]
            stop = draw.choice((None, draw.choice(tokens)))
            steps, answer, near, near_logit = official(model, prompt, shape, mask_id(spec), stop, settings)
            if near < TOO_NEAR or near_logit < TOO_NEAR_LOGIT:
                counts["near"] += 1
                continue
            where = f"{name}, {shape}, {settings}, stop {stop}"
            trace = ours(work, work / name, prompt, shape, stop, settings)
            tokens, edits, ended = compare(where, trace, steps, prompt, size, mask_id(spec), stop)
            mine = tokens[len(prompt):][:shape[1]]
            end = answer.index(stop) + 1 if stop in answer else len(answer)  # the pipeline cuts its text there
            harness.require(mine[:end] == answer[:end], f"{where}: {mine}, diffusers {answer}")
            counts["runs"] += 1
            counts["steps"] += int((trace.rows("/steps/kind") == 1).sum())
            counts["edits"] += edits
            counts["stopped"] += stop is not None and stop in answer
            counts["ended after a block"] += ended
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


main()
