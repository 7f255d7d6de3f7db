"""DiffusionGemma: whole captures, row by row, with transformers' own encoder and decoder over the same canvases, its
sampler's acceptance and its stop rule; the attention of every layer in float64 from the official queries, keys and
values; then transformers' whole generate() with our draws, and a replay."""

import json
import pathlib
import sys

import harness
import numpy as np
import torch
from gemma_checkpoints import SPECS, OfficialCanvas, entropy_of, log_softmax, spec_of, temperature_of, write_checkpoint
from safetensors.torch import save_file
from trace_file import Trace
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (DiffusionGemmaGenerationConfig,
                                                                            EntropyBoundSampler,
                                                                            EntropyBoundSamplerConfig,
                                                                            StableAndConfidentStoppingCriteria)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import attention_math  # noqa: E402

PREFILL, DENOISE, COMMIT = 0, 1, 2
LENGTHS = (4, 9, 21)
# What generation_config.json says; transformers' defaults are 48, 0.4, 0.8, 1, 0.005 and 0.1.
STEPS, T_MIN, T_MAX, STABLE, SURE, BOUND = 7, 0.3, 0.9, 1, 0.004, 0.12
SET_SIZE = 4
NOISE = -np.inf
FAR = 1e-4  # nearer decisions would be near-ties; the seeds have none


def region_names(trace):
    names = trace.file.attrs["regions"]
    return (names.decode() if isinstance(names, bytes) else str(names)).split(",")


class Canvas:
    """The tokens of a sequence, from the file's deltas."""

    def __init__(self, trace, prompt, length):
        self.trace, self.prompt, self.length = trace, prompt, length
        self.tokens, self.noise = {}, {}

    def take(self, row):
        position, token, confidence = self.trace.delta(row)
        for p, t, c in zip(position, token, confidence):
            self.tokens[p], self.noise[p] = t, c == NOISE
        return position, token, confidence

    def block(self, index, of=None):
        of = self.tokens if of is None else of
        return [of[p] for p in range(index * self.length, (index + 1) * self.length)]


def own(array, heads, dim):
    """The layer's own part of a padded array [heads, ..., dim]; the rest must be padding."""
    array = np.asarray(array, np.float64)
    harness.require(np.isnan(array[heads:]).all() and np.isnan(array[..., dim:]).all(), "padding holds values")
    return array[:heads, ..., :dim]


class Worst(dict):
    def see(self, what, ours, theirs, scale=None):
        size = np.abs(theirs).max() if scale is None else scale
        error = float(np.abs(np.asarray(ours, np.float64) - theirs).max() / max(size, 1e-30))
        self[what] = max(self.get(what, 0.0), error)
        harness.require(error < 2e-4, f"{what}: differs by {error:.2e} of the largest")


def compare_attention(trace, row, spec, official, n, canvas, worst):
    for layer, (query, key, value, scale) in enumerate(official.calls):
        heads, dim, kv = query.shape[0], query.shape[2], key.shape[0]
        seen = key.shape[1] - spec["canvas"]
        window = spec["window"] if spec["kinds"][layer] == "s" else 0
        harness.require(seen == (min(n, window - 1) if window else n), "the official cache holds other keys")
        first = n - seen
        outer = attention_math.attend(query, key[:, :seen], value[:, :seen], scale)
        inner = attention_math.attend(query, key[:, seen:], value[:, seen:], scale)
        at = lambda path: trace.rows(path)[row, layer]
        worst.see("query", own(at("/query/query"), heads, dim), query)
        worst.see("A_out", own(at("/attention/external"), heads, dim), outer[0])
        worst.see("A_in", own(at("/attention/internal"), heads, dim), inner[0])
        worst.see("L_out", at("/attention/lse_external"), outer[1])
        worst.see("L_in", at("/attention/lse_internal"), inner[1])
        worst.see("block keys", own(at("/kv/key"), kv, dim), key[:, seen:])
        worst.see("block values", own(at("/kv/value"), kv, dim), value[:, seen:])
        mean = attention_math.mean_probability(attention_math.scores_of(query, key[:, :seen], scale), outer[1], kv)
        sets = at("/sets/topk")
        harness.require((sets[kv:] == -1).all(), "a KV head that the layer lacks has a set")
        for head in range(kv):
            best = np.argsort(-mean[head], kind="stable")[:SET_SIZE] + first
            harness.require(sets[head, :best.size].tolist() == best.tolist(), f"layer {layer}: sets {sets}, {best}")
        expert, weight = (part[0] if part.dim() == 3 else part for part in official.routed[layer])
        order = np.argsort(-weight.numpy(), axis=-1, kind="stable")
        harness.require((at("/router/expert") == np.take_along_axis(expert.numpy(), order, -1)).all(), "experts differ")
        worst.see("router weights", at("/router/weight"), np.take_along_axis(weight.double().numpy(), order, -1), 1.0)
        region = at("/spread/region")
        harness.require(np.abs(region.sum(-1) - 1).max() < 1e-4, "the weights of all regions are not 1")
        both = np.exp(np.stack([outer[1], inner[1]]) - np.logaddexp(outer[1], inner[1]))
        masks = region_names(trace).index("masks")
        whole = np.logaddexp(outer[1], inner[1])
        weights = np.exp(attention_math.scores_of(query, key[:, seen:], scale) - whole[..., None])
        worst.see("weight of noise", region[:, masks], weights[..., canvas].sum(-1).mean(-1), 1.0)
        worst.see("external mass", trace.rows("/summary/external_mass")[row, layer], both[0].mean(-1), 1.0)


def compare_sequence(trace, index, spec, model, worst):
    """-> what a run of generate() needs to draw the same: noise and drawn tokens by canvas and step."""
    prompt, size = trace.prompt(index), spec["canvas"]
    canvas = Canvas(trace, prompt, size)
    official = OfficialCanvas(model)
    sampler = EntropyBoundSampler(EntropyBoundSamplerConfig(entropy_bound=BOUND), size, spec["vocab"], STEPS)
    draws, last_input, length = [], None, 0
    for row in trace.rows_of(index):
        kind, n = int(trace.rows("/steps/kind")[row]), int(trace.rows("/steps/context_length")[row])
        block, step = int(trace.rows("/steps/block")[row]), int(trace.rows("/steps/step")[row])
        where = f"sequence {index}, block {block}, step {step}"
        if kind != DENOISE:
            length = len(prompt) if kind == PREFILL else length + size
            official.encode(prompt if kind == PREFILL else canvas.block(block))
            canvas.take(row)
            start = 0 if kind == PREFILL else block + 1
            draws.append({"noise": [canvas.block(start)], "drawn": []})
            stop = StableAndConfidentStoppingCriteria(STABLE, SURE)
            before, last_input = None, None
            continue
        harness.require(n == length, f"{where}: N is {n}, expected {length}")
        tokens = canvas.block(block)
        noise = canvas.block(block, canvas.noise)
        changed = 0 if last_input is None else sum(a != b for a, b in zip(tokens, last_input))
        harness.require(int(trace.rows("/steps/changed")[row]) == changed, f"{where}: M")
        harness.require(int(trace.rows("/steps/masks_left")[row]) == sum(noise), f"{where}: masks left")
        last_input = tokens
        logits = official.step(tokens, before)
        heat = temperature_of(step, STEPS, T_MIN, T_MAX)
        before = (logits / heat).to(model.dtype)
        probability = np.exp(log_softmax(logits[0]))  # confidences are of the undivided logits
        top = probability.argmax(-1)
        harness.require(trace.rows("/prediction/token")[row].tolist() == top.tolist(), f"{where}: best tokens")
        worst.see("confidence", trace.rows("/prediction/confidence")[row], probability.max(-1), 1.0)
        compare_attention(trace, row, spec, official, n, np.array(noise), worst)
        sampler.accept_canvas(torch.tensor(tokens)[None], torch.tensor(tokens)[None], before, STEPS - step + 1)
        accepted = sampler.accepted_token_mask[0].numpy()
        entropy = np.sort(entropy_of(before[0]))
        smaller = np.cumsum(entropy) - entropy
        last = int(accepted.sum())  # the last one accepted and the first that is not
        gap = 1.0 if last == size else entropy[last] - entropy[last - 1]
        harness.require(np.abs(smaller - BOUND).min() > FAR and gap > FAR, f"{where}: a near-tie")
        ended = bool(stop(torch.tensor(top)[None], before)[0]) or step == STEPS
        position, token, confidence = canvas.take(row)
        after, taken = canvas.block(block), ~np.array(canvas.block(block, canvas.noise))
        harness.require(position == sorted(position), f"{where}: positions {position}")
        draws[-1]["drawn"].append(after)
        if ended:
            harness.require(taken.all() and after == top.tolist(), f"{where}: the canvas does not end")
            continue
        harness.require((taken == accepted).all(), f"{where}: accepted {taken}, official {accepted}")
        told = [(p - block * size, t, c) for p, t, c in zip(position, token, confidence) if c != NOISE]
        if told:
            worst.see("confidence", [c for _, _, c in told], np.array([probability[p, t] for p, t, _ in told]), 1.0)
        draws[-1]["noise"].append(after)
    return draws


def generate(model, folder, prompt, draws, spec, canvases):
    """transformers' own loop, which draws what our run drew."""
    noise = iter([one for canvas in draws for one in (*canvas["noise"], canvas["drawn"][-1])])
    drawn = iter([one for canvas in draws for one in canvas["drawn"]])
    real_noise, real_draw = EntropyBoundSampler.initialize_canvas, torch.multinomial
    EntropyBoundSampler.initialize_canvas = lambda *_args, **_kwargs: torch.tensor(next(noise))[None]
    torch.multinomial = lambda *_args, **_kwargs: torch.tensor(next(drawn))[:, None]
    try:
        out = model.generate(
            torch.tensor(prompt)[None], max_new_tokens=canvases * spec["canvas"], eos_token_id=None, pad_token_id=None,
            generation_config=DiffusionGemmaGenerationConfig.from_pretrained(folder))
    finally:
        EntropyBoundSampler.initialize_canvas, torch.multinomial = real_noise, real_draw
    return out.sequences[0, len(prompt):].tolist()


def check_spec(folder, name):
    spec = spec_of(name)
    model = write_checkpoint(folder / name, spec)
    DiffusionGemmaGenerationConfig(
        max_denoising_steps=STEPS, t_min=T_MIN, t_max=T_MAX, stability_threshold=STABLE, confidence_threshold=SURE,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=BOUND)).save_pretrained(folder / name)
    generator = torch.Generator().manual_seed(100 + spec["seed"])
    prompts = [torch.randint(0, spec["vocab"], (n,), generator=generator).tolist() for n in LENGTHS]
    lines = folder / f"{name}.jsonl"
    lines.write_text("".join(f'{{"id": "p{i}", "input_ids": {ids}}}\n' for i, ids in enumerate(prompts)))
    common = ("--prompts", lines, "--gen-length", 2 * spec["canvas"] + 1, "--no-stop",
              "--dtype", "float32", "--threads", 1, "--record", "full", "--record-router", "--set-size", SET_SIZE,
              "--array-type", "f32")
    harness.run("capture", folder / name, *common, "--seed", 7 + spec["seed"], "-o", folder / f"{name}.h5")
    trace = Trace(folder / f"{name}.h5")
    worst = Worst()
    rows = steps = 0
    for index, prompt in enumerate(prompts):
        harness.require(trace.prompt(index) == prompt, "prompts are in another order")
        draws = compare_sequence(trace, index, spec, model, worst)
        text = [token for canvas in draws for token in canvas["drawn"][-1]]
        harness.require(generate(model, folder / name, prompt, draws, spec, 3) == text, f"{name}: generate() gives another text")
        rows += len(trace.rows_of(index))
        steps += sum(len(canvas["drawn"]) for canvas in draws)
        harness.require(len(draws) == 3, f"{name}: expected 3 canvases, got {len(draws)}")
    check_replay(folder, name, common, trace)
    check_logits(folder, name, spec, model, prompts[1])
    if name in ("gemma", "gemma-sure"):
        check_policies(folder, name, (*common, "--seed", 3))
    print(f"{name:20} {rows} rows, {steps} steps of {3 * 3 * STEPS}; " +
          ", ".join(f"{what} {error:.1e}" for what, error in worst.items()))
    return steps


def check_logits(folder, name, spec, model, prompt):
    """`check` over a canvas's first step: within the tolerance, beyond it with one changed logit. Other masks are
    refused."""
    official = OfficialCanvas(model)
    official.encode(prompt)
    canvas = [(7 * i + 3) % spec["vocab"] for i in range(spec["canvas"])]
    logits = official.step(canvas, None)[0].contiguous()
    reference = folder / f"{name}.safetensors"

    def check(values, mask, expect):
        save_file({"input_ids": torch.tensor([*prompt, *canvas]), "logits": values}, reference,
                  metadata={"mask": mask, "block_length": str(spec["canvas"])})
        return harness.run("check", folder / name, "--reference", reference, "--dtype", "float32", "--tol", 1e-5,
                           "--threads", 1, expect=expect)
    check(logits, "canvas", 0)
    changed = logits.clone()
    changed[1, 2] += 1e-3 * float(logits.max() - logits.min())
    harness.require("BEYOND" in check(changed, "canvas", 1), f"{name}: a changed logit is not found")
    check(logits, "causal", 1)


def check_policies(folder, name, common):
    """A set of all keys decides as exact attention does, windows are read whole, and the reads are those of the
    rules."""
    runs = {}
    for policy in ("exact", "mage,k=400", "mage,k=3", "flashblock,tau=9"):
        path = folder / f"{name}-{policy}.h5"
        harness.run("capture", folder / name, *common, "--policy", policy, "-o", path)
        runs[policy] = Trace(path)
    deltas = {policy: [trace.delta(row)[:2] for row in range(trace.num_rows)] for policy, trace in runs.items()}
    harness.require(deltas["mage,k=400"] == deltas["exact"], f"{name}: all keys are not exact attention")
    selected = runs["mage,k=3"].rows("/attention/selected")
    kinds = np.array([kind == "f" for kind in spec_of(name)["kinds"]])
    harness.require((selected[:, ~kinds] == -1).all(), f"{name}: keys of a window were chosen")
    harness.require((selected[:, kinds] >= 0).any(), f"{name}: no keys of a global layer were chosen")
    reused = runs["flashblock,tau=9"].rows("/attention/reused")
    harness.require((reused == 1).any(), f"{name}: nothing was reused")
    recording = common.index("--record")
    for policy in ("mage,k=3", "flashblock,tau=9"):
        out = folder / "verify.json"
        harness.run("verify", folder / name, *common[:recording], "--policy", policy, "-o", out, "--force")
        own = json.loads(out.read_text())["settings"][0]
        harness.require(own["measured_equals_predicted"], f"{name}: {policy} reads other keys than its rule says")


def check_replay(folder, name, common, trace):
    arguments = [a for a in common if a not in ("--prompts", common[1], "--gen-length", common[3], "--no-stop")]
    harness.run("capture", folder / name, "--replay", folder / f"{name}.h5", *arguments, "-o",
                folder / f"{name}-again.h5")
    again = Trace(folder / f"{name}-again.h5")
    for path in ("/steps/kind", "/steps/changed", "/steps/masks_left", "/prediction/token", "/prediction/confidence",
                 "/attention/external", "/sets/topk", "/router/expert", "/frames/delta_end"):
        harness.require(np.array_equal(again.rows(path), trace.rows(path), equal_nan=path != "/router/expert"
                                       and again.rows(path).dtype.kind == "f"), f"{name}: the replay's {path} differs")
    for row in range(trace.num_rows):
        harness.require(again.delta(row) == trace.delta(row), f"{name}: the replay's frames differ at row {row}")


def main():
    harness.start()
    with harness.temporary_folder() as path:
        steps = {name: check_spec(pathlib.Path(path), name) for name in SPECS}
    harness.require(steps["gemma-sure"] < 9 * STEPS, "no canvas ended before its last step")


if __name__ == "__main__":
    main()
