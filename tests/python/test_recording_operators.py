"""Attention of operators: flash-attn 2 and 3, those of the kernels hub, and PyTorch's varlen attention. None of them
runs on a CPU, so operators of the same names and schemas replace them here, computed in float64."""

import importlib
from typing import List, Optional, Tuple

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from torch import Tensor  # noqa: E402

import attention_math as am  # noqa: E402
import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import PROMPT, SIZE, Kept, check_rows, rows_of  # noqa: E402


def attention(q, k, v, scale, causal, window, softcap):
    """q [S, T, H, D], k, v [S, N, K, D]; the triangle and the window are aligned to the last query and key."""
    heads, keys, values = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = am.scores_of(heads, keys, scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    behind = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if causal:
        hidden |= behind > 0
    if window[0] >= 0:
        hidden |= behind < -window[0]
    if window[1] >= 0:
        hidden |= behind > window[1]
    return am.attention(scores, values, ~hidden)[0].transpose(1, 2).to(q.dtype)


def packed(q, k, v, longest, *rest):
    """The same over sequences of one length, one after the other."""
    q, k, v = (x.view(-1, length, *x.shape[1:]) for x, length in zip((q, k, v), (longest[0], longest[1], longest[1])))
    return attention(q, k, v, *rest).flatten(0, 1)


def result(out):
    empty = torch.empty(0)
    return out.clone(), empty.clone(), empty.clone(), empty.clone()


def forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
            window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
            return_softmax: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    return result(attention(q, k, v, softmax_scale, causal, (window_size_left, window_size_right), softcap))


def varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                   max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
                   window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                   alibi_slopes: Optional[Tensor] = None, return_softmax: bool = False,
                   block_table: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
                   seqused_k: Optional[Tensor] = None, zero_tensors: bool = False,
                   num_splits: int = 0) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    if q.shape[0] % max_seqlen_q or k.shape[0] % max_seqlen_k:
        return result(torch.zeros_like(q))
    return result(packed(q, k, v, (max_seqlen_q, max_seqlen_k), softmax_scale, causal,
                         (window_size_left, window_size_right), softcap))


def forward_3(q: Tensor, k: Tensor, v: Tensor, k_new: Optional[Tensor] = None, v_new: Optional[Tensor] = None,
              qv: Optional[Tensor] = None, out_: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
              cu_seqlens_k: Optional[Tensor] = None, cu_seqlens_k_new: Optional[Tensor] = None,
              seqused_q: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
              max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
              page_table: Optional[Tensor] = None, kv_batch_idx: Optional[Tensor] = None,
              leftpad_k: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
              rotary_sin: Optional[Tensor] = None, seqlens_rotary: Optional[Tensor] = None,
              q_descale: Optional[Tensor] = None, k_descale: Optional[Tensor] = None,
              v_descale: Optional[Tensor] = None, softmax_scale: Optional[float] = None, causal: bool = False,
              window_size_left: int = -1, window_size_right: int = -1, attention_chunk: int = 0, softcap: float = 0.0,
              rotary_interleaved: bool = True, scheduler_metadata: Optional[Tensor] = None, num_splits: int = 1,
              pack_gqa: Optional[bool] = None, sm_margin: int = 0) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    rest = softmax_scale or q.shape[-1] ** -0.5, causal, (window_size_left, window_size_right), softcap
    if cu_seqlens_q is not None:
        return result(packed(q, k, v, (max_seqlen_q, max_seqlen_k), *rest))
    return result(attention(q, k, v, *rest))


def varlen(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
           is_causal: bool = False, scale: Optional[float] = None,
           window_size: Optional[List[int]] = None) -> Tuple[Tensor, Tensor, Tensor]:
    return result(packed(query, key, value, (max_q, max_k), scale or query.shape[-1] ** -0.5, is_causal,
                         window_size or (-1, -1), 0.0))[:3]


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    """Those of flash_attn 2.8 (flash_attn_interface.py) and 3 (hopper/flash_attn_interface.py)."""
    if hasattr(torch.ops.flash_attn, "_flash_attn_forward"):
        pytest.skip("the real flash_attn is loaded")
    for name, function in (("flash_attn::_flash_attn_forward", forward),
                           ("flash_attn::_flash_attn_varlen_forward", varlen_forward),
                           ("flash_attn_3::_flash_attn_forward", forward_3),
                           ("_flash_attn2_0a1b2c3::_flash_attn_forward", forward)):
        torch.library.custom_op(name, function, mutates_args=())
    importlib.import_module("torch.nn.attention.varlen")
    torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", varlen)


class Autograd(torch.autograd.Function):
    """As flash-attn's functions call their operator."""

    @staticmethod
    def forward(ctx, q, k, v, causal, window, softcap, alibi, dropout, scale):
        return torch.ops.flash_attn._flash_attn_forward(
            q, k, v, dropout, scale, causal=causal, window_size_left=window[0], window_size_right=window[1],
            softcap=softcap, alibi_slopes=alibi, return_softmax=False)[0]


def flash(q, k, v, causal=False, window=(-1, -1), softcap=0.0, alibi=None, dropout=0.0):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return Autograd.apply(q, k, v, causal, window, softcap, alibi, dropout, q.shape[-1] ** -0.5).transpose(1, 2)


def flash_varlen(q, k, v, **options):
    sequences, _, rows, _ = q.shape
    keys = k.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    starts = [torch.arange(sequences + 1, dtype=torch.int32) * length for length in (rows, keys)]
    out = torch.ops.flash_attn._flash_attn_varlen_forward(q, k, v, *starts, rows, keys, 0.0, q.shape[-1] ** -0.5,
                                                          options.pop("causal", False), **options)[0]
    return out.view(sequences, rows, *out.shape[1:]).transpose(1, 2)


def hub(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.ops._flash_attn2_0a1b2c3._flash_attn_forward.default(
        q, k, v, 0.0, q.shape[-1] ** -0.5, True, -1, -1, 0.0, None, False)[0].transpose(1, 2)


def flash_3(q, k, v, **options):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.ops.flash_attn_3._flash_attn_forward(q, k, v, **options)[0].transpose(1, 2)


def torch_varlen(q, k, v, window):
    from torch.nn.attention.varlen import varlen_attn

    rows, keys = q.shape[2], k.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    starts = [torch.tensor([0, length], dtype=torch.int32) for length in (rows, keys)]
    return varlen_attn(q, k, v, *starts, rows, keys, window_size=window)[None].transpose(1, 2)


def seen(left, right):
    """Keys `left` before and `right` after the query's own, counted from both ends."""
    return lambda s, h, row, key, rows: np.where(
        (key - row - (len(key) - rows) >= -left) & (key - row - (len(key) - rows) <= right), s, -np.inf)


FAR = 10_000
CALLS = {
    "flash": (lambda q, k, v: flash(q, k, v), seen(FAR, FAR)),
    "flash causal": (lambda q, k, v: flash(q, k, v, causal=True), seen(FAR, 0)),
    "flash window": (lambda q, k, v: flash(q, k, v, window=(20, 3)), seen(20, 3)),
    "flash causal window": (lambda q, k, v: flash(q, k, v, causal=True, window=(12, -1)), seen(12, 0)),
    "flash soft cap": (lambda q, k, v: flash(q, k, v, softcap=3.0), lambda s, h, row, key, rows: 3 * np.tanh(s / 3)),
    "varlen": (lambda q, k, v: flash_varlen(q, k, v), seen(FAR, FAR)),
    "varlen causal": (lambda q, k, v: flash_varlen(q, k, v, causal=True, window_size_left=30), seen(30, 0)),
    "hub": (hub, seen(FAR, 0)),
    "flash 3": (lambda q, k, v: flash_3(q, k, v, causal=True), seen(FAR, 0)),
    "flash 3 soft cap": (lambda q, k, v: flash_3(q, k, v, softmax_scale=q.shape[-1] ** -0.5, softcap=3.0),
                         lambda s, h, row, key, rows: 3 * np.tanh(s / 3)),
    "torch varlen": (lambda q, k, v: torch_varlen(q, k, v, (-1, -1)), seen(FAR, FAR)),
    "torch varlen causal": (lambda q, k, v: torch_varlen(q, k, v, (-1, 0)), seen(FAR, 0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_operators_are_what_float64_gives(tmp_path, name):
    attend, change = CALLS[name]
    model = models.PlainModel("needle")
    kept = Kept(model, lambda q, k, v, mask: attend(q, k, v))
    plain = models.decode_blocks(model, PROMPT[:40], 32, SIZE)
    kept.calls.clear()
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4):
        assert torch.equal(models.decode_blocks(model, PROMPT[:40], 32, SIZE), plain)
    check_rows(path, kept.calls, 6, change)


def test_a_batch_packed_one_sequence_behind_the_other(tmp_path):
    model = models.PlainModel("needle")
    for layer in model.layers:
        layer.attend = lambda q, k, v, mask: flash_varlen(q, k, v)
    mask = model.config.mask_token_id
    ids = torch.tensor([PROMPT[:16] + [mask] * 16, PROMPT[16:32] + [mask] * 16])
    paths = [tmp_path / f"{i}.h5" for i in range(3)]
    for path, rows in zip(paths, (ids, ids[:1], ids[1:])):
        with blockscope.record(model, path, block_length=16, array_type="f32", set_size=4), torch.no_grad():
            model(rows)
    with h5py.File(paths[0]) as both:
        for slot, path in enumerate(paths[1:]):
            with h5py.File(path) as one:
                row = np.flatnonzero(both["/steps/sequence"][:rows_of(both)] == slot)[0]
                for name in ("external", "internal", "lse_external"):
                    difference = both["/attention/" + name][row] - one["/attention/" + name][0]
                    assert np.abs(difference).max() < 1e-5


REFUSED = {
    r"ALiBi slopes \(alibi_slopes\)": lambda q, k, v: flash(q, k, v, alibi=torch.ones(6)),
    r"dropout of 0.25.*model\.eval": lambda q, k, v: flash(q, k, v, dropout=0.25),
    r"paged caches \(block_table\)": lambda q, k, v: flash_varlen(q, k, v, block_table=torch.zeros(1, 1)),
    r"longer than their keys \(seqused_k\)": lambda q, k, v: flash_varlen(q, k, v, seqused_k=torch.ones(1)),
    r"itself appends \(k_new\)": lambda q, k, v: flash_3(q, k, v, k_new=k),
    r"in chunks \(attention_chunk\)": lambda q, k, v: flash_3(q, k, v, attention_chunk=8),
    "sequences of different lengths": lambda q, k, v: torch.ops.flash_attn._flash_attn_varlen_forward(
        q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), torch.tensor([0, 5, 16]),
        torch.tensor([0, 5, k.shape[2]]), 11, k.shape[2] - 5, 0.0, 1.0, False)[0].transpose(0, 1)[None],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_recorded_is_named(tmp_path, message):
    model = models.PlainModel("needle")
    for layer in model.layers:
        layer.attend = lambda q, k, v, mask: REFUSED[message](q, k, v)
    with pytest.raises(blockscope.UsageError, match=message):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
            models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
