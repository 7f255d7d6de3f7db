"""Attention of blockscope.record() in nn.MultiheadAttention. The judge: float64 recomputation of each layer's input,
its weights and masks (recorded_modules.py)."""

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import blockscope  # noqa: E402
from recorded_modules import (HEADS, BLOCK, HIDDEN, IDS, LENGTH, MASK, OPTIONS, WIDTH, Model, check,  # noqa: E402
                              hidden, nothing)

BIAS = torch.randn(2 * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[True], [False]]) & (torch.arange(LENGTH) == 3)


def biased(scores, head, row):
    return scores + BIAS[row * HEADS + head, -BLOCK:].double().numpy()


def padded(scores, head, row):
    return np.where(PADDING[row], -np.inf, hidden(scores, head, row))


def of_rows_first(mha, x, keys=None, **options):
    x, keys = x.transpose(0, 1), (x if keys is None else keys).transpose(0, 1)
    return mha(x, keys, keys, **options)[0].transpose(0, 1)


def of_function(mha, x, need_weights):
    x = x.transpose(0, 1)
    return F.multi_head_attention_forward(
        x, x, x, WIDTH, HEADS, mha.in_proj_weight, mha.in_proj_bias, None, None, False, 0.0, mha.out_proj.weight,
        mha.out_proj.bias, training=False, need_weights=need_weights, attn_mask=HIDDEN)[0].transpose(0, 1)


def wide(mha, x):
    """Keys and values of more channels than queries: PyTorch keeps three matrices."""
    return of_rows_first(mha, x, F.pad(x, (0, 1)))


FAST = {"batch_first": True}  # PyTorch's fused kernel, where no gradient is wanted
MODULES = {
    "fused": (lambda mha, x: mha(x, x, x, need_weights=False)[0], FAST, nothing),
    "fused, weights": (lambda mha, x: mha(x, x, x)[0], FAST, nothing),
    "fused, masks": (lambda mha, x: mha(x, x, x, PADDING, False, HIDDEN)[0], FAST, padded),
    "keys are others": (lambda mha, x: mha(x, x.clone(), x, need_weights=False)[0], FAST, nothing),
    "weights": (lambda mha, x: of_rows_first(mha, x, attn_mask=BIAS), {}, biased),
    "no weights": (lambda mha, x: of_rows_first(mha, x, attn_mask=HIDDEN, need_weights=False), {}, hidden),
    "three matrices": (wide, {"kdim": WIDTH + 1, "vdim": WIDTH + 1, "bias": False}, nothing),
    "function": (lambda mha, x: of_function(mha, x, False), {}, hidden),
    "function, weights": (lambda mha, x: of_function(mha, x, True), {}, hidden)}


@pytest.mark.parametrize("name, heads", [*((name, None) for name in MODULES), ("weights", [1, 3])])
@torch.no_grad()
def test_multihead_attention(tmp_path, monkeypatch, name, heads):
    attend, options, change = MODULES[name]
    model, kernel, fused = Model(attend, **options).eval(), torch._native_multi_head_attention, []
    monkeypatch.setattr(torch, "_native_multi_head_attention", lambda *args: fused.append(args) or kernel(*args))
    plain = model(IDS)
    with blockscope.record(model, tmp_path / "run.h5", heads=heads, **OPTIONS) as run:
        assert torch.equal(model(IDS), plain)  # to the last bit
        run.end_sequence(IDS.masked_fill(IDS == MASK, 7))
    assert len(fused) == (2 * len(model.layers) if name.startswith("fused") else 0)  # with a recording too
    check(tmp_path / "run.h5", model, change, heads=heads or range(HEADS))


@torch.no_grad()
def test_layers_that_are_the_module_itself(tmp_path):
    model = Model(None).eval()
    model.layers = nn.ModuleList(layer.mha for layer in model.layers)
    for layer in model.layers:
        layer.batch_first = True
    model.forward = lambda input_ids: through_modules(model, input_ids)
    with blockscope.record(model, tmp_path / "run.h5", heads=[1, 3], **OPTIONS) as run:
        model(IDS)
        run.end_sequence(IDS.masked_fill(IDS == MASK, 7))
    check(tmp_path / "run.h5", model, nothing, heads=[1, 3])


def through_modules(model, input_ids):
    x, model.inputs = model.embed(input_ids) + model.place.weight[:LENGTH], []
    for layer in model.layers:
        model.inputs.append(x.double().numpy())
        x = x + layer(x, x, x, need_weights=False)[0]
    return x @ model.embed.weight.T


@pytest.mark.parametrize("options, message", [({"add_bias_kv": True}, "keys of the module's own.*add_bias_kv"),
                                              ({"add_zero_attn": True}, "a key of zeros.*add_zero_attn")])
@torch.no_grad()
def test_modules_with_other_keys_are_refused(tmp_path, options, message):
    model = Model(lambda mha, x: mha(x, x, x)[0], batch_first=True, **options).eval()
    with pytest.raises(blockscope.UsageError, match=message):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(IDS)
    plain = model(IDS)  # no recording is open any more
    assert torch.equal(model(IDS), plain)


@torch.no_grad()
def test_a_mask_that_the_module_does_not_follow_is_refused(tmp_path):
    """With is_causal PyTorch takes the mask for the triangle, whatever it is."""
    model = Model(lambda mha, x: of_rows_first(mha, x, attn_mask=HIDDEN, is_causal=True, need_weights=False)).eval()
    with pytest.raises(blockscope.UsageError, match=r"nn\.MultiheadAttention: what its queries, keys and mask give"):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(IDS)
