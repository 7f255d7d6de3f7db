"""Attention of blockscope.record() in nn.MultiheadAttention, and what run.attention() states. The judge: float64
recomputation of each layer's input, its weights and masks."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import blockscope  # noqa: E402
from recording_judges import check_array, split  # noqa: E402

HEADS, WIDTH, BLOCK, LENGTH, MASK = 4, 32, 8, 21, 59
IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, *[MASK] * BLOCK],
                    [9, 5, 3, 4, 8, 6, 7, 8, 1, 10, 2, 12, 40, *[MASK] * BLOCK]])
OPTIONS = dict(block_length=BLOCK, mask_token_id=MASK, array_type="f32", set_size=3)


class Block(nn.Module):
    def __init__(self, attend, **options):
        super().__init__()
        self.mha, self.attend = nn.MultiheadAttention(WIDTH, HEADS, **options), attend
        with torch.no_grad():
            for parameter in self.mha.parameters():
                parameter.normal_(std=0.3)

    def forward(self, x):
        return x + self.attend(self.mha, x)


class Model(nn.Module):
    def __init__(self, attend, layers=2, **options):
        super().__init__()
        torch.manual_seed(4)
        self.config = type("Config", (), dict(num_hidden_layers=layers, hidden_size=WIDTH, vocab_size=60,
                                              num_attention_heads=HEADS, num_key_value_heads=HEADS))()
        self.embed, self.place = nn.Embedding(60, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block(attend, **options) for _ in range(layers))
        self.inputs = []

    def forward(self, input_ids):
        x = self.embed(input_ids) + self.place.weight[:input_ids.shape[1]]
        self.inputs = []
        for layer in self.layers:
            self.inputs.append(x.detach().double().numpy())
            x = layer(x)
        return x @ self.embed.weight.T


def heads_of(x, weight, bias):
    """[T, E] -> [H, T, D]"""
    rows = x @ weight.detach().double().numpy().T + (0 if bias is None else bias.detach().double().numpy())
    return rows.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def check(path, model, change, heads=range(HEADS)):
    inside = np.arange(LENGTH) >= LENGTH - BLOCK
    with h5py.File(path) as file:
        for row in range(len(IDS)):
            for index, layer in enumerate(model.layers):
                mha = getattr(layer, "mha", layer)
                weights = mha.in_proj_weight.chunk(3) if mha.in_proj_weight is not None else [
                    mha.q_proj_weight, mha.k_proj_weight[:, :WIDTH], mha.v_proj_weight[:, :WIDTH]]
                biases = [None] * 3 if mha.in_proj_bias is None else mha.in_proj_bias.chunk(3)
                q, k, v = (heads_of(model.inputs[index][row], *both) for both in zip(weights, biases))
                expected = split(q[:, -BLOCK:], k, v, inside, lambda scores, head: change(scores, head, row))
                for name, value in zip(("external", "lse_external", "internal", "lse_internal"), expected):
                    check_array(name, file["/attention/" + name][row, index], value[heads], 2e-5)


HIDDEN = torch.arange(LENGTH * LENGTH).view(LENGTH, LENGTH) % 7 == 0
BIAS = torch.randn(2 * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[True], [False]]) & (torch.arange(LENGTH) == 3)


def nothing(scores, head, row):
    return scores


def hidden(scores, head, row):
    return np.where(HIDDEN[-BLOCK:], -np.inf, scores)


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


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_multihead_attention(tmp_path, name):
    attend, options, change = MODULES[name]
    model = Model(attend, **options).eval()
    plain = model(IDS)
    with blockscope.record(model, tmp_path / "run.h5", **OPTIONS) as run:
        assert torch.equal(model(IDS), plain)  # to the last bit
        run.end_sequence(IDS.masked_fill(IDS == MASK, 7))
    check(tmp_path / "run.h5", model, change)


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
    plain = model(IDS)  # nobody looks any more
    assert torch.equal(model(IDS), plain)


@torch.no_grad()
def test_a_mask_that_the_module_does_not_follow_is_refused(tmp_path):
    """With is_causal PyTorch takes the mask for the triangle, whatever it is."""
    model = Model(lambda mha, x: of_rows_first(mha, x, attn_mask=HIDDEN, is_causal=True, need_weights=False)).eval()
    with pytest.raises(blockscope.UsageError, match=r"nn\.MultiheadAttention: what its queries, keys and mask give"):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(IDS)


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
