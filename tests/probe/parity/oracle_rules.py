"""Which masked positions a step fills, written again from each strategy's published rule.

A block's `Rules` sees every step's probabilities in order and remembers what a rule needs. It also
measures how near each choice was to another one.
"""

import collections
import json
import math
import pathlib

import torch


class Margin:
    """Remembers the smallest distance between what was compared."""

    def __init__(self):
        self.value = float("inf")

    def of(self, *distances):
        self.value = min([self.value, *[abs(d) for d in distances]])


def quota(options, step, masks):
    if options.quota == "linear":  # Dream, in float32
        times = torch.linspace(1, 1e-3, options.steps + 1)
        left = torch.tensor(float(masks))
        return masks if step == options.steps - 1 else int(left * (1 - times[step + 1] / times[step]))
    base, rest = divmod(options.block_length, options.steps)
    return base + (1 if step < rest else 0)


def density(decided, sigma, index):
    """d2Cache's certainty density at one position of the answer, in float64."""
    size = len(decided)
    canvas = [True] * size + list(decided) + [bool(decided[-1])] * size
    weight = lambda d: math.exp(-d * d / (2 * sigma * sigma))
    whole = sum(weight(d) for d in range(-3 * size, 3 * size))
    return sum(weight(size + index - j) for j, on in enumerate(canvas) if on) / whole


def frequencies(path):
    """PC-Sampler's table: token -> share, and the share of a token that the corpus lacks."""
    table = json.loads(pathlib.Path(path).read_text())
    share = {token: count / table["tokens"] for token, count in table["counts"]}
    return lambda token: share.get(token, 1 / table["tokens"])


class Rules:
    several = collections.Counter()  # by klass_choose: steps with more than one position to choose from

    def __init__(self, options, margin, begin=0, tracks=None, known=0):
        """`tracks`: what KLASS knows of positions, [distribution before, KLs in order]; a block begins at `begin`,
        `known` of its positions are the prompt's, which the schedule counts as done."""
        self.options, self.margin, self.begin = options, margin, begin
        self.tracks = {} if tracks is None else tracks
        self.due, self.carried = 0, -known
        self.share = frequencies(options.frequencies) if options.frequencies else None

    def scores(self, probability, confidence, top1, answer):
        """`answer(p)`: (decided positions of the answer, index of block position p in it)."""
        options = self.options
        if options.strategy == "pc_sampler":
            score = [math.exp(-options.pc_lambda * i) *
                     min(-c * math.log(self.share(token) + 1e-9), options.pc_alpha)
                     for i, (c, token) in enumerate(zip(confidence, top1))]
        elif options.rank_by == "margin":
            best = probability.topk(2, -1).values
            score = (best[:, 0] - best[:, 1]).tolist()
        elif options.rank_by == "negative_entropy":
            score = (probability * torch.log(probability + 1e-10)).sum(-1).tolist()
        else:
            score = confidence
        if options.density_sigma:
            score = [s * density(*pair) if (pair := answer(p, options.density_sigma)) else s
                     for p, s in enumerate(score)]
        return score

    def certainty(self, probability):
        """What d2Cache keeps of a mask's distribution: the strategy's score, before density and place."""
        options, best = self.options, probability.topk(2)
        if options.strategy == "pc_sampler":
            return min(-float(best.values[0]) * math.log(self.share(int(best.indices[0])) + 1e-9), options.pc_alpha)
        if options.rank_by == "margin":
            return float(best.values[0] - best.values[1])
        if options.rank_by == "negative_entropy":
            return float((probability * torch.log(probability + 1e-10)).sum())
        return float(best.values[0])

    def select(self, step, masked, probability, top1, answer, predicted=None, behind=None, unseen=0):
        """-> the positions in the block that the strategy chooses. `predicted`: the positions whose
        rows of `probability` mean something (None: all); `behind`: distributions of others, by position;
        `unseen`: the block's masks that are not predicted."""
        options, margin = self.options, self.margin
        if options.strategy == "klass":
            self.observe({self.begin + p: probability[p]
                          for p in (range(len(probability)) if predicted is None else predicted)} | (behind or {}))
        if not masked:
            return []
        confidence = probability.max(-1).values.tolist()
        due, left = quota(options, step, len(masked) + unseen), len(masked)
        if options.strategy == "sequential":
            end = min(masked[0] + due, options.block_length)
            return [p for p in masked if p < end]
        if options.strategy == "klass":
            return self.klass(step, masked, probability, min(due, left))
        if options.strategy == "entropy_bounded":
            clamped = probability.clamp_min(1e-12)
            entropy = (-(clamped * clamped.log()).sum(-1)).tolist()
            ranked = sorted(masked, key=lambda p: (entropy[p], p))
            sums = torch.cumsum(torch.tensor([entropy[p] for p in ranked], dtype=torch.float64), 0)
            count = max(1, int((sums < options.eb_threshold).sum()))
            margin.of(*[float(s) - options.eb_threshold for s in sums])
            return self.first(ranked, count, entropy)
        score = self.scores(probability, confidence, top1, answer)
        if options.strategy == "prefix_ordered":
            span = [p for i, p in enumerate(masked) if p == masked[0] + i]
            passing = [score[p] >= options.threshold for p in span]
            margin.of(*[score[p] - options.threshold for p in span])
            count = passing.index(False) if False in passing else len(span)
            return span[:min(max(due, count), len(span))]
        ranked = sorted(masked, key=lambda p: (-score[p], p))
        if options.strategy in ("low_confidence_static", "pc_sampler"):
            count = min(due, left)
        elif options.strategy == "low_confidence_dynamic":
            sure = sum(score[p] > options.threshold for p in masked)
            count = sure if sure >= due else min(due, left)
            margin.of(*[score[p] - options.threshold for p in masked])
        elif options.strategy == "threshold":
            count = max(1, sum(score[p] >= options.threshold for p in masked))
            if options.quota == "carry":
                count = max(1, min(count, self.due))
            margin.of(*[score[p] - options.threshold for p in masked])
        elif options.strategy == "factor":
            needed = [-1.0] + [1.0 - options.factor / (n + 1) for n in range(2, left + 1)]
            failing = [i for i in range(left) if score[ranked[i]] < needed[i]]
            count = failing[0] if failing else left - 1
            if count in (0, left - 1):
                count += 1
            margin.of(*[score[p] - n for p, n in list(zip(ranked, needed))[1:]])
        else:
            raise ValueError(options.strategy)
        return self.first(ranked, count, score)

    def begin_step(self, step, masks):
        """Fast-dLLM, confidence_threshold without a cache: what a step was due and left is due at the next."""
        share = quota(self.options, step, masks) if step < self.options.steps else 0
        self.due = share + self.carried

    def end_step(self, chosen):
        self.carried = self.due - chosen if self.options.quota == "carry" else 0

    def goes_on(self, step):
        return step < self.options.steps or self.carried > 0

    def first(self, ranked, count, score):
        if 0 < count < len(ranked):
            self.margin.of(score[ranked[count - 1]] - score[ranked[count]])
        return sorted(ranked[:count])

    def observe(self, distributions):
        """KLASS: how far each position moved since it was predicted before."""
        for position, now in distributions.items():
            now = now.double()
            track = self.tracks.setdefault(position, [torch.zeros_like(now), []])
            track[1].append(float((now * ((now + 1e-12).log() - (track[0] + 1e-12).log())).sum()))
            track[0] = now

    def klass(self, step, masked, probability, due):
        """KLASS, stable_confident_decode: the history goes on from block to block, its use begins anew."""
        options = self.options
        confidence = probability.double().max(-1).values.tolist()
        ready = []
        for p in masked:
            last = self.tracks[self.begin + p][1][-options.kl_history:]
            if len(last) < options.kl_history or step < options.kl_history - 1:
                continue
            self.margin.of(*[kl - options.kl_threshold for kl in last])
            self.margin.of(confidence[p] - options.threshold)
            if max(last) < options.kl_threshold and confidence[p] > options.threshold:
                ready.append(p)
        if ready:
            Rules.several[options.klass_choose] += len(ready) > 1
            rank = {"all": None, "max_conf": lambda p: -confidence[p],
                    "min_kl": lambda p: self.tracks[self.begin + p][1][-1]}[options.klass_choose]
            if rank is None:
                return ready
            return self.first(sorted(ready, key=rank), 1, {p: rank(p) for p in ready})
        ranked = sorted(masked, key=lambda p: (-confidence[p], p))
        return self.first(ranked, due, confidence)
