"""Loops over a bidirectional model with the call shapes that others have: cache entries that are replaced where a mask
says so, rows that a cache leaves out, logits that predict the next position, batches, canvases that grow. Each keeps
its state in `ids`, `start`, `span` (positions handed to the model) and `rows` (computed of them; None: all), where
tests look for it."""

import types

import recorded_models as models
import torch
from torch.nn import functional as F


class SlotCache:
    """Keys and values of the whole sequence; a pass replaces those of its rows."""

    def __init__(self, layers):
        self.keys, self.values, self.slots = [None] * layers, [None] * layers, None

    def put(self, old, new):
        whole = old.clone()
        whole[:, :, self.slots] = new
        return whole

    def before(self, position):
        return [(k[:, :, :position], v[:, :, :position]) for k, v in zip(self.keys, self.values)]


class TellingCache(SlotCache):
    """Says which rows a pass computes; None: all."""

    active_q_mask = None

    def get_seq_length(self):
        return 0 if self.keys[0] is None else self.keys[0].shape[2]


class CanvasModel(models.PlainModel):
    """Computes the positions marked by replace_position, or those that the cache's active_q_mask marks (logits of the
    others are 0), or all. Random weights, so that predictions are of all kinds."""

    def __init__(self, layers=3):
        super().__init__("needle-bidirectional")
        torch.manual_seed(8)
        self.layers = self.layers[:layers]
        self.config.num_hidden_layers = layers
        for name, weights in self.named_buffers():
            if "norm" not in name:
                weights.copy_(torch.randn(weights.shape) * 1.6 * weights.shape[1] ** -0.5)
        self.embed.weight.copy_(torch.randn(self.embed.weight.shape) * 2.7 * self.config.hidden_size ** -0.5)
        self.embed.weight[self.config.mask_token_id] *= 0.2  # seldom the best token
        self.counted = None  # rows to compute; the recorder does not see them

    def forward(self, input_ids, attention_mask="full", past_key_values=None, replace_position=None):
        slots, cache = torch.arange(input_ids.shape[1]), past_key_values
        chosen = getattr(cache, "active_q_mask", None)
        chosen = self.counted if chosen is None else chosen[0].nonzero()[:, 0]
        if replace_position is not None:
            slots = replace_position[0].nonzero()[:, 0]
        elif isinstance(cache, list):  # of the positions before the pass
            slots = slots + cache[0][0].shape[2]
        elif chosen is not None:
            slots = chosen
        x = self.embed(input_ids if chosen is None else input_ids[:, chosen])
        c = self.config
        angle = slots[:, None] * c.theta ** (-torch.arange(0, c.head_dim, 2) / c.head_dim)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        store = SlotCache(c.num_hidden_layers) if cache is None or isinstance(cache, list) else cache
        if isinstance(cache, list):
            store.keys, store.values = [k for k, _ in cache], [v for _, v in cache]
            store.put = lambda old, new: torch.cat([old, new], 2)
        store.slots = slots
        for layer in self.layers:
            x = layer(x, cos, sin, store, None, True)
        logits = F.linear(models.rms_norm(x, self.norm, c.eps), self.embed.weight)
        if chosen is not None:
            whole = logits.new_zeros(1, input_ids.shape[1], logits.shape[-1])
            whole[:, chosen] = logits
            logits = whole
        return types.SimpleNamespace(logits=logits, past_key_values=store)


class ChoosyLayer(torch.nn.Module):
    """Attends at the rows that the cache chooses for it; the others keep what it gave them before."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, cos, sin, cache, mask, store):
        layer, index = self.layer, self.layer.index
        rows = cache.choose(index, x.shape[1])
        cache._refresh_index = rows[None]
        if len(rows):
            cache.slots = rows
            normed = models.rms_norm(x, layer.norm1, layer.config.eps)[:, rows]
            cache.given.setdefault(index, torch.zeros_like(x))[:, rows] = layer.attention(
                normed, cos[rows], sin[rows], cache, None, True)
        x = x + cache.given[index]
        y = models.rms_norm(x, layer.norm2, layer.config.eps)
        return x + F.linear(F.silu(F.linear(y, layer.gate)) * F.linear(y, layer.up), layer.down)


class ChoosyCache(SlotCache):
    """All rows at the first pass and in layer 0; else every second one in an order of its own, and none in layer 2."""

    rou, _prompt_length, refresh_response, _refresh_index = 0.0, 0, False, None

    def __init__(self, layers):
        super().__init__(layers)
        self.given, self.passes = {}, 0

    @property
    def key_cache(self):
        return self.keys

    def choose(self, layer, length):
        self.passes += layer == 0
        if self.passes == 1 or layer == 0:
            return torch.arange(length)
        return torch.arange(0) if layer == 2 else torch.arange(self.passes % 2, length, 2).flip(0)


class ChoosyModel(CanvasModel):
    def __init__(self):
        super().__init__(4)
        self.layers = torch.nn.ModuleList(ChoosyLayer(layer) for layer in self.layers)


@torch.no_grad()
def choosy(model, prompt, gen_length, size, per_step=3):
    """Every layer of a pass chooses the rows that it computes."""
    mask = model.config.mask_token_id
    ids, rows = canvas_of(prompt, gen_length, mask), None
    cache, span = ChoosyCache(model.config.num_hidden_layers), (0, ids.shape[1])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        block = torch.arange(start, start + size)
        while (ids[:, block] == mask).any():
            take(ids, block, model(ids, past_key_values=cache).logits[0, block], mask, per_step)
    del span, rows
    return ids


def canvas_of(prompt, gen_length, mask):
    prompt = torch.atleast_2d(torch.as_tensor(prompt))
    return torch.cat([prompt, torch.full((len(prompt), gen_length), mask)], 1)


def take(ids, positions, logits, mask, count):
    """The `count` best masks among `positions` take their best token; logits [R, V] of those positions."""
    best = logits.softmax(-1).max(-1)
    confidence = torch.where(ids[0, positions] == mask, best.values, -torch.inf)
    chosen = confidence.topk(min(count, int((ids[0, positions] == mask).sum()))).indices
    ids[0, positions[chosen]] = best.indices[chosen]


@torch.no_grad()
def replaced(model, prompt, gen_length, size, per_step=3, extra=()):
    """A block's first pass goes over all, the others over the block (and `extra` positions), whose entries they replace
    in the cache. It looks for masks only after the second pass, so one more may come."""
    mask = model.config.mask_token_id
    ids = canvas_of(prompt, gen_length, mask)
    for start in range(len(prompt), len(prompt) + gen_length, size):
        span, rows = (0, ids.shape[1]), None
        out = model(ids)
        block = torch.arange(start, start + size)
        take(ids, block, out.logits[0, block], mask, per_step)
        marks = torch.zeros_like(ids, dtype=torch.bool)
        marks[:, block] = True
        marks[:, list(extra)] = True
        there = marks[0].nonzero()[:, 0]
        while True:
            span, rows = (start, start + size), there.tolist() if extra else None
            logits = model(ids[:, there], past_key_values=out.past_key_values, replace_position=marks).logits[0]
            take(ids, block, logits[(there >= start) & (there < start + size)], mask, per_step)
            if not (ids[:, block] == mask).any():
                break
    del span, rows
    return ids


@torch.no_grad()
def left_out(model, prompt, gen_length, size, per_step=3, told=True, state=lambda rows: None, shift=0):
    """Every pass gets all tokens. Except in the first, the model computes only the rows that predict the block's masks,
    those just decided and every seventh position. `told`: the cache has these rows; if not, `state` is called with
    them."""
    mask = model.config.mask_token_id
    ids = canvas_of(prompt, gen_length, mask)
    cache = (TellingCache if told else SlotCache)(model.config.num_hidden_layers)
    rows, span = None, (0, ids.shape[1])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        block = torch.arange(start, start + size)
        while (ids[:, block] == mask).any():
            marks = None
            if rows is not None:
                marks = torch.zeros_like(ids, dtype=torch.bool)
                marks[:, ::7] = True
                marks[:, block - shift] |= ids[:, block] == mask
                marks |= ids != before
                rows = marks[0].nonzero()[:, 0].tolist()
            if told:
                cache.active_q_mask = marks
            elif marks is not None:
                model.counted = marks[0].nonzero()[:, 0]
                state(rows)
            before = ids.clone()
            logits = model(ids, past_key_values=cache).logits[0, block - shift]
            take(ids, block, logits, mask, per_step)
            rows = rows or []
        model.counted = None
    return ids


@torch.no_grad()
def shifted(model, prompt, gen_length, size, per_step=3):
    """Logits predict the next position. A block's first pass goes over all and decides the block's first token; the
    others go over the block and the positions after it."""
    mask = model.config.mask_token_id
    ids, rows = canvas_of(prompt, gen_length, mask), None
    for start in range(len(prompt), len(prompt) + gen_length, size):
        span = (0, ids.shape[1])
        out = model(ids, "full")
        ids[0, start] = out.logits[0, start - 1].argmax()
        past = out.past_key_values.before(start)
        block = torch.arange(start + 1, start + size)
        while (ids[:, block] == mask).any():
            span = (start, ids.shape[1])
            logits = model(ids[:, start:], "full", past_key_values=past).logits[0]
            take(ids, block, logits[:size - 1], mask, per_step)
    del span, rows
    return ids


@torch.no_grad()
def prefixed(model, prompt, gen_length, size, per_step=3):
    """A block's first pass goes over all, the others over the block and the positions after it. The loop looks for
    masks only after the second pass."""
    mask = model.config.mask_token_id
    ids, rows = canvas_of(prompt, gen_length, mask), None
    for start in range(len(prompt), len(prompt) + gen_length, size):
        span, block = (0, ids.shape[1]), torch.arange(start, start + size)
        out = model(ids)
        take(ids, block, out.logits[0, block], mask, per_step)
        past = out.past_key_values.before(start)
        while True:
            span = (start, ids.shape[1])
            take(ids, block, model(ids[:, start:], past_key_values=past).logits[0, :size], mask, per_step)
            if not (ids[:, block] == mask).any():
                break
    del span, rows
    return ids


@torch.no_grad()
def batches(model, prompts, gen_length, size, threshold=0.3):
    """Several sequences of one length: a block ends when none has a mask in it, so some wait for the others."""
    mask = model.config.mask_token_id
    ids, rows = canvas_of(prompts, gen_length, mask), None
    span = (0, ids.shape[1])
    for start in range(len(prompts[0]), len(prompts[0]) + gen_length, size):
        block = slice(start, start + size)
        while (ids[:, block] == mask).any():
            best = model(ids).logits[:, block].softmax(-1).max(-1)
            confidence = torch.where(ids[:, block] == mask, best.values, -torch.inf)
            chosen = (confidence >= threshold) | (confidence == confidence.max(-1, keepdim=True).values)
            chosen &= ids[:, block] == mask
            ids[:, block] = torch.where(chosen, best.indices, ids[:, block])
    del span, rows
    return ids


@torch.no_grad()
def growing(model, prompt, gen_length, size, per_step=3):
    """The canvas ends with the block; the next block makes it longer."""
    mask = model.config.mask_token_id
    ids, rows = torch.tensor([prompt]), None
    for start in range(len(prompt), len(prompt) + gen_length, size):
        ids = torch.cat([ids, torch.full((1, size), mask)], 1)
        span, block = (0, ids.shape[1]), torch.arange(start, start + size)
        while (ids[:, block] == mask).any():
            take(ids, block, model(ids).logits[0, block], mask, per_step)
    del span, rows
    return ids
