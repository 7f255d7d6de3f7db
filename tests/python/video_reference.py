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
    calls: dict = dataclasses.field(default_factory=dict)  # layer: (q, k, v)


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

    def see(self, layer, q, k, v, *_):
        assert layer not in self.passes[-1].calls
        self.passes[-1].calls[layer] = tuple(x.detach().double().cpu().numpy().copy() for x in (q, k, v))

    def of(self, branch=0):
        return [p for p in self.passes if p.branch == branch]


# --- attention in parts -----------------------------------------------------------------------------------------------


def attention(q, k, v):
    """A [S, H, T, D] and L [S, H, T], natural, of scaled scores. Without keys: 0 and -inf."""
    if k.shape[2] == 0:
        return np.zeros_like(q), np.full(q.shape[:-1], -np.inf)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v, (top + np.log(total))[..., 0]


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


def calibrate(passes, steps=(1, 2, 3, 4), gamma=GAMMA, bound=LSE_BOUND, late=None):
    """Over one branch's dense passes. Returns a dict of (layer, step) -> dict with means over the chunks that have a
    history (cos, lse, cos_in: [H]), the final mask (recompute: [H]), and for each such chunk cos, lse and provisional
    mask ([chunks, H]). late(keys, chunk): so many of the chunk's tokens count as history; None: the exact border."""
    kept, kept_in, found = {}, {}, {}
    for one in passes:
        for layer, (q, k, v) in one.calls.items():
            if k.shape[2] == q.shape[2]:
                continue
            out, inside = parts(q, k, v, late(k.shape[2], q.shape[2]) if late else 0)
            if one.step not in steps:
                kept[layer], kept_in[layer] = [x.copy() for x in out], inside[0]
                continue
            cos, lse = distance(out, kept[layer])
            mask = recompute(cos, lse, gamma, bound)
            for old, new in zip(kept[layer], out):
                old[:, mask] = new[:, mask]
            entry = found.setdefault((layer, one.step), dict(chunks=[], cos_in=[]))
            entry["chunks"].append((one.chunk, cos, lse, mask))
            entry["cos_in"].append(cosine(inside[0], kept_in[layer]).mean((0, 2)))
    for entry in found.values():
        chunks = entry.pop("chunks")
        entry.update(chunk=[c[0] for c in chunks], of_chunk=dict(
            (name, np.array([c[i] for c in chunks])) for i, name in ((1, "cos"), (2, "lse"), (3, "mask"))))
        entry.update(cos=entry["of_chunk"]["cos"].mean(0), lse=entry["of_chunk"]["lse"].mean(0),
                     cos_in=np.mean(entry["cos_in"], 0))
        entry["mask"] = recompute(entry["cos"], entry["lse"], gamma, bound)
    return found


def margin(found, gamma=GAMMA, bound=LSE_BOUND):
    """The smallest distance of a number from its threshold, over provisional and final decisions."""
    return min(min(np.abs(x["cos"] - gamma).min(), np.abs(x["lse"] - bound).min())
               for entry in found.values() for x in (entry, entry["of_chunk"]))


# --- the reusing run --------------------------------------------------------------------------------------------------


class Reuse:
    """What the attention of a reusing run gives, from its own queries, keys and values. masks: (layer, step) -> [H],
    true: the head computes its history and replaces its pair. Steps without a mask compute everything."""

    def __init__(self, masks, late=None):
        self.masks, self.late, self.kept = masks, late, {}

    def __call__(self, layer, step, q, k, v):
        """[S, H, T, D]"""
        if k.shape[2] == q.shape[2]:
            return attention(q, k, v)[0]
        out, inside = parts(q, k, v, self.late(k.shape[2], q.shape[2]) if self.late else 0)
        mask = self.masks.get((layer, step))
        if mask is None:
            self.kept[layer] = [x.copy() for x in out]
        else:
            for old, new in zip(self.kept[layer], out):
                old[:, mask] = new[:, mask]
        return merge(self.kept[layer], inside)
