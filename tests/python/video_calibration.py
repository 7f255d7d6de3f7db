"""The released calibration and reuse of FlashBlock's video code, written from their rules in float64 with numpy
(Caesarhhh/Flash_Block at a322fb8, video/inference.py:236-301, video/wan/modules/causal_model.py:838-1009). It takes any
loop's queries, keys and values. Nothing of blockscope is used here.

A pass is one call of the model: a chunk, a step in it (0, 1, ...; the clean pass is the last one), and for each layer q
[S, H, T, D] and k, v [S, H, N, D]. The last T keys are the chunk's own; the others are its history."""

import dataclasses

import numpy as np

GAMMA, LSE_BOUND = 0.85, 0.05
TILE = 64


@dataclasses.dataclass
class Pass:
    start: int  # the chunk's first token
    timestep: float
    chunk: int = 0
    step: int = 0
    branch: int = 0
    calls: dict = dataclasses.field(default_factory=dict)  # layer: (q, k, v, the attention's output)


class Watcher:
    """Collects passes. A loop calls `tell` before each, and its attention calls `see`."""

    def __init__(self):
        self.passes, self._branch = [], 0

    def tell(self, start, timestep, branch=0):
        before = [p for p in self.passes if p.branch == branch]
        chunk, step = 0, 0
        if before:
            last, same = before[-1], before[-1].start == int(start)
            chunk, step = (last.chunk, last.step + 1) if same else (last.chunk + 1, 0)
        self.passes.append(Pass(int(start), float(timestep), chunk, step, branch))

    def see(self, layer, *tensors):
        assert layer not in self.passes[-1].calls
        self.passes[-1].calls[layer] = tuple(x.detach().double().cpu().numpy().copy() for x in tensors)

    def of(self, branch=0):
        return [p for p in self.passes if p.branch == branch]


# --- attention in parts -----------------------------------------------------------------------------------------------


def attention(q, k, v, rows=1024):
    """A [S, H, T, D] and L [S, H, T], natural, of scaled scores. Without keys: 0 and -inf."""
    out, lse = np.zeros_like(q), np.full(q.shape[:-1], -np.inf)
    for at in range(0, q.shape[2] if k.shape[2] else 0, rows):
        scores = q[:, :, at:at + rows] @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        out[:, :, at:at + rows], lse[:, :, at:at + rows] = weights @ v / total, (top + np.log(total))[..., 0]
    return out, lse


def parts(q, k, v, late=0):
    """(A_out, L_out), (A_in, L_in). late: so many of the chunk's own tokens count as history."""
    border = k.shape[2] - q.shape[2] + late
    return attention(q, k[:, :, :border], v[:, :, :border]), attention(q, k[:, :, border:], v[:, :, border:])


def merge(one, other):
    (a, la), (b, lb) = one, other
    top = np.maximum(la, lb)
    ea, eb = np.exp(la - top)[..., None], np.exp(lb - top)[..., None]
    return (a * ea + b * eb) / (ea + eb)


def tile_late(keys, chunk, tile=TILE):
    """Tokens of the chunk that the released kernel counts as history (flash_fwd_kernel.h:796)."""
    return (-(-keys // tile) - chunk // tile) * tile - (keys - chunk)


def cosine(a, b):
    """[S, H, T]"""
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def distance(now, kept):
    """Cosine and |dL| of each head: means over batch and tokens. now, kept: (A, L)."""
    return cosine(now[0], kept[0]).mean((0, 2)), np.abs(now[1] - kept[1]).mean((0, 2))


# --- calibration ------------------------------------------------------------------------------------------------------


def recompute(cos, lse, gamma=GAMMA, bound=LSE_BOUND):
    return (cos < gamma) | (lse > bound)


class Calibration:
    """Takes dense passes one by one, in their order. result(): (layer, step) -> means over the chunks with a history
    (cos, lse, cos_in: [H]), the final mask ([H], true: the head recomputes), and of_chunk: the same of each such chunk
    (cos, lse, provisional mask: [chunks, H]), whose indices are in `chunk`."""

    def __init__(self, steps=(1, 2, 3, 4), gamma=GAMMA, bound=LSE_BOUND):
        self.steps, self.gamma, self.bound = steps, gamma, bound
        self.kept, self.kept_in, self.found = {}, {}, {}

    def add(self, one, layer, out, inside):
        """out, inside: what parts() gives for that layer of the pass."""
        if one.step not in self.steps:
            self.kept[layer], self.kept_in[layer] = [x.copy() for x in out], inside[0]
            return
        cos, lse = distance(out, self.kept[layer])
        mask = recompute(cos, lse, self.gamma, self.bound)
        for old, new in zip(self.kept[layer], out):
            old[:, mask] = new[:, mask]
        values = one.chunk, cos, lse, cosine(inside[0], self.kept_in[layer]).mean((0, 2)), mask
        self.found.setdefault((layer, one.step), []).append(values)

    def result(self):
        results = {}
        for key, values in self.found.items():
            chunk, cos, lse, cos_in, mask = (np.array(x) for x in zip(*values))
            means = dict(cos=cos.mean(0), lse=lse.mean(0), cos_in=cos_in.mean(0))
            results[key] = dict(means, chunk=chunk, of_chunk=dict(cos=cos, lse=lse, mask=mask),
                                mask=recompute(means["cos"], means["lse"], self.gamma, self.bound))
        return results


def calibrate(passes, **settings):
    calibration = Calibration(**settings)
    for one in passes:
        for layer, (q, k, v, *_) in one.calls.items():
            if k.shape[2] > q.shape[2]:
                calibration.add(one, layer, *parts(q, k, v))
    return calibration.result()


def margin(found, gamma=GAMMA, bound=LSE_BOUND):
    """The smallest distance of a number from its threshold, over provisional and final decisions."""
    return min(min(np.abs(x["cos"] - gamma).min(), np.abs(x["lse"] - bound).min())
               for entry in found.values() for x in (entry, entry["of_chunk"]))


# --- the reusing run --------------------------------------------------------------------------------------------------


class Reuse:
    """What the attention of a reusing run gives. masks: (layer, step) -> [H], true: the head computes its history and
    replaces its pair. Steps without a mask compute everything."""

    def __init__(self, masks):
        self.masks, self.kept = masks, {}

    def merged(self, layer, step, out, inside):
        """[S, H, T, D]; out, inside: what parts() gives for that layer of the pass."""
        mask = self.masks.get((layer, step))
        if mask is None:
            self.kept[layer] = [x.copy() for x in out]
        else:
            for old, new in zip(self.kept[layer], out):
                old[:, mask] = new[:, mask]
        return merge(self.kept[layer], inside)
