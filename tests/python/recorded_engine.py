"""A serving engine of a hundred lines: ragged batches, requests that come and go, keys in shuffled pages. It computes
each request's rows by themselves, so its numbers are those of the module that decodes one request at a time."""

import types

import blockscope
import torch
from torch import nn
from torch.nn import functional as F

HEADS, KV_HEADS, DIM, HIDDEN, VOCAB, LAYERS, MASK, SIZE = 4, 2, 8, 32, 60, 3, 59, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM)
        self.o, self.up = nn.Linear(HEADS * DIM, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def project(self, x, positions):
        """[T, heads, D] each."""
        rows = F.layer_norm(x, [HIDDEN])
        rows = self.qkv(rows).unflatten(-1, (-1, DIM))
        turn = positions[:, None, None] * 100 ** (-torch.arange(0, DIM, 2) / DIM)
        a, b = rows.unflatten(-1, (2, -1)).unbind(-2)
        rotated = torch.cat([a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()], -1)
        return rotated[:, :HEADS], rotated[:, HEADS:-KV_HEADS], rows[:, -KV_HEADS:]

    def finish(self, x, attended):
        x = x + self.o(attended.flatten(1))
        return x + self.up(F.silu(F.layer_norm(x, [HIDDEN])))


def attend(q, k, v, mask=None):
    """q [T, H, D], k and v [N, K, D] -> [T, H, D]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


class Cache:
    """Keys and values [N, K, D] by layer, of one sequence."""

    def __init__(self):
        self.kv, self.start, self.store = [None] * LAYERS, 0, False

    def get_seq_length(self):
        return 0 if self.kv[0] is None else len(self.kv[0][0])

    def put(self, index, own):
        """All that a pass from `start` on reads, with its own."""
        if self.kv[index] is not None:
            own = [torch.cat([old[:self.start], new, old[self.start + len(new):]])
                   for old, new in zip(self.kv[index], own)]
        if self.store:
            self.kv[index] = own
        return own


class DenseLayer(nn.Module):
    """One sequence, as a module that blockscope.record() knows."""

    def __init__(self, layer, index):
        super().__init__()
        self.layer, self.index = layer, index

    def forward(self, x, cache, mask):
        q, *own = self.layer.project(x[0], torch.arange(cache.start, cache.start + x.shape[1]))
        return self.layer.finish(x[0], attend(q, *cache.put(self.index, own), mask))[None]


class Model(nn.Module):
    def __init__(self, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.config = types.SimpleNamespace(
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM,
            hidden_size=HIDDEN, vocab_size=VOCAB, mask_token_id=MASK)
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(DenseLayer(Layer(), i) for i in range(LAYERS))
        for weights in self.parameters():
            weights.requires_grad_(False)
        self.embed.weight[MASK] *= 0.2  # seldom the best token

    def forward(self, input_ids, past_key_values, mask=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, past_key_values, mask)
        return self.predict(x)

    def predict(self, x):
        return F.linear(x, self.embed.weight) * 0.2


def visible(start, end):
    """Blocks see the blocks before them and themselves."""
    block = torch.arange(end) // SIZE
    return block[start:, None] >= block[None]


def decide(tokens, logits):
    """The two surest masks take their best token other than the mask."""
    logits = logits.clone()
    logits[:, MASK] = -torch.inf
    best = logits.softmax(-1).max(-1)
    open_ = torch.tensor([token == MASK for token in tokens])
    chosen = torch.where(open_, best.values, -1).topk(min(2, int(open_.sum()))).indices.tolist()
    return [int(best.indices[i]) if i in chosen else token for i, token in enumerate(tokens)]


class Sequence:
    """A loop over one sequence with a cache: chunks of the prompt, then blocks until they hold no mask, then their
    commit. `start` and next() are the position and the tokens of the next pass."""

    def __init__(self, name, prompt, blocks, chunk=100):
        self.name, self.prompt, self.chunk, self.start = name, prompt, chunk, 0
        self.whole = len(prompt) // SIZE * SIZE
        self.tokens = prompt + [MASK] * (self.whole + blocks * SIZE - len(prompt))

    @property
    def done(self):
        return self.start == len(self.tokens)

    @property
    def stores(self):
        return MASK not in self.next()

    def next(self):
        end = min(self.start + self.chunk // SIZE * SIZE, self.whole) if self.start < self.whole else self.start + SIZE
        return self.tokens[self.start:end]

    def mask(self):
        return visible(self.start, self.start + len(self.next()))

    def take(self, logits):
        block = self.next()
        if MASK in block:
            self.tokens[self.start:self.start + SIZE] = decide(block, logits)
        else:
            self.start += len(block)


class Canvas(Sequence):
    """A loop over one sequence of a bidirectional model: a block's first pass goes over all positions, the others over
    the block alone, with the other keys from the first (Fast-dLLM's dual cache)."""

    stores = True

    def __init__(self, name, prompt, blocks):
        super().__init__(name, prompt, 0)
        self.tokens = prompt + [MASK] * (blocks * SIZE)
        self.block, self.whole_next = len(prompt), True

    @property
    def done(self):
        return MASK not in self.tokens

    def next(self):
        return self.tokens if self.whole_next else self.tokens[self.block:self.block + SIZE]

    def mask(self):
        return None

    def take(self, logits):
        block = slice(self.block, self.block + SIZE)
        self.tokens[block] = decide(self.tokens[block], logits[block] if self.whole_next else logits)
        self.whole_next = MASK not in self.tokens[block]
        self.block += SIZE * self.whole_next
        self.start = 0 if self.whole_next else self.block


class Tokens(Sequence):
    """A loop over one sequence that decodes token by token."""

    stores = True

    def __init__(self, name, prompt, count):
        super().__init__(name, prompt, 0)
        self.tokens, self.end = list(prompt), len(prompt) + count

    @property
    def done(self):
        return len(self.tokens) == self.end

    def next(self):
        return self.tokens[self.start:]

    def mask(self):
        return torch.ones(len(self.tokens), len(self.tokens), dtype=torch.bool).tril()[self.start:]

    def take(self, logits):
        self.start = len(self.tokens)
        self.tokens.append(int(logits[-1].argmax()))


def record_alone(model, sequence, path, **options):
    """The judge: the module decodes one sequence, and blockscope.record() sees it."""
    cache = Cache()
    with blockscope.record(model, path, **options) as run:
        run.begin_sequence(name=sequence.name, prompt_length=len(sequence.prompt))
        while not sequence.done:
            cache.start, cache.store = sequence.start, sequence.stores
            run.step(start=cache.start)
            sequence.take(model(torch.tensor([sequence.next()]), cache, sequence.mask())[0])
        run.end_sequence(sequence.tokens)


class Engine:
    """Runs passes over any of its sequences. `keys` says how it states them: `dense`; `fresh`, before they are in the
    pages, as in SGLang; or `stored`, when they are."""

    def __init__(self, model, keys="fresh", page_size=1, pages=64):
        self.model, self.page_size, self.keys = model, page_size, keys
        shape = (pages, page_size, KV_HEADS, DIM)
        self.cache = [tuple(torch.full(shape, torch.nan) for _ in "kv") for _ in range(LAYERS)]
        self.free = torch.randperm(pages, generator=torch.Generator().manual_seed(page_size)).tolist()
        self.pages = {}  # by request
        self.change = {}  # by method of run: what a test makes of its arguments

    def call(self, run, method, *args, **kwargs):
        args, kwargs = self.change.get(method, lambda *a, **k: (a, k))(*args, **kwargs)
        return getattr(run, method)(*args, **kwargs)

    def step(self, run, batch):
        """A pass."""
        tokens = [one.next() for one in batch]
        lengths = [len(ids) for ids in tokens]
        for one, length in zip(batch, lengths):
            pages = self.pages.setdefault(one.name, [])
            while len(pages) * self.page_size < one.start + length:
                pages.append(self.free.pop())
        positions = [p for one, length in zip(batch, lengths) for p in range(one.start, one.start + length)]
        pages = {} if self.keys == "dense" else {"pages": [self.pages[one.name] for one in batch]}
        with self.call(run, "batch", [one.name for one in batch], sum(tokens, []), positions, lengths, **pages):
            logits = self.forward(run, batch, tokens)
        for one, rows in zip(batch, logits):
            one.take(rows)

    def forward(self, run, batch, tokens):
        ends = torch.tensor([0, *map(len, tokens)]).cumsum(0).tolist()
        rows = [slice(*pair) for pair in zip(ends, ends[1:])]
        x = self.model.embed(torch.tensor(sum(tokens, [])))
        for index, outer in enumerate(self.model.layers):
            self.call(run, "hidden", index, x)
            q, k, v = (torch.cat(part) for part in zip(*(
                outer.layer.project(x[row], torch.arange(one.start, one.start + row.stop - row.start))
                for one, row in zip(batch, rows))))
            whole = [self.whole(index, one, k[row], v[row]) for one, row in zip(batch, rows)]
            out = torch.cat([attend(q[row], *kv, one.mask()) for one, row, kv in zip(batch, rows, whole)])
            if self.keys == "fresh":
                self.call(run, "attention", index, q, k, v, cache=self.shown(index), out=out)
            for one, row in zip(batch, rows):
                self.store(index, one, k[row], v[row])
            if self.keys == "stored":
                self.call(run, "attention", index, q, cache=self.shown(index), out=out)
            if self.keys == "dense":
                self.call(run, "attention", index, q, *(torch.cat(part) for part in zip(*whole)), out=out)
            x = torch.cat([outer.layer.finish(x[row], out[row]) for row in rows])
            for buffer in (q, k, v, out):
                buffer.fill_(torch.nan)  # the next layer's
        logits = [self.model.predict(x[row]) for row in rows]
        if self.keys == "stored":  # none of what isn't denoised
            wanted = [i for i, ids in enumerate(tokens) if MASK in ids]
            named = {"rows": [i for one in wanted for i in range(rows[one].start, rows[one].stop)]}
            self.call(run, "logits", torch.cat([logits[0][:0], *(logits[one] for one in wanted)]), **named)
        else:
            self.call(run, "logits", torch.cat(logits))
        return logits

    def shown(self, index):
        return tuple(x.flatten(0, 1) if self.page_size == 1 else x for x in self.cache[index])

    def whole(self, index, one, *own):
        """Keys and values of all positions that a layer reads, in order."""
        stored = [cache[self.pages[one.name]].flatten(0, 1) for cache in self.cache[index]]
        end = one.start + len(own[0])
        last = len(one.tokens) if isinstance(one, Canvas) else end
        return [torch.cat([old[:one.start], new, old[end:last]]) for old, new in zip(stored, own)]

    def store(self, index, one, k, v):
        where = torch.arange(one.start, one.start + len(k))
        pages = torch.tensor(self.pages[one.name])[where // self.page_size]
        for cache, own in zip(self.cache[index], (k, v)):
            cache[pages, where % self.page_size] = own


def serve(engine, run, sequences, joins):
    """Runs all to their ends; joins: the pass at which each comes. The order within the batch changes."""
    running, number = [], 0
    while running or number <= max(joins):
        running += [one for one, join in zip(sequences, joins) if join == number]
        if running:
            engine.step(run, running)
        for one in [one for one in running if one.done]:
            run.end_sequence(one.name, one.tokens)
            running.remove(one)
        running, number = running[1:] + running[:1], number + 1
