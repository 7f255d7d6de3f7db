"""WINO, pass by pass, against a float64 decoder written from its rules: canvas and shadow block in one dense
attention, what a step fills and what it takes back; a replay of the run; what refuses to run with it."""

import pathlib
import random

import harness

harness.start()

import attention_math as am  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from canvas_checkpoints import SPECS, spec_of, write_checkpoint  # noqa: E402
from oracle_rules import Margin  # noqa: E402
from trace_file import Trace  # noqa: E402

# prompt length, gen length, block length
SHAPES = [(7, 16, 8), (19, 32, 32), (3, 24, 12)]
THRESHOLDS = [(0.25, 0.4), (0.15, 0.3), (0.2, 0.9), (0.6, 0.9)]
TOO_NEAR, TOO_NEAR_LOGIT = 5e-5, 2e-4


def forward(model, tokens, begin, size, mask):
    """-> logits of the canvas, and of `size` masks at the block's positions after it."""
    length = len(tokens)
    ids = list(tokens) + [mask] * size
    positions = list(range(length)) + list(range(begin, begin + size))
    sees = torch.ones(length + size, length + size, dtype=torch.bool)
    sees[:length, length:] = False
    for i in range(size):
        sees[length + i, begin + i] = False
    hidden = model.w["embed"][torch.tensor(ids)]
    for layer in model.w["layers"]:
        x = model.rms(hidden, layer["norm1"])
        q = model.heads(layer, "q", x, positions)
        k, v = model.heads(layer, "k", x, positions), model.heads(layer, "v", x)
        z = am.attend(q, k, v, model.spec["head_dim"] ** -0.5, sees)[0]
        hidden = hidden + z.transpose(0, 1).flatten(1) @ layer["o"].T
        hidden = hidden + model.mlp(layer, model.rms(hidden, layer["norm2"]))
    logits = model.logits(hidden)
    return logits[:length], logits[length:]


def decode(model, prompt, mask, gen_length, size, threshold, back):
    """-> steps (decided, taken back, confidence of the masks), tokens, and the margins of all choices."""
    tokens = list(prompt) + [mask] * gen_length
    margin, logit_margin = Margin(), Margin()
    steps = []
    for begin in range(len(prompt), len(tokens), size):
        last_accepted = 30
        for _ in range(size):  # a position whose best token is [MASK] stays one
            if mask not in tokens[begin:begin + size]:
                break
            logits, shadow = forward(model, tokens, begin, size, mask)
            p, second = logits.softmax(-1), shadow.softmax(-1)
            masks = [i for i in range(size) if tokens[begin + i] == mask]
            top = {i: p[begin + i].max(-1) for i in masks}
            sure = {i: float(top[i].values) for i in masks}
            for i in masks:
                two = logits[begin + i].topk(2).values
                logit_margin.of(float(two[0] - two[1]))
                margin.of(sure[i] - threshold)
            ranked = sorted(masks, key=lambda i: (-sure[i], i))
            passing = [i for i in ranked if sure[i] > threshold]
            most = min(max(int(np.float32(len(masks)) * np.float32(0.7)), 5), 20)
            count = min(len(passing), most) if passing else 1
            if 0 < count < len(ranked):
                margin.of(sure[ranked[count - 1]] - sure[ranked[count]])
            filled = ranked[:count]
            revoked = []
            if count > 1:
                held = {i: float(second[i, tokens[begin + i]]) for i in range(size) if i not in masks}
                margin.of(*[c - back for c in held.values()])
                doubted = sorted((i for i in held if held[i] < back), key=lambda i: (held[i], i))
                if len(doubted) >= last_accepted:
                    kept = last_accepted - 1
                    if 0 < kept < len(doubted):
                        margin.of(held[doubted[kept]] - held[doubted[kept - 1]])
                    doubted = doubted[:kept]
                revoked = [(begin + i, tokens[begin + i], held[i]) for i in sorted(doubted)]
            last_accepted = count
            decided = {begin + i: int(top[i].indices) for i in filled if int(top[i].indices) != mask}
            for position, token in decided.items():
                tokens[position] = token
            for position, _, _ in revoked:
                tokens[position] = mask
            steps.append((begin, decided, revoked, {i: (int(top[i].indices), sure[i]) for i in masks}))
    return steps, tokens, margin.value, logit_margin.value


class Totals:
    runs = steps = revoked = near = 0
    largest = 0.0


def same(where, ours, expected):
    harness.require(ours == expected, f"{where}: {ours}, expected {expected}")


def compare(where, trace, steps, prompt, mask):
    rows = [r for r in trace.rows_of(0) if trace.rows("/steps/kind")[r] == 1]
    same(f"{where}, passes", len(rows), len(steps))
    end = trace.rows("/frames/revoke_end")
    for row, (begin, decided, revoked, masks) in zip(rows, steps):
        at = f"{where}, row {row}"
        positions, tokens, confidence = trace.delta(row)
        changed = {**decided, **{p: mask for p, _, _ in revoked}}
        same(at, {len(prompt) + p: t for p, t in zip(positions, tokens)}, changed)
        part = slice(int(end[row - 1]) if row else 0, int(end[row]))
        taken = [len(prompt) + int(p) for p in trace.file["/frames/revoke_position"][part]]
        same(f"{at}, taken back", taken, [p for p, _, _ in revoked])
        same(f"{at}, tokens taken back", trace.file["/frames/revoke_token"][part].tolist(),
             [t for _, t, _ in revoked])
        pairs = list(zip(trace.file["/frames/revoke_confidence"][part], [c for _, _, c in revoked]))
        for i, (token, sure) in masks.items():
            same(f"{at}, best token of {i}", int(trace.rows("/prediction/token")[row][i]), token)
            pairs.append((trace.rows("/prediction/confidence")[row][i], sure))
        Totals.largest = max([Totals.largest] + [abs(float(a) - b) for a, b in pairs])
        harness.require(Totals.largest < 1e-4, f"{at}: a probability differs by {Totals.largest}")
        Totals.steps += 1
        Totals.revoked += len(revoked)


def capture(work, name, prompt, shape, *more, expect=0):
    return harness.run("capture", work / name, "--input-ids", ",".join(map(str, prompt)), "--gen-length", shape[1],
                       "--block-length", shape[2], "--no-stop", "--dtype", "float32", "--threads", 1, "--quiet",
                       "--force", *more, expect=expect)


def run(work, name, model, shape, thresholds, seed):
    spec = spec_of(name)
    draw = random.Random(seed)
    prompt = [draw.randrange(spec["vocab"] - 4) for _ in range(shape[0])]
    steps, tokens, margin, logit_margin = decode(model, prompt, spec["mask"], *shape[1:], *thresholds)
    if margin < TOO_NEAR or logit_margin < TOO_NEAR_LOGIT:
        Totals.near += 1
        return False
    said = capture(work, name, prompt, shape, "--strategy",
                   f"wino,threshold={thresholds[0]},threshold_back={thresholds[1]}", "--record", "summary", "-o",
                   work / "run.h5")
    decided = sum(t != spec["mask"] for t in tokens[len(prompt):])
    harness.require(f" {decided} token" in said, f"{name}: expected {decided} tokens, capture says {said}")
    compare(f"{name}, {shape}, {thresholds}, seed {seed}", Trace(work / "run.h5"), steps, prompt, spec["mask"])
    Totals.runs += 1
    return True


def check_replay(work, name):
    """The steps of a recorded run, tokens taken back among them, under another policy."""
    harness.run("capture", work / name, "--replay", work / "run.h5", "-o", work / "again.h5", "--force", "--quiet",
                "--record", "summary", "--policy", "flashblock,tau=1", "--dtype", "float32", "--threads", 1,
                "--block-length", SHAPES[-1][2])
    first, second = Trace(work / "run.h5"), Trace(work / "again.h5")
    for a, b in zip(first.rows_of(0), second.rows_of(0)):
        same(f"replay, row {a}", second.delta(b)[:2], first.delta(a)[:2])
    for name in ("position", "token"):
        same("replay, taken back", second.file[f"/frames/revoke_{name}"][:].tolist(),
             first.file[f"/frames/revoke_{name}"][:].tolist())


def main():
    with harness.temporary_folder() as folder:
        work = pathlib.Path(folder)
        names = [name for name in SPECS if spec_of(name)["family"] == "llada"]
        for n, name in enumerate(names):
            model = write_checkpoint(work / name, name)
            for s, shape in enumerate(SHAPES):
                for t, thresholds in enumerate(THRESHOLDS):
                    found = any(run(work, name, model, shape, thresholds, 100 * n + 10 * s + t + 1000 * i)
                                for i in range(40))
                    harness.require(found, f"{name}, {shape}, {thresholds}: no prompt without a near tie")
        harness.require(Totals.revoked > 50, f"only {Totals.revoked} tokens taken back")
        check_replay(work, names[-1])
        dream = next(name for name in SPECS if spec_of(name)["family"] == "dream")
        write_checkpoint(work / dream, dream)
        wino = ("--strategy", "wino", "-o", work / "no.h5")
        capture(work, dream, [1, 2, 3], SHAPES[0], *wino, expect=2)
        capture(work, names[0], [1, 2, 3], SHAPES[0], *wino, "--cache", "dual", expect=2)
    print(f"{Totals.runs} runs, {Totals.steps} steps equal, {Totals.revoked} tokens taken back; largest difference of "
          f"a probability {Totals.largest:.1e}; {Totals.near} prompts left out for near ties")


main()
