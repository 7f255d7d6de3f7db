"""An SDAR loop over transformers' Qwen3 with the weights of models/needle, for tests of blockscope.apply, and a float64
program of FlashBlock's rule that looks at every attention call. Nothing of blockscope is used here."""

import json
import pathlib

import numpy as np
import torch

MODELS = pathlib.Path(__file__).parents[2] / "models"
NEEDLE = MODELS / "needle"
SIZE = 16  # its block


def needle(implementation="sdpa", **more):
    """Its layers are Qwen3's."""
    from safetensors.torch import load_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    given = json.loads((NEEDLE / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "max_position_embeddings",
             "tie_word_embeddings")
    config = Qwen3Config(**{name: given[name] for name in names if name in given}, attn_implementation=implementation,
                         **more)
    model = Qwen3ForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(
        {name: values.float() for name, values in load_file(NEEDLE / "model.safetensors").items()}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.config.mask_token_id = given["mask_token_id"]
    return model


def fill(block, logits, mask, count):
    """The `count` most probable masks of block [B] take their best token; of equal ones the first."""
    best = logits.softmax(-1).max(-1)
    confidence = torch.where(block == mask, best.values, -torch.inf)
    chosen = confidence.sort(descending=True, stable=True).indices[:min(count, int((block == mask).sum()))]
    block[chosen] = best.indices[chosen]


@torch.no_grad()
def sdar_loop(model, prompts, gen_length, per_step=2, size=SIZE, stop=lambda: None):
    """prompts: one list of tokens, or several of one length. Returns [S, L] tokens."""
    from transformers import DynamicCache

    prompts = torch.atleast_2d(torch.tensor(prompts))
    mask, (rows, prompt) = model.config.mask_token_id, prompts.shape
    total = -(-(prompt + gen_length) // size) * size
    ids = torch.cat([prompts, torch.full((rows, total - prompt), mask)], 1)
    cache, positions = DynamicCache(config=model.config), torch.arange(total).expand(rows, -1)

    def forward(begin, end):
        block = torch.arange(end) // size
        sees = (block[begin:, None] >= block[None, :]).expand(rows, 1, -1, -1)
        return model(ids[:, begin:end], position_ids=positions[:, begin:end], past_key_values=cache,
                     attention_mask=sees, use_cache=True).logits

    whole = prompt // size * size
    if whole:
        forward(0, whole)
    for start in range(whole, total, size):
        block = slice(start, start + size)
        while (ids[:, block] == mask).any():
            logits = forward(start, start + size)
            stop()
            cache.crop(-size)
            for row in range(rows):
                fill(ids[row, block], logits[row], mask, per_step)
        forward(start, start + size)
    return ids


class Watched:
    """Keeps q, k, v and the result of every attention call: float64 copies, by pass. Use its `name` as
    attn_implementation."""

    def __init__(self, name="watched"):
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

        self.passes = []  # of lists of (q [S, H, T, D], k, v [S, K, N, D], out [S, T, H, D]) by layer

        def attend(module, query, key, value, attention_mask, **kwargs):
            if module.layer_idx == 0:
                self.passes.append([])
            out = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
            self.passes[-1].append([x.detach().double().numpy().copy() for x in (query, key, value, out[0])])
            return out

        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attention(q, k, v):
    """A [H, T, D], L [H, T] over k, v [K, N, D]; q [H, T, D]."""
    group = len(q) // len(k)
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights @ v / total, (top + np.log(total))[..., 0]


def merge(a, la, b, lb):
    top = np.maximum(la, lb)
    ea, eb = np.exp(la - top)[..., None], np.exp(lb - top)[..., None]
    return (a * ea + b * eb) / (ea + eb)


def flashblock(passes, ids, mask, tau, masks=None, size=SIZE):
    """Over one sequence's passes of sdar_loop, and the block's tokens before each: the merged output by the released
    rule, and how far the model's is from it. masks: (step, layer) -> [H] bool. Returns the largest difference, and how
    many heads reused."""
    largest, reused, kept, since, step, before = 0.0, 0, {}, 0, 0, None
    for calls, (start, block) in zip(passes, ids):
        if start is None or mask not in block:  # a prefill or a commit
            before = None
            continue
        step = 1 if before is None else step + 1
        since = 0 if before is None else since + int((block != before).sum())
        reads = step == 1 or since >= tau
        before = block.copy()
        for layer, (q, k, v, out) in enumerate(calls):
            q, k, v, out = q[0], k[0], v[0], out[0].swapaxes(0, 1)
            inside = attention(q, k[:, -size:], v[:, -size:])
            outside = attention(q, k[:, :-size], v[:, :-size])
            if not reads:
                old, may = kept[layer], np.ones(len(q), bool) if masks is None else masks(step, layer)
                outside = tuple(np.where(may.reshape(-1, *[1] * (x.ndim - 1)), then, x)
                                for then, x in zip(old, outside))
                reused += int(may.sum())
            kept[layer] = outside
            largest = max(largest, np.abs(merge(*outside, *inside) - out).max() / np.abs(out).max())
        if reads:
            since = 0
    return largest, reused
