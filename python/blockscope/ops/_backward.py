"""Gradients of attention. Keys are walked again in pieces, and their probabilities are recomputed from the LSE that the
forward pass saved (FlashAttention, arXiv 2205.14135, algorithm 4; Dao 2023, arXiv 2307.08691, algorithm 2).

With p_j = exp(q . k_j * scale - lse), output o = sum p_j v_j, and gradients G of o and g of lse:

    dv_j = sum over rows of p_j G
    ds_j = p_j (G . v_j - G . o + g)        dq = scale sum_j ds_j k_j        dk_j = scale sum over rows of ds_j q

They are separate operators, so torch.compile doesn't trace loops with a length that depends on lengths and masks.
S sequences, H query heads, K KV heads (H = K * G), T query tokens, N keys, D head_dim. Sums are float32 (float64 for
float64 inputs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional, Union

import torch
from torch import Tensor

# Scores at a time; three arrays of this size live at once. On a CPU, 1 MiB of float32 fits in its caches: 32,768 keys
# took three quarters of the time that pieces of 64 MiB take.
_SCORES = 1 << 24
_SCORES_ON_CPU = 1 << 18

Heads = Union[slice, list[int]]
Gradients = tuple[Tensor, Tensor, Tensor]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _walk(q: Tensor, keys: Tensor, values: Tensor, output: Tensor, lse: Tensor, grad_output: Tensor, grad_lse: Tensor,
          scale: float, hidden: Optional[Tensor], with_keys: bool) -> Gradients:
    """q, output, grad_output [B, R, D] and lse, grad_lse [B, R] in wide floats; keys, values [B, N, D] of any float;
    hidden [B, N] bool, keys that no row sees. dq is wide; dk and dv have the keys' type, or no elements if not
    with_keys."""
    batch, rows, _ = q.shape
    # No visible key: lse is -inf, and every p below is exp(-inf) = 0.
    lse = lse.masked_fill(lse == -torch.inf, torch.inf).unsqueeze(-1)
    delta = (grad_output * output).sum(-1, keepdim=True) - grad_lse.unsqueeze(-1)
    dq = q.new_zeros(q.shape)
    dk, dv = (x.new_zeros(x.shape if with_keys else (0,)) for x in (keys, values))
    step = max(1, (_SCORES_ON_CPU if q.is_cpu else _SCORES) // max(1, batch * rows))
    for begin in range(0, keys.shape[1], step):
        piece = slice(begin, begin + step)
        k, v = keys[:, piece].to(q.dtype), values[:, piece].to(q.dtype)
        if hidden is not None:  # they may hold anything
            unseen = hidden[:, piece]
            k, v = (x.masked_fill(unseen.unsqueeze(-1), 0) for x in (k, v))
        p = torch.bmm(q, k.transpose(1, 2)).mul_(scale).sub_(lse).exp_()
        if hidden is not None:
            p.masked_fill_(unseen.unsqueeze(1), 0)
        ds = torch.bmm(grad_output, v.transpose(1, 2)).sub_(delta).mul_(p).mul_(scale)
        dq.baddbmm_(ds, k)
        if with_keys:
            dk[:, piece] = torch.bmm(ds.transpose(1, 2), q)
            dv[:, piece] = torch.bmm(p.transpose(1, 2), grad_output)
    return dq, dk, dv


class _Folded:
    """Rows by the KV head that they read: [S, K, G * T, D]. Gradients are added region by region."""

    def __init__(self, q: Tensor, keys: Tensor, values: Tensor, output: Tensor, lse: Tensor, grad_output: Tensor,
                 grad_lse: Tensor, with_keys: bool) -> None:
        wide, kv_heads = _wide(q), keys.shape[1]
        self.shape = q.shape
        self.rows = [x.to(wide).reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads * x.shape[2], *x.shape[3:])
                     for x in (q, output, lse, grad_output, grad_lse)]
        self.keys, self.values, self.with_keys = keys, values, with_keys
        self.dq = torch.zeros(self.rows[0].shape, dtype=wide, device=q.device)
        self.dk, self.dv = (torch.zeros(x.shape if with_keys else (0,), dtype=x.dtype, device=x.device)
                            for x in (keys, values))

    def add(self, sequences: slice, heads: Heads, length: int, scale: float, hidden: Optional[Tensor] = None) -> None:
        """The first `length` keys of these sequences and KV heads; hidden [sequences, heads, length]."""
        at = (sequences, heads)
        keys, values = (x[sequences, :, :length][:, heads] for x in (self.keys, self.values))
        dq, dk, dv = self._gradients(at, keys, values, scale, hidden)
        self.dq[at] = dq
        if self.with_keys:
            self.dk[(*at, slice(0, length))] = dk
            self.dv[(*at, slice(0, length))] = dv

    def add_chosen(self, sequence: int, index: Tensor, scale: float) -> None:
        """The keys of one sequence at index [K, k], -1 for none."""
        at = (slice(sequence, sequence + 1), slice(None))
        where = index.clamp(min=0).long().unsqueeze(-1).expand(-1, -1, self.shape[-1]).unsqueeze(0)
        dq, dk, dv = self._gradients(at, self.keys[at].gather(2, where), self.values[at].gather(2, where), scale,
                                     (index < 0).unsqueeze(0))
        self.dq[at] = dq
        if self.with_keys:  # padding adds its zeros to the first key
            self.dk[at].scatter_add_(2, where, dk)
            self.dv[at].scatter_add_(2, where, dv)

    def _gradients(self, at: tuple[slice, Heads], keys: Tensor, values: Tensor, scale: float,
                   hidden: Optional[Tensor]) -> Gradients:
        q, output, lse, grad_output, grad_lse = (x[at].flatten(0, 1) for x in self.rows)
        dq, dk, dv = _walk(q, keys.flatten(0, 1), values.flatten(0, 1), output, lse, grad_output, grad_lse, scale,
                           None if hidden is None else hidden.flatten(0, 1), self.with_keys)
        if self.with_keys:
            dk, dv = dk.view(keys.shape), dv.view(keys.shape)
        return dq.view(self.rows[0][at].shape), dk, dv

    def result(self) -> Gradients:
        return self.dq.view(self.shape), self.dk, self.dv


def _regions(lengths: list[int], live: Optional[Tensor]) -> Iterator[tuple[slice, Heads, int]]:
    """Sequences and KV heads that are walked together: all at once if they are alike."""
    if lengths and live is None and len(set(lengths)) == 1:
        yield slice(0, len(lengths)), slice(None), lengths[0]
        return
    for s, length in enumerate(lengths):
        heads: Heads = slice(None) if live is None else live[s].nonzero().flatten().tolist()
        if length > 0 and heads != []:
            yield slice(s, s + 1), heads, length


def _attention_backward(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Optional[Tensor], reused: Optional[Tensor], output: Tensor,
    lse: Tensor, grad_output: Tensor, grad_lse: Tensor, scale: float, with_keys: bool,
) -> Gradients:
    """Gradients for the first lengths[s] keys (None: all). reused [S, H, T] bool on the CPU: rows that took a cached
    output. A KV head's keys are read only if one of its rows needs them."""
    sequences, heads, kv_heads = q.shape[0], q.shape[1], keys.shape[1]
    live = None
    if reused is not None and bool(reused.any()):
        live = ~reused.reshape(sequences, kv_heads, heads // kv_heads * q.shape[2]).all(-1)
        there = reused.to(q.device)
        grad_output, grad_lse = grad_output.masked_fill(there.unsqueeze(-1), 0), grad_lse.masked_fill(there, 0)
        lse = lse.masked_fill(there, torch.inf)  # gradient of the cached pair, which says nothing about these scores
    folded = _Folded(q, keys, values, output, lse, grad_output, grad_lse, with_keys)
    counts = [keys.shape[2]] * sequences if lengths is None else lengths.tolist()
    for at, chosen, length in _regions(counts, live):
        folded.add(at, chosen, length, scale)
    return folded.result()


def _set_backward(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, index: Tensor, dense: Optional[Tensor], complement: bool,
    output: Tensor, lse: Tensor, grad_output: Tensor, grad_lse: Tensor, scale: float, with_keys: bool,
) -> Gradients:
    """Gradients for the keys in the sets index [S, K, k] (-1: none), or for those outside them. dense [S] bool on the
    CPU: sequences that read their whole prefix."""
    folded = _Folded(q, keys, values, output, lse, grad_output, grad_lse, with_keys)
    for s, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        whole = slice(s, s + 1)
        if complement:
            # Padding goes to one position after the prefix.
            where = torch.where(index[s] < 0, length, index[s]).long()
            hidden = torch.zeros(where.shape[0], length + 1, dtype=torch.bool, device=index.device)
            hidden.scatter_(1, where, True)
            folded.add(whole, slice(None), length, scale, hidden[:, :length].unsqueeze(0))
        elif dense is not None and bool(dense[s]):
            folded.add(whole, slice(None), length, scale)
        else:
            folded.add_chosen(s, index[s], scale)
    return folded.result()


def _prefill_backward(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, grad: Tensor, block_length: int, scale: float,
    query_start: int,
) -> Gradients:
    """Block-causal attention saves no LSE, so the scores of a few rows at a time are recomputed over all their keys."""
    wide, kv_heads, dim = _wide(q), keys.shape[1], q.shape[3]
    group, tokens = q.shape[1] // kv_heads, q.shape[2]
    dq = torch.zeros(q.shape, dtype=wide, device=q.device)
    dk, dv = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (keys, values))
    seen = (torch.arange(tokens, device=q.device) + query_start).div(block_length, rounding_mode="floor")
    seen = (seen + 1) * block_length  # keys that a token sees if the prefix is long enough
    for s, length in enumerate(lengths.tolist()):
        step = max(1, _SCORES // max(1, q.shape[1] * length))
        for begin in range(0, tokens if length else 0, step):
            end = min(tokens, begin + step)
            count = min(length, ((query_start + end - 1) // block_length + 1) * block_length)
            rows, grads = (x[s, :, begin:end].to(wide).reshape(kv_heads, -1, dim) for x in (q, grad))
            k, v = (x[s, :, :count].to(wide) for x in (keys, values))
            unseen = torch.arange(count, device=q.device) >= seen[begin:end, None]  # [rows of a head, count]
            scores = torch.bmm(rows, k.transpose(1, 2)).mul_(scale)
            scores.masked_fill_(unseen.repeat(group, 1), -torch.inf)
            p = torch.softmax(scores, -1)  # every token sees at least the first block
            ds = torch.bmm(grads, v.transpose(1, 2))
            ds = ds.sub_((p * ds).sum(-1, keepdim=True)).mul_(p).mul_(scale)
            dq[s, :, begin:end] = torch.bmm(ds, k).view(q.shape[1], end - begin, dim)
            dk[s, :, :count] += torch.bmm(ds.transpose(1, 2), rows)
            dv[s, :, :count] += torch.bmm(p.transpose(1, 2), grads)
    return dq, dk.to(keys.dtype), dv.to(values.dtype)


def _shapes(q: Tensor, keys: Tensor, values: Tensor, with_keys: bool) -> Gradients:
    dk, dv = (x.new_empty(x.shape if with_keys else (0,)) for x in (keys, values))
    return q.new_empty(q.shape, dtype=_wide(q)), dk, dv


_RETURNS = "-> (Tensor, Tensor, Tensor)"

attention_backward = torch.library.custom_op(
    "blockscope::attention_backward", _attention_backward, mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor values, Tensor? lengths, Tensor? reused, Tensor output, Tensor lse, "
           f"Tensor grad_output, Tensor grad_lse, float scale, bool with_keys) {_RETURNS}")
set_backward = torch.library.custom_op(
    "blockscope::set_backward", _set_backward, mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor index, Tensor? dense, bool complement, "
           "Tensor output, Tensor lse, Tensor grad_output, Tensor grad_lse, float scale, bool with_keys) "
           f"{_RETURNS}")
prefill_backward = torch.library.custom_op(
    "blockscope::prefill_backward", _prefill_backward, mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor grad, int block_length, float scale, "
           f"int query_start) {_RETURNS}")
attention_backward.register_fake(lambda q, keys, values, *rest: _shapes(q, keys, values, rest[-1]))
set_backward.register_fake(lambda q, keys, values, *rest: _shapes(q, keys, values, rest[-1]))
prefill_backward.register_fake(lambda q, keys, values, *rest: _shapes(q, keys, values, True))
