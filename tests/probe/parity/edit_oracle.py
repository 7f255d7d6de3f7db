"""Decoding with token edits written again from the published rules, in float64 and without a cache.

`joint`: LLaDA2.1, as diffusers 0.42.1 runs it (`BlockRefinementScheduler.step`, `check_block_should_continue`,
`check_eos_finished`, `LLaDA2Pipeline.__call__`). `indel`: LLaDA2.2's `_joint_decode_block`, with the escape from
loops at the least certain position, as SGLang 31773 and FluxServe have it. Nothing is shared with the runtime.
"""

import dataclasses

import torch
from checkpoints import block_causal_mask
from oracle_rules import Margin


@dataclasses.dataclass
class Options:
    mask: int
    size: int
    steps: int
    gen_length: int
    threshold: float
    editing: float
    post: int = 16
    delete: int = -1
    split: int = -1
    stop_ids: tuple = ()


@dataclasses.dataclass
class Step:
    block: int
    before: list   # the block's tokens
    after: list
    edited: dict   # position in the block: (token before, token after)
    masks: int
    inserted: int = 0
    deleted: int = 0


class Decoder:
    def __init__(self, model, prompt, options):
        self.model, self.o = model, options
        blocks = -(-(len(prompt) + options.gen_length) // options.size)
        self.prompt_length = len(prompt)
        self.tokens = list(prompt) + [options.mask] * (blocks * options.size - len(prompt))
        self.blocks = blocks
        self.rows, self.margin, self.logit_margin, self.reason = [], Margin(), Margin(), "length"

    def logits(self, begin):
        end = begin + self.o.size
        with torch.no_grad():
            out = self.model(torch.tensor([self.tokens[:end]]), attention_mask=block_causal_mask(end, self.o.size),
                             position_ids=torch.arange(end)[None]).logits
        return out[0, begin:end].double()

    def run(self, decode_block):
        for block in range(self.prompt_length // self.o.size, self.blocks):
            stopped = decode_block(self, block)
            answer = self.tokens[self.prompt_length:]
            if stopped or any(token in self.o.stop_ids for token in answer):
                self.reason = "stop"
                break
        return self

    def best(self, begin, editable):
        """-> best token and its probability by position; margins of the rows that may change."""
        logits = self.logits(begin)
        for p in editable:
            two = logits[p].topk(2).values
            self.logit_margin.of(float(two[0] - two[1]))
        probability, token = logits.softmax(-1).max(-1)
        return logits, token.tolist(), probability.tolist()

    def generated(self, begin):
        return [p for p in range(self.o.size) if begin + p >= self.prompt_length]

    def ranked(self, masks, sure, count):
        order = sorted(masks, key=lambda p: (-sure[p], p))
        if 0 < count < len(order):
            self.margin.of(sure[order[count - 1]] - sure[order[count]])
        return order[:count]

    def edits(self, now, masks, generated, token, sure, threshold):
        held = [p for p in generated if p not in masks]
        self.margin.of(*[sure[p] - threshold for p in held if token[p] != now[p]])
        return [p for p in held if token[p] != now[p] and sure[p] > threshold]


def joint_block(decoder, block):
    o, begin = decoder.o, block * decoder.o.size
    generated = decoder.generated(begin)
    step_index = post = 0
    while True:
        now = decoder.tokens[begin:begin + o.size]
        masks = [p for p in range(o.size) if now[p] == o.mask]
        if not masks:
            if o.editing <= 0:
                return False  # the official loop runs one more pass, which changes nothing
            post += 1
        _, token, sure = decoder.best(begin, generated)
        filled = []
        if masks:
            due = o.size // o.steps + (step_index < o.size % o.steps)
            decoder.margin.of(*[sure[p] - o.threshold for p in masks])
            filled = [p for p in masks if sure[p] > o.threshold]
            if len(filled) < due:
                filled = decoder.ranked(masks, sure, min(due, len(masks)))
        edited = decoder.edits(now, masks, generated, token, sure, o.editing) if o.editing > 0 else []
        after = list(now)
        for p in filled + edited:
            after[p] = token[p]
        decoder.tokens[begin:begin + o.size] = after
        decoder.rows.append(Step(block, now, after, {p: (now[p], token[p]) for p in edited}, len(masks)))
        if any(token[p] in o.stop_ids for p in filled + edited):
            answer = decoder.tokens[decoder.prompt_length:]
            first = next((i for i, t in enumerate(answer) if t in o.stop_ids), None)
            if first is not None and o.mask not in answer[:first]:
                return True
        if masks:
            step_index += 1
            if step_index >= o.steps:
                return False
        elif not edited or post > o.post:
            return False


def indel_block(decoder, block):
    o, begin = decoder.o, block * decoder.o.size
    generated = decoder.generated(begin)
    original = [token == o.mask for token in decoder.tokens[begin:begin + o.size]]
    first_masks, post, seen = sum(original), 0, set()
    for number in range(1000):
        now = decoder.tokens[begin:begin + o.size]
        masks = [p for p in range(o.size) if now[p] == o.mask]
        began = [p for p in masks if original[p]]
        post = 0 if began else post + 1
        logits, token, sure = decoder.best(begin, generated)

        def without(p, banned):
            row = logits[p].clone()
            row[banned] = -torch.inf
            two = row.topk(2)
            decoder.logit_margin.of(float(two.values[0] - two.values[1]))
            return int(two.indices[0])

        if number >= o.steps:
            filled = masks
        else:
            due = first_masks // o.steps + (number < first_masks % o.steps) + len(masks) - len(began)
            decoder.margin.of(*[sure[p] - o.threshold for p in masks])
            filled = [p for p in masks if sure[p] > o.threshold]
            if len(filled) < due:
                filled = decoder.ranked(masks, sure, min(due, len(masks)))
        edited = decoder.edits(now, masks, generated, token, sure, o.editing)
        last = post >= o.post if o.post > 0 else bool(began) and set(began) <= set(filled)
        written = list(now)
        if last:
            filled = masks
            for p in filled + edited:
                if token[p] in (o.mask, o.delete, o.split):
                    token[p] = without(p, [o.mask, o.delete, o.split])
        for p in filled + edited:
            written[p] = token[p]
        for _ in range(0 if last else 5):
            changed = [p for p in range(o.size) if written[p] != now[p]]
            if tuple(written) not in seen or not changed:
                break
            ranked = sorted(changed, key=lambda p: (sure[p], p))
            decoder.margin.of(*[sure[p] - sure[ranked[0]] for p in ranked[1:2]])
            written[ranked[0]] = without(ranked[0], [written[ranked[0]]])
            decoder.escapes = getattr(decoder, "escapes", 0) + 1
        seen.add(tuple(written))
        after, flags, splits, deletes = [], [], 0, 0
        for p in range(o.size):
            if p in generated and written[p] != now[p] and written[p] == o.delete:
                deletes += 1
                continue
            if p in generated and written[p] != now[p] and written[p] == o.split:
                after += [o.mask, now[p]]
                flags += [False, original[p]]
                splits += 1
                continue
            after.append(written[p])
            flags.append(original[p])
        after = (after + [o.mask] * o.size)[:o.size]
        original = (flags + [False] * o.size)[:o.size]
        decoder.tokens[begin:begin + o.size] = after
        changes = {p: (now[p], written[p]) for p in edited
                   if written[p] not in (o.delete, o.split, now[p], o.mask)}
        decoder.rows.append(Step(block, now, after, changes, len(masks), splits, deletes))
        if last or (not masks and after == now):
            return False
    return False


def joint(model, prompt, options):
    return Decoder(model, prompt, options).run(joint_block)


def indel(model, prompt, options):
    return Decoder(model, prompt, options).run(indel_block)
