"""`train --stage reuse` against a float64 torch program: the losses and the gradient of one step, and AdamW's update.
The program knows no packed probes. Every probe block is a sequence of its own: true tokens, then the block."""

import csv
import json
import math
import pathlib

import harness
import torch
from checkpoints import mask_id, spec_of, write_checkpoint
from safetensors.torch import load_file

BETA1, BETA2, EPSILON, DECAY, RATE = 0.9, 0.95, 1e-8, 0.05, 0.01
STREAM = (1 << 21) + (1 << 20)
BITS = (1 << 64) - 1
CASES = [
    dict(spec="sdar-g2", modules="q,k,v,o", rank=3, alpha=6, unroll=2, quota=1, start=0, threshold=0.9, weights=(0.5, 0.5)),
    dict(spec="sdar-g3-tied", modules="q,v", rank=2, alpha=2, unroll=3, quota=3, start=2, threshold=0.3, weights=(0.7, 0.2)),
    dict(spec="sdar-mqa-bias-sharded", modules="k,o", rank=4, alpha=2, unroll=4, quota=2, start=1, threshold=0.1, weights=(1.0, 0.0)),
    dict(spec="sdarmoe-16", modules="q,k,v,o", rank=2, alpha=4, unroll=2, quota=2, start=3, threshold=0.2, weights=(0.5, 1.0)),
]
NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}


class Stream:
    """SplitMix64, whose first state is a finalised number."""

    def __init__(self, number):
        self.state = self.mix(number)

    @staticmethod
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & BITS
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & BITS
        return z ^ (z >> 31)

    def between(self, low, high):
        self.state = (self.state + 0x9e3779b97f4a7c15) & BITS
        return low + self.mix(self.state) % (high - low + 1)


class Model:
    """Qwen3's layers in float64 with LoRA parts, one sequence at a time."""

    def __init__(self, spec, weights, parts=None, scale=0.0):
        self.spec, self.parts, self.scale = spec, parts or {}, scale
        self.weights = {name: w.double() for name, w in weights.items()}

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)
        if name + ".A" in self.parts:
            y = y + self.scale * (x @ self.parts[name + ".A"].T @ self.parts[name + ".B"].T)
        return y

    def norm(self, x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weights[name + ".weight"]

    def heads(self, x, name, count, norm, positions):
        rows = self.linear(x, name).view(len(x), count, self.spec["head_dim"]).transpose(0, 1)
        if norm is None:
            return rows
        half = self.spec["head_dim"] // 2
        angle = positions.double()[:, None] * self.spec["theta"] ** (-torch.arange(half).double() / half)
        a, b = self.norm(rows, norm).split(half, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def feed_forward(self, x, name):
        if name + ".gate.weight" not in self.weights:
            return self.expert(x, name)
        scores = (x @ self.weights[name + ".gate.weight"].T).softmax(-1)
        best, chosen = scores.topk(self.spec["per_token"])
        best = best / best.sum(-1, keepdim=True)
        return torch.stack([sum(share * self.expert(row, f"{name}.experts.{int(e)}") for share, e in zip(s, c))
                            for row, s, c in zip(x, best, chosen)])

    def expert(self, x, name):
        gate, up = (x @ self.weights[f"{name}.{part}_proj.weight"].T for part in ("gate", "up"))
        return (gate * gate.sigmoid() * up) @ self.weights[name + ".down_proj.weight"].T

    def run(self, tokens, first, attend):
        """Logits of the tokens at positions from `first` on. attend(layer, q, k, v) -> [heads, tokens, D]."""
        spec, positions = self.spec, torch.arange(first, first + len(tokens))
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(spec["layers"]):
            name = f"model.layers.{layer}"
            y, attn = self.norm(x, name + ".input_layernorm"), name + ".self_attn"
            q = self.heads(y, attn + ".q_proj", spec["heads"], attn + ".q_norm", positions)
            k = self.heads(y, attn + ".k_proj", spec["kv_heads"], attn + ".k_norm", positions)
            v = self.heads(y, attn + ".v_proj", spec["kv_heads"], None, positions)
            group = spec["heads"] // spec["kv_heads"]
            z = attend(layer, q / math.sqrt(spec["head_dim"]), k.repeat_interleave(group, 0), v.repeat_interleave(group, 0))
            x = x + self.linear(z.transpose(0, 1).reshape(len(tokens), -1), attn + ".o_proj")
            x = x + self.feed_forward(self.norm(x, name + ".post_attention_layernorm"), name + ".mlp")
        head = "model.embed_tokens.weight" if spec["tied"] else "lm_head.weight"
        return self.norm(x, "model.norm") @ self.weights[head].T

    @torch.no_grad()
    def prefix(self, tokens, block):
        """Keys and values of every layer, block-causal."""
        kept = []
        place = torch.arange(len(tokens)) // block
        hidden = torch.where(place[:, None] >= place[None], 0.0, -math.inf).double()

        def attend(_, q, k, v):
            kept.append((k, v))
            return (q @ k.transpose(1, 2) + hidden).softmax(-1) @ v

        self.run(tokens, 0, attend)
        return kept

    def probe(self, tokens, first, prefix, pairs=None):
        """Log probabilities of a block, and the pair (A_out, L_out) of every layer. `pairs`: reused ones."""
        made = []

        def attend(layer, q, k, v):
            keys, values = prefix[layer]
            scores = q @ keys.transpose(1, 2)
            out, lse = pairs[layer] if pairs else (scores.softmax(-1) @ values, scores.logsumexp(-1))
            made.append((out, lse))
            inside = q @ k.transpose(1, 2)
            both = torch.stack([lse, inside.logsumexp(-1)]).softmax(0)[..., None]
            return both[0] * out + both[1] * (inside.softmax(-1) @ v)

        return self.run(tokens, first, attend).log_softmax(-1), made


def decided(tokens, log_p, case, mask):
    """The teacher's tokens above the threshold, at most the quota's best ones, or the best one."""
    masked = [i for i in range(len(tokens)) if tokens[i] == mask]
    best = sorted(masked, key=lambda i: -float(log_p[i].max()))
    sure = [i for i in best if math.exp(float(log_p[i].max())) > case["threshold"]] or best[:1]
    after = tokens.clone()
    for i in sure[:case["quota"]]:
        after[i] = log_p[i].argmax()
    return after


def losses(teacher, student, texts, case, block, mask):
    """Sums of both divergences, agreements and positions over all probes."""
    sums, count, agree = [0.0, 0.0], 0, [0, 0]
    for text in texts:
        last = (len(text) // block - 1) * block
        of_teacher, of_student = (m.prefix(text[:last], block) for m in (teacher, student))
        for first in range(block, last + 1, block):
            of = lambda kept: [(k[:, :first], v[:, :first]) for k, v in kept]
            tokens = torch.full((block,), mask)
            for _ in range(case["start"] + 1):
                before = tokens
                with torch.no_grad():
                    known, _ = teacher.probe(before, first, of(of_teacher))
                tokens = decided(before, known, case, mask)
            tokens = before
            _, pairs = student.probe(tokens, first, of(of_student))
            for _ in range(1, case["unroll"]):
                tokens = decided(tokens, known, case, mask)
                masked = tokens == mask
                if not masked.any():
                    break
                with torch.no_grad():
                    known, _ = teacher.probe(tokens, first, of(of_teacher))
                for i, kept in enumerate((pairs, None)):
                    log_p, _ = student.probe(tokens, first, of(of_student), kept)
                    sums[i] = sums[i] + (known.exp() * (known - log_p))[masked].sum()
                    agree[i] += int((known.argmax(-1) == log_p.argmax(-1))[masked].sum())
                count += int(masked.sum())
    return [s / count for s in sums], [a / count for a in agree]


def drawn_texts(texts, step, seed, documents, context, block, case):
    """The batch of a step: which texts, and where each is cut; its quota and the teacher's steps before the first."""
    stream = Stream(((seed + STREAM) << 40) | step)
    stream.between(0, 0)  # the only curriculum level
    chosen = []
    for _ in range(documents):
        text = texts[stream.between(0, len(texts) - 1)]
        chosen.append(text[:min(len(text), max(2 * block, stream.between(context // 2 + 1, context)))])
    return chosen, {"quota": stream.between(1, case["quota"]), "start": stream.between(0, case["start"])}


def flat(parts, names):
    return torch.cat([parts[name].flatten() for name in names])


def check_case(folder, number, case):
    spec, seed, steps = spec_of(case["spec"]), 7 + number, 3
    block, mask = spec["block_length"], mask_id(spec)
    model = folder / f"model{number}"
    write_checkpoint(model, spec)
    harness.write_tokenizer(model)
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, spec["vocab"], (n,), generator=generator) for n in (2 * block + 1, 41, 70)]
    data = folder / f"texts{number}.jsonl"
    data.write_text("".join(json.dumps({"input_ids": text.tolist()}) + "\n" for text in texts))
    states = []
    for count in (steps, steps + 1):
        out, work = folder / f"out{number}-{count}", folder / f"work{number}-{count}"
        harness.run("train", "--stage", "reuse", "--init", model, "--data", data, "--out", out, "--work", work, "--steps", count,
                    "--seed", seed, "--decay", 0, "--warmup", 1, "--first-context", 64, "--last-context", 64, "--batch-tokens",
                    384, "--evaluate-documents", 0, "--evaluate-every", 0, "--lora-dropout", 0, "--lora-modules",
                    case["modules"], "--lora-rank", case["rank"], "--lora-alpha", case["alpha"], "--unroll", case["unroll"],
                    "--quota", case["quota"], "--start-steps", case["start"], "--threshold", case["threshold"], "--reuse-weight", case["weights"][0],
                    "--dense-weight", case["weights"][1], "--reuse-learning-rate", RATE, "--threads", 1)
        parts = {}
        for name, part in load_file(out / "adapter_model.safetensors").items():
            module, letter = name.removeprefix("base_model.model.").removesuffix(".weight").split(".lora_")
            parts[f"{module}.{letter}"] = part.double()
        states.append((parts, {k: v.double() for k, v in load_file(work / "reuse.safetensors").items()}))
    line = list(csv.DictReader((work / "reuse.csv").open()))[steps]
    (parts, state), (after, next_state) = states
    order = [f"model.layers.{layer}.self_attn.{NAMES[letter]}.{part}" for layer in range(spec["layers"])
             for letter in case["modules"].split(",") for part in "AB"]
    harness.require(sorted(order) == sorted(parts), f"{number}: modules {sorted(parts)}")
    harness.require(torch.equal(flat(parts, order), state["weights"]), f"{number}: adapter and state differ")

    for part in parts.values():
        part.requires_grad_()
    base = load_weights(model)
    batch, drawn = drawn_texts(texts, steps, seed, 3, 64, block, case)  # 384 rows: 3 texts of 64, and their probes
    student = Model(spec, base, parts, case["alpha"] / case["rank"])
    (reuse, dense), agree = losses(Model(spec, base), student, batch, case | drawn, block, mask)
    loss = case["weights"][0] * reuse + case["weights"][1] * dense
    loss.backward()
    gradient = torch.cat([parts[name].grad.flatten() for name in order]).detach()
    norm = float(gradient.norm())
    clipped = gradient * min(1.0, 1.0 / norm)
    found = (next_state["first_moment"] - BETA1 * state["first_moment"]) / (1 - BETA1)
    worst = float((found - clipped).abs().max() / clipped.abs().max())
    for name, own in (("loss", loss), ("reuse_kl", reuse), ("dense_kl", dense), ("gradient_norm", norm)):
        own = own if isinstance(own, float) else own.item()
        harness.require(abs(float(line[name]) / own - 1) < 2e-4, f"{number}: {name} {line[name]}, oracle {own}")
    for name, own in (("reuse_agreement", agree[0]), ("dense_agreement", agree[1])):
        harness.require(abs(float(line[name]) - own) < 1e-3, f"{number}: {name} {line[name]}, oracle {own}")
    harness.require(worst < 2e-4, f"{number}: gradient: relative error {worst}")

    weights = state["weights"].clone().requires_grad_()
    adam = torch.optim.AdamW([weights], lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=DECAY)
    adam.state[weights] = {"step": torch.tensor(float(steps)), "exp_avg": state["first_moment"].clone(),
                           "exp_avg_sq": state["second_moment"].clone()}
    weights.grad = clipped
    adam.step()
    moved = float((flat(after, order) - weights.detach()).abs().max().detach())
    harness.require(moved < 2e-3 * RATE, f"{number}: AdamW: difference {moved} at a rate of {RATE}")
    return worst


def load_weights(folder):
    weights = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    return weights


def main():
    harness.start()
    with harness.temporary_folder() as folder:
        worst = [check_case(pathlib.Path(folder), number, case) for number, case in enumerate(CASES)]
    print("gradients, largest relative errors:", ", ".join(f"{w:.1e}" for w in worst))


if __name__ == "__main__":
    main()
