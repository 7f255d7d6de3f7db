"""Fast-dLLM v2's decoding written again from its rules, as the judge of our sub-blocks.

It shares nothing with the runtime. Without the block cache every pass runs everything up to the block's end
through transformers' Qwen2 with a 4-D block-causal mask. With it, a pass over one sub-block runs these rows
against the keys that the passes before left for all other rows.
"""

import dataclasses

import torch
from checkpoints import block_causal_mask
from transformers import DynamicCache

PREFILL, DENOISE, COMMIT = 0, 1, 2


@dataclasses.dataclass
class Options:
    mask_id: int
    block_length: int
    sub_block_length: int
    threshold: float
    gen_length: int
    block_cache: bool = False
    stop_ids: tuple = ()


@dataclasses.dataclass
class Row:
    kind: int
    block: int
    step: int
    context_length: int
    changed: int
    masks_left: int
    computed: list      # positions in the block; empty in a prefill
    positions: list     # absolute, that took a token
    tokens: list
    confidence: list
    predicted: dict = dataclasses.field(default_factory=dict)  # position in the block: (token, probability)


@dataclasses.dataclass
class Outcome:
    rows: list
    tokens: list
    reason: str
    logit_margin: float
    choice_margin: float


class _Decoder:
    def __init__(self, model, prompt, options):
        self.model, self.options = model, options
        size = options.block_length
        self.length = len(prompt)
        self.first = self.length // size
        self.last = self.first + options.gen_length // size
        self.tokens = list(prompt) + [options.mask_id] * (self.last * size + 1 - self.length)
        self.rows = []
        self.logit_margin = self.choice_margin = float("inf")
        self.keys = None  # of everything up to the block's end, as the passes over the block left them

    def stopped(self):
        for token in self.tokens[self.length:]:
            if token == self.options.mask_id:
                return False
            if token in self.options.stop_ids:
                return True
        return False

    def whole_pass(self, end):
        """-> logits [end, V]; remembers the keys and values of all positions."""
        cache = DynamicCache()
        with torch.no_grad():
            logits = self.model(torch.tensor([self.tokens[:end]]), position_ids=torch.arange(end)[None],
                                attention_mask=block_causal_mask(end, self.options.block_length),
                                past_key_values=cache, use_cache=True).logits[0].float()
        self.keys = [(layer.keys, layer.values) for layer in cache.layers]
        return logits

    def sub_pass(self, begin, end):
        """-> logits [end - begin, V] of rows [begin, end) against the remembered keys of the others."""
        total = self.keys[0][0].shape[2]
        others = [p for p in range(total) if not begin <= p < end]
        cache = DynamicCache()
        for layer, (key, value) in enumerate(self.keys):
            cache.update(key[:, :, others], value[:, :, others], layer)
        with torch.no_grad():
            logits = self.model(torch.tensor([self.tokens[begin:end]]),
                                position_ids=torch.arange(begin, end)[None],
                                attention_mask=torch.zeros(1, 1, end - begin, total),
                                past_key_values=cache, use_cache=True).logits[0].float()
        for layer, (key, value) in enumerate(self.keys):
            key[:, :, begin:end] = cache.layers[layer].keys[:, :, len(others):]
            value[:, :, begin:end] = cache.layers[layer].values[:, :, len(others):]
        return logits

    def next_token(self, logits):
        """The entries after the last row -> positions, tokens, confidence of one row of a trace."""
        best = logits[-1].topk(2).values
        self.logit_margin = min(self.logit_margin, float(best[0] - best[1]))
        probability, token = logits[-1].softmax(-1).max(-1)
        return int(token), float(probability)

    def take_next(self, position, logits):
        token, probability = self.next_token(logits)
        if token == self.options.mask_id:
            return [], [], []
        self.tokens[position] = token
        return [position], [token], [probability]

    def prefill(self):
        whole = self.first * self.options.block_length
        if whole == 0:
            return
        logits = self.whole_pass(whole)
        taken = self.take_next(whole, logits) if whole == self.length else ([], [], [])
        self.rows.append(Row(PREFILL, -1, 0, 0, 0, 0, [], *taken))

    def run(self):
        self.prefill()
        reason = "stop" if self.stopped() else ""
        for block in range(self.first, self.last):
            if reason:
                break
            reason = self.block(block)
        return Outcome(self.rows, self.tokens, reason or "length", self.logit_margin, self.choice_margin)

    def block(self, block):
        options, size = self.options, self.options.block_length
        begin, end = block * size, (block + 1) * size
        before, self.keys = None, None
        for step in range(1, size + 2):
            now = self.tokens[begin:end]
            changed = 0 if before is None else sum(a != b for a, b in zip(now, before))
            before = now
            masked = [p for p in range(size) if now[p] == options.mask_id]
            if not masked or step > size:
                logits = self.whole_pass(end)
                taken = self.take_next(end, logits)
                self.rows.append(Row(COMMIT, block, 0, begin, changed, len(masked), list(range(size)), *taken))
                return "stop" if any(t in options.stop_ids for t in self.tokens[self.length:]) else ""
            sub = masked[0] // options.sub_block_length * options.sub_block_length
            inside = [p for p in masked if p < sub + options.sub_block_length]
            if options.block_cache and self.keys is not None and sub != masked[0]:
                computed = list(range(sub, sub + options.sub_block_length))
                logits = self.sub_pass(begin + sub, begin + sub + options.sub_block_length)
            else:
                computed = list(range(size))
                logits = self.whole_pass(end)[begin:]
            self.denoise(block, step, changed, masked, inside, computed, logits)
            if self.stopped():
                return "stop"
        return ""

    def denoise(self, block, step, changed, masked, inside, computed, logits):
        options, begin = self.options, block * self.options.block_length
        probability, token = [x.tolist() for x in logits.softmax(-1).max(-1)]
        best = logits.topk(2, -1).values
        self.logit_margin = min(self.logit_margin, float((best[:, 0] - best[:, 1]).min()))
        # Row i predicts the position after it; a mask on the first row, the same row's token.
        predicted = {p: (token[i], probability[i]) for i, p in enumerate(computed[1:])}
        if computed[0] in masked:
            predicted[computed[0]] = (token[0], probability[0])
        confidence = {p: predicted[p][1] for p in inside}
        ranked = sorted(inside, key=lambda p: (-confidence[p], p))
        chosen = [p for p in inside if confidence[p] > options.threshold or p == ranked[0]]
        distances = [abs(c - options.threshold) for c in confidence.values()]
        if len(chosen) == 1 and len(ranked) > 1:
            distances.append(confidence[ranked[0]] - confidence[ranked[1]])
        self.choice_margin = min([self.choice_margin, *distances])
        chosen = [p for p in chosen if predicted[p][0] != options.mask_id]
        for p in chosen:
            self.tokens[begin + p] = predicted[p][0]
        self.rows.append(Row(DENOISE, block, step, begin, changed, len(masked), computed,
                             [begin + p for p in chosen], [predicted[p][0] for p in chosen],
                             [predicted[p][1] for p in chosen], predicted))


def decode(model, prompt, options):
    return _Decoder(model, prompt, options).run()
