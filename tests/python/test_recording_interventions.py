"""blockscope.record(interventions=...): what layers get and what the trace holds, against float64 attention with the
same keys left out, models whose weights or masks do the same, `blockscope capture --intervene`, and a recording without
interventions."""

import json
import math
import subprocess
import types

import attention_math as am
import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from torch.nn import functional as F  # noqa: E402

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, SIZE, check_array, compare_with_capture, rows_of  # noqa: E402

if not kernels.loaded():
    pytest.skip("this build has no operators", allow_module_level=True)

SHORT = PROMPT[:37]
REPLACE = dict(block_length=SIZE, attention="replace", array_type="f32")
EXACT_ONLY = ("/sets/", "/summary/external_mass", "/summary/similarity", "/summary/reuse_error")


class Watched:
    """In place of a PlainModel's attention: plain attention whose queries, keys, values and result stay here."""

    def __init__(self, model):
        self.calls, self.ids = [], []  # by pass, then by layer; by pass
        model.register_forward_pre_hook(lambda _, args: self.ids.append(args[0][0].tolist()))
        for layer in model.layers:
            layer.attend = self

    def __call__(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        self.calls.append(tuple(x.double().numpy().copy() for x in (q, k, v, out)))
        return out


def datasets(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.update({"/" + name: item[()]}) if isinstance(item, h5py.Dataset)
                        else None)
        return found, rows_of(file)


def equal_traces(one, other, *ignored):
    """Every dataset bit for bit, but what says how the trace was made."""
    (a, rows), (b, _) = datasets(one), datasets(other)
    assert a.keys() == b.keys()
    compared = 0
    for name, values in a.items():
        if name in ("/run/json", "/run_byte", "/steps/pass_time_ns") or name.startswith(ignored):
            continue
        assert np.array_equal(values, b[name], equal_nan=values.dtype.kind == "f"), name
        compared += 1
    assert compared > 20 and rows > 5


# --- against float64 --------------------------------------------------------------------------------------------------


def regions(keys, start, prompt, masked):
    """The region of each key of a row, from the definitions in docs/trace_format.md."""
    return np.array(["after" if p >= start + SIZE else ("masks" if masked[p - start] else "decided") if p >= start
                     else "first" if p < 4 else "prompt" if p < prompt else "answer" for p in range(keys)])


def mean_weights(q, k):
    scores = am.scores_of(q, k, q.shape[-1] ** -0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).mean(1)  # [H, N]


def seen_by(text, q, k, inside, region, prompt):
    """[H, N]: keys that the heads see."""
    name, *options = text.split(",")
    heads, keys = len(q), k.shape[1]
    seen = np.ones((heads, keys), bool)
    if name in ("drop_external", "drop_head"):
        seen &= inside
    if name in ("drop_internal", "drop_head"):
        seen &= ~inside
    option, _, value = (options[0] if options else "").partition("=")
    if option == "positions":
        low, high = map(int, value.split("-"))
        seen[:, low:high + 1] = False
    elif option == "region":
        seen &= region != value
    elif option == "token":
        at = [p for p in range(len(prompt)) if prompt[p] == int(value)]
        seen[:, at] = False
    elif option == "top":
        weights = mean_weights(q, k)
        np.put_along_axis(seen, np.argsort(-weights, -1)[:, :int(value)], False, -1)
    elif option == "sinks":
        seen &= ~((mean_weights(q, k) > float(value) / keys) & ~inside)
    return seen


TOKEN = SHORT[9]
TEXTS = ["drop_external", "drop_internal", "drop_head", "hide_keys,positions=2-5", "hide_keys,positions=0-400",
         "hide_keys,region=first", "hide_keys,region=prompt", "hide_keys,region=answer", "hide_keys,region=decided",
         "hide_keys,region=masks", f"hide_keys,token={TOKEN}", "hide_keys,top=3", "hide_keys,sinks=1.5"]
LOOPS = {"blocks": ("needle", models.decode_blocks, TEXTS),
         "canvas": ("needle-bidirectional", models.decode_canvas, [*TEXTS, "hide_keys,region=after"]),
         "prefix": ("needle-bidirectional", models.decode_prefix_cache, ["drop_external", "hide_keys,region=after"]),
         "dual": ("needle-bidirectional", models.decode_dual_cache, ["drop_head", "hide_keys,region=after"])}


@pytest.mark.parametrize("loop, text", [(loop, text) for loop, (_, _, texts) in LOOPS.items() for text in texts])
def test_parts_and_results_are_those_of_the_remaining_keys(tmp_path, loop, text):
    name, decode, _ = LOOPS[loop]
    model, layer, heads = models.PlainModel(name), 2, [0, 3, 4]
    watched, path = Watched(model), tmp_path / "run.h5"
    with blockscope.record(model, path, gen_length=32, interventions=f"{text},layers={layer},heads=0+3-4",
                           **REPLACE) as run:
        more = {"state": lambda start: run.step(start=start)} if loop == "dual" else {}
        run.end_sequence(decode(model, SHORT, 32, SIZE, **more))
    mask, layers, hidden = model.config.mask_token_id, len(model.layers), 0
    trace = blockscope.open(path)
    with h5py.File(path) as file:
        count, prompt = rows_of(file), int(file["/sequences/prompt_length"][0])
        denoising = np.flatnonzero(file["/steps/kind"][:count] == 1)
        assert len(denoising) >= 8
        for row, index in ((row, index) for row in denoising for index in range(layers)):
            number, start = int(file["/steps/pass"][row]), int(file["/steps/block_start"][row])
            q, k, v, out = (x[0] for x in watched.calls[number * layers + index])
            keys = k.shape[1]
            block = slice(start, start + SIZE) if q.shape[1] == keys else slice(0, SIZE)
            masked = [token == mask for token in watched.ids[number][block]]
            inside = (np.arange(keys) >= start) & (np.arange(keys) < start + SIZE)
            seen = np.ones((len(q), keys), bool)
            if index == layer:
                seen[heads] = seen_by(text, q[:, block], k, inside, regions(keys, start, prompt, masked),
                                      SHORT[:prompt])[heads]
                hidden += int((~seen).sum())
            scores = np.where(seen[:, None], am.scores_of(q[:, block], k, q.shape[-1] ** -0.5), -np.inf)
            check_array("result", out[:, block], am.attention(scores, v)[0], 3e-5)
            for part, chosen in (("external", ~inside), ("internal", inside)):
                output, lse = am.attention(scores[..., chosen], v[:, chosen])
                check_array(part, file[f"/attention/{part}"][row, index], output, 3e-5)
                check_array(part, file[f"/attention/lse_{part}"][row, index], lse, 3e-5)
            if q.shape[1] > SIZE:  # rows outside the block
                outside = np.delete(np.arange(q.shape[1]), block)
                check_array("outside", out[:, outside],
                            am.attend(q[:, outside], k, v, q.shape[-1] ** -0.5)[0], 3e-5)
            unknown = np.isnan(file["/spread/region"][row, index]).all(-1)
            assert unknown.tolist() == [head in heads and not seen.all() for head in range(len(q))]
        assert hidden > 0
        assert np.isnan(file["/summary/external_mass"][:count]).all() and (file["/sets/topk"][:count] == -1).all()
    assert trace.run["interventions"][0].startswith(text.split(",")[0] + f",layers={layer},heads=0+3+4")
