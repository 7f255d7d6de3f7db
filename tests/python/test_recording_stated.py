"""Attention that blockscope.record() can't see: what run.attention() states, and which operation an error names. The
judge: float64 recomputation of each layer's input, its weights and masks (recorded_modules.py)."""

import pathlib
import re

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

from torch.nn import functional as F  # noqa: E402

import blockscope  # noqa: E402
from recorded_modules import HEADS, HIDDEN, IDS, MASK, OPTIONS, Model, check, hidden  # noqa: E402
from recording_checks import check_array, split  # noqa: E402


# --- stated -----------------------------------------------------------------------------------------------------------


def attend_unseen(mha, x):
    """Attention that nothing sees: a head at a time, over matrices."""
    q, k, v = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2)
               for rows in F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
    out = torch.stack([torch.stack([(a @ b.T * 0.5).masked_fill(HIDDEN, -torch.inf).softmax(-1) @ c
                                    for a, b, c in zip(*heads)]) for heads in zip(q, k, v)])
    return q, k, v, mha.out_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("mask", [~HIDDEN, torch.zeros(HIDDEN.shape).masked_fill(HIDDEN, -torch.inf)[None]],
                         ids=["bool", "added"])
@torch.no_grad()
def test_attention_that_is_stated(tmp_path, mask):
    run = None

    def attend(mha, x):
        layer = next(i for i, one in enumerate(model.layers) if one.mha is mha)
        q, k, v, out = attend_unseen(mha, x)
        if run is not None:
            run.attention(layer, q, k, v, mask=mask, scale=0.5)
            F.scaled_dot_product_attention(q, k, v)  # no longer looked at: the layer is stated
        return out

    model = Model(attend).eval()
    plain = model(IDS)
    with blockscope.record(model, tmp_path / "run.h5", **OPTIONS) as run:
        assert torch.equal(model(IDS), plain)
        with run.paused():
            model(IDS)
        run.end_sequence(IDS.masked_fill(IDS == MASK, 7))
    assert torch.equal(model(IDS), plain)  # outside of a recording it does nothing
    check(tmp_path / "run.h5", model, lambda scores, head, row: hidden(scores * 0.5 * 8 ** 0.5, head, row))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["/steps/committed"][0] == 2 and file["/model"].attrs["num_kv_heads"] == HEADS


@torch.no_grad()
def test_the_lines_of_the_document(tmp_path):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "python.md").read_text()
    lines, = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "run.attention(" in block]
    names = {}
    exec(lines.replace('"stated.h5"', repr(str(tmp_path / "stated.h5"))), names)
    layer, ids = names["model"].layers[0], names["ids"]
    q, k, v = layer.project(names["model"].embed(ids)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).double().numpy()
    expected = split(q[0][:, 4:], k[0], v[0], np.arange(8) >= 4, lambda scores, head: scores)
    with h5py.File(tmp_path / "stated.h5") as file:
        for name, value in zip(("external", "lse_external", "internal", "lse_internal"), expected):
            check_array(name, file["/attention/" + name][0, 0], value, 1e-2)  # bfloat16


WRONG = {
    r"layer: expected 0 to 1, got 2": lambda q, k, v: ((2, q, k, v), {}),
    r"q: expected a float tensor \[2, H, T, D\].*got torch.float32 \[4, 21, 8\]": lambda q, k, v: ((0, q[0], k, v), {}),
    r"k: expected a float tensor \[2, K, N, D\].*got torch.int64": lambda q, k, v: ((0, q, k.long(), v), {}),
    r"expected .*a multiple of the KV heads; got q .*, k \[2, 3, 21, 8\]":
        lambda q, k, v: ((0, q, k[:, :3], v[:, :3]), {}),
    r"mask: expected .*broadcast to \[2, 4, 21, 21\], got torch.bool \[21, 20\]":
        lambda q, k, v: ((0, q, k, v), {"mask": HIDDEN[:, :20]})}


@pytest.mark.parametrize("message", WRONG)
@torch.no_grad()
def test_what_is_stated_wrongly_is_named(tmp_path, message):
    def attend(mha, x):
        q, k, v, out = attend_unseen(mha, x)
        args, kwargs = WRONG[message](q, k, v)
        run.attention(*args, **kwargs)
        return out

    with pytest.raises(blockscope.UsageError, match="run.attention: " + message):
        model = Model(attend).eval()
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS) as run:
            model(IDS)


@torch.no_grad()
def test_a_layer_is_stated_once(tmp_path):
    def attend(mha, x):
        q, k, v, out = attend_unseen(mha, x)
        run.attention(0, q, k, v)
        run.attention(0, q, k, v)
        return out

    model = Model(attend).eval()
    with pytest.raises(blockscope.UsageError, match="layer 0: stated twice in one pass.*HINT"):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS) as run:
            model(IDS)


@torch.no_grad()
def test_two_attentions_of_a_layer_are_refused(tmp_path):
    """As Differential Transformer, whose second one is subtracted."""
    def attend(mha, x):
        q, k, v = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for rows in F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
        weights = [(a @ b.mT).softmax(-1) for a, b in ((q, k), (k, q))]
        return mha.out_proj((weights[0] @ v - 0.5 * (weights[1] @ v)).transpose(1, 2).flatten(2))

    model = Model(attend).eval()
    with pytest.raises(blockscope.UsageError, match=r"layers\.0.*more than once in a layer.*HINT.*run\.attention\("):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(IDS)


# --- where a trail was lost -------------------------------------------------------------------------------------------

LOST = {
    r"torch\.cumsum after the softmax": lambda s: torch.cumsum(s.softmax(-1), -1),
    r"torch\.Tensor\.masked_fill after the softmax": lambda s: s.softmax(-1).masked_fill(HIDDEN, 0.0),
    r"torch\.Tensor\.square after the product of queries": lambda s: s.square().softmax(-1),
    r"torch\.Tensor\.mul after the product of queries and keys \(scaled by a tensor of shape \[4, 1, 1\]":
        lambda s: s.mul(torch.ones(4, 1, 1)).softmax(-1),
    r"torch\.Tensor\.masked_fill after the product .*fills in -5, expected -10000 or less":
        lambda s: s.masked_fill(HIDDEN, -5.0).softmax(-1),
    r"torch\.cat after the product of queries":
        lambda s: torch.cat([s, s.new_zeros(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1],
    r"torch\.nn\.functional\.softmax after the product .*not along the keys": lambda s: F.softmax(s, 1),
    r"torch\.Tensor\.div after the exponential": lambda s: s.exp().div(2.0),
    r"torch\.Tensor\.masked_fill_ after the product .*writes through a view": lambda s: written_through_a_view(s),
}


def written_through_a_view(scores):
    scores.flatten(0, 1).masked_fill_(HIDDEN, -torch.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("message", LOST)
@torch.no_grad()
def test_the_operation_at_which_attention_was_lost(tmp_path, message):
    def attend(mha, x):
        q, k, v = (rows.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for rows in F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
        out = LOST[message](q @ k.mT * 8 ** -0.5) @ v
        return mha.out_proj(out.transpose(1, 2).flatten(2))

    with pytest.raises(blockscope.UsageError, match=rf"In layers\.0 .*lost at {message}.*HINT.*run\.attention\("):
        model = Model(attend).eval()
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(IDS)
