"""Choosing keys: the most probable ones, and pages by bounds of their scores. Choices have no gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ._operator import lengths_of, operator, scale_of


__all__ = [
    "TopK", "TokenTopK", "PageBounds", "block_topk", "token_topk", "page_bounds", "page_scores", "token_page_scores",
]


class TopK(NamedTuple):
    index: Tensor  #: [S, K, k] int32, falling probability, ties to the lower position; -1 if ext_len < k
    probability: Tensor  #: [S, K, k] float32, 0 where index is -1


class TokenTopK(NamedTuple):
    index: Tensor  #: [S, K, T, k] int32, as in TopK
    probability: Tensor  #: [S, K, T, k] float32
    union_size: Tensor  #: [S, K] int32: distinct positions in the T sets


class PageBounds(NamedTuple):
    max: Tensor  #: [S, K, P, D] dtype of the keys: the largest value of each channel; 0 in pages after ext_len
    min: Tensor  #: [S, K, P, D]: the smallest


_block_topk = operator("block_topk")


def block_topk(
    q: Tensor, k_ext: Tensor, lse: Tensor, k: int, *, ext_len: Tensor | int | None = None, scale: float | None = None,
) -> TopK:
    """The k external keys with the largest mean softmax probability over the G * T queries of a KV head (MAGE, eqs.
    2-3).

    q [S, H, T, D]; k_ext [S, K, N, D]; lse [S, H, T] float32: lse_external normalises over the prefix, the merged lse
    over prefix and block. No gradient: results are as if detached.
    """
    return TopK(*_block_topk(q, k_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), lse, k, scale_of(q, scale)))


_token_topk = operator("token_topk")


def token_topk(
    q: Tensor, k_ext: Tensor, lse: Tensor, k: int, *, ext_len: Tensor | int | None = None, scale: float | None = None,
) -> TokenTopK:
    """Like :func:`block_topk`, for each query token separately (mean over its G queries). No gradient."""
    return TokenTopK(*_token_topk(
        q, k_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), lse, k, scale_of(q, scale)))


_page_bounds = operator("page_bounds")


def page_bounds(k_ext: Tensor, page_size: int, *, ext_len: Tensor | int | None = None) -> PageBounds:
    """Bounds of each channel in pages of page_size keys (Quest, arXiv 2406.10774, section 3.3). k_ext [S, K, N, D];
    P = ceil(N / page_size) pages. No gradient: results are as if detached."""
    return PageBounds(*_page_bounds(k_ext, lengths_of(ext_len, k_ext.shape[0], k_ext.shape[2]), page_size))


_page_scores = operator("page_scores")


def page_scores(q: Tensor, bounds: PageBounds, page_size: int, *, ext_len: Tensor | int | None = None) -> Tensor:
    """Upper bounds of the scores in a page, [S, K, P] float32: the mean over the G * T queries of a KV head of
    sum_d max(q_d * max_d, q_d * min_d), not scaled; -inf in pages after ext_len. q [S, H, T, D]; ext_len None: all
    pages count. No gradient: results are as if detached."""
    keys = bounds.max.shape[2] * page_size
    return _page_scores(q, bounds.max, bounds.min, lengths_of(ext_len, q.shape[0], keys), page_size)


_token_page_scores = operator("token_page_scores")


def token_page_scores(q: Tensor, bounds: PageBounds, page_size: int, *, ext_len: Tensor | int | None = None) -> Tensor:
    """Like :func:`page_scores`, for each query token separately, [S, K, T, P]: mean over its G queries. No gradient."""
    keys = bounds.max.shape[2] * page_size
    return _token_page_scores(q, bounds.max, bounds.min, lengths_of(ext_len, q.shape[0], keys), page_size)
