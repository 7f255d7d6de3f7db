"""The judge of recorded videos: what the model's own watcher saw (video_models.watch), computed anew in float64 with
numpy. Nothing here knows Blockscope but the names of datasets."""

import h5py
import numpy as np

KINDS = {"prefill": 0, "denoise": 1, "commit": 2}


def attention(q, k, v):
    """A [H, T, D] and L [H, T] of q over k and v; zeros and -inf without keys."""
    if k.shape[1] == 0:
        return np.zeros((*q.shape[:2], v.shape[-1])), np.full(q.shape[:2], -np.inf)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    top = scores.max(-1, keepdims=True)
    lse = np.log(np.exp(scores - top).sum(-1)) + top[..., 0]
    return np.exp(scores - lse[..., None]) @ v, lse


def cosines(a, b):
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def merge(a_out, l_out, a_in, l_in):
    weight = (1 / (1 + np.exp(l_in - l_out)))[..., None]
    return weight * a_out + (1 - weight) * a_in


class Seen:
    """A pass's attention by layer, for one sequence."""

    def __init__(self, calls, slot, block):
        self.parts = []  # (A_out, L_out, A_in, L_in, q), float64
        self.external = []  # keys before the block's own
        for _, q, k, v, _ in calls:
            q, k, v = (x[slot].double().numpy() for x in (q, k, v))
            n = k.shape[1] - block
            self.external.append(n)
            self.parts.append((*attention(q, k[:, :n], v[:, :n]), *attention(q, k[:, n:], v[:, n:]), q))


def pair_sums(now, old):
    """[H, 7] of /summary/step_pair, from the parts of two steps."""
    a_out, l_out, a_in, l_in, _ = now
    true, got = merge(a_out, l_out, a_in, l_in), merge(old[0], old[1], a_in, l_in)
    error = got - true
    return np.stack([np.full(len(true), float(true.shape[1])), cosines(a_out, old[0]).sum(-1),
                     abs(l_out - old[1]).sum(-1), (error ** 2).sum((1, 2)), abs(error).sum((1, 2)),
                     (true ** 2).sum((1, 2)), (true * got).sum((1, 2))], -1)


def close(found, wanted, tolerance):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert np.array_equal(np.isneginf(found), np.isneginf(wanted))
    known = np.isfinite(wanted)
    found, wanted = found[known], wanted[known]
    error = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1.0)
    assert error.size == 0 or error.max() <= tolerance, error.max()


def check_rows(path, calls, block, layers, slot=0, sequence=0, tolerance=2e-5, errors=True):
    """Every denoising and clean row of a sequence. calls: of all its passes, in order, layer by layer. errors:
    whether the errors of reuse are checked, too. Returns the rows' scalars."""
    with h5py.File(path) as file:
        mine = np.flatnonzero(file["/steps/sequence"][:int(file["/steps/committed"][0])] == sequence)
        scalars = {name: file[f"/steps/{name}"][:][mine] for name in (
            "kind", "block", "block_start", "step", "context_length", "timestep", "recorded")}
        assert len(calls) == len(mine) * layers
        places, steps = file["/block_position"][:], {}
        for i, row in enumerate(mine):
            if scalars["kind"][i] == KINDS["prefill"]:
                continue
            seen, step = Seen(calls[i * layers:(i + 1) * layers], slot, block), scalars["step"][i]
            if step == 1:
                steps.clear()
            steps[step] = seen
            assert set(seen.external) == {scalars["context_length"][i]}
            for layer, parts in enumerate(seen.parts):
                check_layer(file, row, layer, step, parts, {s: one.parts[layer] for s, one in steps.items()},
                            seen.external[layer], places, tolerance, errors)
    return scalars


def check_layer(file, row, layer, step, parts, steps, external, places, tolerance, with_errors):
    a_out, l_out, a_in, l_in, q = parts
    heads, nothing = len(q), np.full(len(q), np.nan)
    at = file["/attention/lse_external"][row, layer], file["/attention/lse_internal"][row, layer]
    close(at[0], l_out[:, places], tolerance)
    close(at[1], l_in[:, places], tolerance)
    if "external" in file["attention"]:
        for name, wanted in (("/attention/external", a_out), ("/attention/internal", a_in), ("/query/query", q)):
            close(file[name][row, layer], wanted[:, places], tolerance)
    summary = {name: values[row, layer] for name, values in file["summary"].items() if name not in (
        "step_pair", "reuse_error", "kept_pair", "hidden_gap")}
    close(summary["external_mass"], (1 / (1 + np.exp(l_in - l_out))).mean(-1) if external else nothing, tolerance)
    last = steps.get(step - 1)
    close(summary["similarity_internal"], nothing if last is None else cosines(a_in, last[2]).mean(-1), tolerance)
    close(summary["similarity_external"],
          nothing if last is None or not external else cosines(a_out, last[0]).mean(-1), tolerance)
    pairs = file["/summary/step_pair"][row, :, layer]
    wanted = np.full(pairs.shape, np.nan)
    for earlier in range(1, step) if external else ():
        if earlier <= len(wanted):
            wanted[earlier - 1] = pair_sums(parts, steps[earlier])
    close(pairs[..., :7 if with_errors else 3], wanted[..., :7 if with_errors else 3], 5 * tolerance)
    errors, kept = file["/summary/reuse_error"][row, :, layer], file["/summary/kept_pair"][row, :, layer]
    if external and step > 1 and with_errors:
        close(errors, np.broadcast_to(wanted[0][:, 3:], errors.shape), 5 * tolerance)
        close(kept[:, :, 1], np.broadcast_to(wanted[0][:, [0, 1, 2, 3, 5]], kept[:, :, 1].shape),
              5 * tolerance)
        assert not kept[:, :, [0, 2]].any()
    assert np.isnan(kept).all() or step > 1 and external
    if step > 1:
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, steps[1][4])]
        close(summary["query_gap"], np.linalg.norm(unit[0] - unit[1], axis=-1).mean(-1), tolerance)
    assert heads == len(pairs[0])
