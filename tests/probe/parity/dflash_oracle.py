"""Speculative decoding with a DFlash or DFlash 2 draft in float64, from its rules and with no cache of its own: the
target is transformers' Qwen3, Qwen3-MoE or Llama, the draft plain torch. Both go over everything again in every round.

A round: the draft sees one certain token and B - 1 masks, and in each of its layers the target's hidden features of
every position before the certain token; its row i drafts block position i, from 1 on. The target then chooses a token
after each of the B positions. The longest prefix of drafted tokens that it chose too is accepted, and its next choice
is certain then. With `from_anchor` the draft sees one mask less, and its row i drafts block position i + 1.

A layer with a window: the row at position p sees the positions q with p - q < window. A causal layer: no q after p.
DFlash 2, from the formulas of z-lab/dflash `dflash/model.py` at 07ebd93: convolve() is `_grouped_dynamic_convolve`,
select() is `CandidateSelector.select` without a temperature, scaled() is `compute_logits`, seen_by() is
`_attention_mask`.
"""

import dataclasses

import attention_math as am
import torch
from oracle_rules import Margin

PREFILL, DENOISE, COMMIT = 0, 1, 2


@dataclasses.dataclass
class Pair:
    target: torch.nn.Module   # float64, eager
    weights: dict             # of the draft, name: float64
    heads: int
    kv_heads: int
    theta: float
    mask: int
    block_size: int
    taps: list                # hidden states of the target that make the features: 0 is the embedding
    to_target: list | None    # the target's id of each of the draft's tokens; None: the same
    from_anchor: bool = False
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    soft_cap: float = 0.0
    conv_group: int = 0       # 0: no convolutions, and no selector
    candidates: int = 0
    windows: tuple = ()       # by layer, 0: none; empty: no layer has one
    causal: tuple = ()        # by layer, whether it is; empty: none is

    def seen_by(self, layer, count, rows):
        """-> which of the `count` keys before the block the rows see [rows, count], and of their own [rows, rows]."""
        query, key = count + torch.arange(rows)[:, None], torch.arange(count + rows)
        window = self.windows[layer] if self.windows else 0
        seen = (query - key < window) if window else torch.ones(rows, count + rows, dtype=torch.bool)
        if self.causal and self.causal[layer]:
            seen = seen & (key <= query)
        return seen[:, :count], seen[:, count:]

    @property
    def longest_round(self):
        return self.block_size + self.from_anchor

    def embed(self, tokens):
        own = self.weights.get("embed_tokens.weight")
        return (self.target.model.embed_tokens.weight if own is None else own)[tokens] * self.embedding_scale

    def logits(self, hidden):
        own = self.weights.get("lm_head.weight")
        return self.scaled(hidden @ (self.target.lm_head.weight if own is None else own).T)

    def scaled(self, logits):
        logits = logits * self.output_multiplier
        return torch.tanh(logits / self.soft_cap) * self.soft_cap if self.soft_cap else logits


@dataclasses.dataclass
class LayerPass:
    hidden: torch.Tensor          # [B, hidden], the layer's input
    query: torch.Tensor           # [H, B, D]
    key: torch.Tensor             # [K, B, D], the block's own
    value: torch.Tensor
    context_key: torch.Tensor     # [K, N, D], of the features
    context_value: torch.Tensor
    seen: tuple                   # [B, N] and [B, B] bool: keys that each row sees


@dataclasses.dataclass
class Row:
    kind: int
    block_start: int
    context: int
    masks_left: int = 0
    step: int = 0
    decided: list = dataclasses.field(default_factory=list)  # (position after the prompt, token, confidence)
    stored: tuple = (0, 0)                                    # positions whose keys a prefill or commit stores
    accepted: int = -1
    verdict: dict = dataclasses.field(default_factory=dict)   # of a draft's pass, name under /draft: [B - 1]
    drafted: list = dataclasses.field(default_factory=list)
    confidence: list = dataclasses.field(default_factory=list)
    candidates: dict = dataclasses.field(default_factory=dict)  # of a selector, name under /draft: [B - 1] (or [C])
    layers: list = dataclasses.field(default_factory=list)

    @property
    def queries(self):
        """Rows of a draft's pass."""
        return len(self.layers[0].hidden) if self.layers else 0


@dataclasses.dataclass
class Run:
    rows: list
    answer: list      # by position after the prompt; None: not decided
    reason: str
    margin: float


def rms_norm(x, weight, eps=1e-6):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, positions, theta):
    """Rotates each pair (i, i + D/2) of x [heads, T, D]."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def features_of(pair, states):
    """states: the target's hidden states, [T, hidden] each -> the draft's context features [T, hidden]."""
    taps = torch.cat([states[i] for i in pair.taps], -1)
    return rms_norm(taps @ pair.weights["fc.weight"].T, pair.weights["hidden_norm.weight"])


def convolve(x, delta, base, group):
    """x [T, hidden] of a block, delta [T, taps, groups], base [taps, hidden]: each row with those before it."""
    out = torch.zeros_like(x)
    for tap in range(base.shape[0]):
        before = torch.cat([torch.zeros_like(x[:tap]), x[:len(x) - tap]])
        out = out + (base[tap] + delta[:, tap].repeat_interleave(group, -1)) * before
    return out


def around(pair, name, x, part):
    """`part` of x, with the convolution of the rows that enter it and that of the rows that leave it."""
    base = pair.weights.get(f"{name}.base_kernel")
    if base is None:
        return part(x)
    groups = x.shape[-1] // pair.conv_group
    delta = (x @ pair.weights[f"{name}.kernel_projection.weight"].T).view(len(x), 2, base.shape[1], groups)
    return convolve(part(convolve(x, delta[:, 0], base[0], pair.conv_group)), delta[:, 1], base[1], pair.conv_group)


def select(pair, hidden, logits, certain, margin):
    """-> tokens of the path, and what the selector had to choose from."""
    weights = {name.split(".")[1]: weight for name, weight in pair.weights.items() if name.startswith("candidate_")}
    values, tokens = logits.topk(pair.candidates, -1)
    if pair.candidates < logits.shape[-1]:  # otherwise another set or order would be candidates
        best = logits.topk(pair.candidates + 1, -1).values
        margin.of(*(best[:, :-1] - best[:, 1:]).flatten().tolist())
    path, scores, chosen, before = [], [], [], certain
    for slot in range(len(hidden)):
        gate = weights["predecessor_codebook"][before] * (weights["hidden_projection"] @ hidden[slot])
        score = values[slot] + weights["successor_codebook"][tokens[slot]] @ gate
        best = score.topk(2).values if len(score) > 1 else None
        if best is not None:
            margin.of(float(best[0] - best[1]))
        chosen.append(int(score.argmax()))
        before = int(tokens[slot, chosen[-1]])
        path.append(before)
        scores.append(score.tolist())
    probability = logits.softmax(-1).gather(-1, tokens).tolist()
    return path, {"candidate_token": tokens.tolist(), "candidate_probability": probability, "candidate_score": scores,
                  "candidate_chosen": chosen}


def draft_pass(pair, features, tokens):
    """features [N, hidden], tokens [B] at the positions from N on -> LayerPass of every layer, hidden [B, hidden]."""
    weights, count = pair.weights, features.shape[0]
    inside = count + torch.arange(len(tokens))
    hidden, passes = pair.embed(torch.tensor(tokens)), []
    num_layers = len({name.split(".")[1] for name in weights if name.startswith("layers.")})
    for layer in range(num_layers):
        name = f"layers.{layer}."

        def split(x, part, heads):
            return (x @ weights[f"{name}self_attn.{part}.weight"].T).unflatten(-1, (heads, -1)).transpose(0, 1)

        def keys(x, positions):
            normed = rms_norm(split(x, "k_proj", pair.kv_heads), weights[name + "self_attn.k_norm.weight"])
            return rotate(normed, positions, pair.theta)

        def attention(x):
            query = rotate(rms_norm(split(x, "q_proj", pair.heads), weights[name + "self_attn.q_norm.weight"]), inside,
                           pair.theta)
            seen = LayerPass(hidden, query, keys(x, inside), split(x, "v_proj", pair.kv_heads),
                             keys(features, torch.arange(count)), split(features, "v_proj", pair.kv_heads),
                             pair.seen_by(layer, count, len(tokens)))
            passes.append(seen)
            key = torch.cat([seen.context_key, seen.key], 1)
            value = torch.cat([seen.context_value, seen.value], 1)
            out = am.attend(query, key, value, query.shape[-1] ** -0.5, torch.cat(seen.seen, 1))[0]
            out = out.transpose(0, 1).flatten(1)
            return out @ weights[name + "self_attn.o_proj.weight"].T

        def mlp(x):
            gate = torch.nn.functional.silu(x @ weights[name + "mlp.gate_proj.weight"].T)
            return (gate * (x @ weights[name + "mlp.up_proj.weight"].T)) @ weights[name + "mlp.down_proj.weight"].T

        x = rms_norm(hidden, weights[name + "input_layernorm.weight"])
        hidden = hidden + around(pair, name + "attention_conv", x, attention)
        x = rms_norm(hidden, weights[name + "post_attention_layernorm.weight"])
        hidden = hidden + around(pair, name + "mlp_conv", x, mlp)
    return passes, rms_norm(hidden, weights["norm.weight"])


@torch.no_grad()
def run_target(pair, tokens):
    """-> logits [T, V], hidden states [T, hidden] from the embedding's to that after the final norm."""
    output = pair.target(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return output.logits[0].double(), [state[0].double() for state in output.hidden_states]


def judge(pair, draft_logits, target_logits, drafted, chosen):
    """What each model predicts for the other's tokens; draft_logits [B - 1, draft V], target_logits [B, V]."""
    own = list(range(draft_logits.shape[-1])) if pair.to_target is None else pair.to_target
    names = ("target_token", "target_rank_under_draft", "target_probability_under_draft", "drafted_rank_under_target", "drafted_probability_under_target", "draft_entropy",
             "target_entropy")
    said = {name: [] for name in names}
    for i, (mine, theirs) in enumerate(zip(drafted, chosen, strict=True)):
        p, q = draft_logits[i].softmax(-1), target_logits[i].softmax(-1)
        at = own.index(theirs) if theirs in own else None
        values = (theirs, -1 if at is None else int((p > p[at]).sum()), float("nan") if at is None else float(p[at]),
                  int((q > q[mine]).sum()), float(q[mine]), float(-(p * p.log()).sum()), float(-(q * q.log()).sum()))
        for name, value in zip(names, values, strict=True):
            said[name].append(value)
    return said


@torch.no_grad()
def decode(pair, prompt, gen_length, block_length=None, stop_ids=(), chunk=512):
    block, end = block_length or pair.longest_round, len(prompt) + gen_length
    margin, rows, tokens = Margin(), [], list(prompt)

    def best(logits):
        top = logits.topk(2, -1).values
        margin.of(*(top[..., 0] - top[..., 1]).reshape(-1).tolist())
        return logits.argmax(-1).tolist(), logits.softmax(-1).max(-1).values.tolist()

    def finished():
        if any(token in stop_ids for token in tokens[len(prompt):end]):
            return "stop"
        return "length" if len(tokens) > end else None

    for begin in range(0, len(prompt), chunk):
        rows.append(Row(PREFILL, begin, begin, stored=(begin, min(begin + chunk, len(prompt)))))
    (token,), (confidence,) = best(run_target(pair, tokens)[0][-1:])
    rows[-1].decided = [(0, token, confidence)]
    tokens.append(token)
    while not finished():
        start, drafted, drafting = len(tokens) - 1, [], None
        features = features_of(pair, run_target(pair, tokens[:start])[1])
        if block > 1:
            masks = block - 1 - pair.from_anchor
            layers, hidden = draft_pass(pair, features, [tokens[-1]] + [pair.mask] * masks)
            slots, candidates = hidden if pair.from_anchor else hidden[1:], {}
            draft_logits = pair.logits(slots)
            if pair.candidates:
                own, candidates = select(pair, slots, draft_logits, tokens[-1], margin)
                confidence = [row[i] for row, i in zip(candidates["candidate_probability"],
                                                       candidates["candidate_chosen"])]
            else:
                own, confidence = best(draft_logits)
            drafted = own if pair.to_target is None else [pair.to_target[i] for i in own]
            drafting = Row(DENOISE, start, start, block - 1, 1, drafted=drafted, confidence=confidence,
                           candidates=candidates, layers=layers)
            rows.append(drafting)
        logits = run_target(pair, tokens + drafted)[0][start:]
        chosen, sure = best(logits)
        accepted = next((i for i in range(block - 1) if drafted[i] != chosen[i]), block - 1)
        commit = Row(COMMIT, start, start, stored=(start, start + accepted + 1))
        if drafting:
            drafting.accepted = accepted
            drafting.verdict = judge(pair, draft_logits, logits, drafted, chosen[:-1])
            if candidates:
                candidates["candidate_target"] = [row.index(token) if token in row else -1 for row, token in
                                                  zip(candidates["candidate_token"], chosen[:-1])]
            drafting.decided = [(start + p - len(prompt), drafted[p - 1], drafting.confidence[p - 1])
                                for p in range(1, accepted + 1) if start + p < end]
        tokens += drafted[:accepted] + [chosen[accepted]]
        if len(tokens) <= end:
            commit.decided = [(len(tokens) - 1 - len(prompt), chosen[accepted], sure[accepted])]
        rows.append(commit)
    answer = tokens[len(prompt):end]
    return Run(rows, answer + [None] * (gen_length - len(answer)), finished(), margin.value)
