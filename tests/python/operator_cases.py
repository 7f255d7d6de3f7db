"""Arguments for every operator of blockscope.ops, and what split attention is: plain torch in float64, straight from
the definition, which autograd differentiates by itself."""

import dataclasses

import attention_math as am
import torch

INF = float("inf")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """S sequences, H query heads, K KV heads, T tokens, N external keys, B internal keys, D head_dim."""

    ext_len: tuple[int, ...]
    H: int = 4
    K: int = 2
    T: int = 3
    N: int = 7
    B: int = 5
    D: int = 8
    scale: float = 0.4

    @property
    def S(self):
        return len(self.ext_len)


CASES = {
    "grouped": Sizes((7, 4)),
    "an empty prefix": Sizes((0, 7, 3), H=2, K=2, T=1, B=1, D=16),
    "no room for a prefix": Sizes((0, 0), H=6, K=1, N=0),
    "equal lengths": Sizes((5, 5), H=6, K=3),
    "no block": Sizes((5,), H=2, K=1, B=0),
    "large": Sizes((130, 65), H=8, K=2, T=16, N=130, B=16, D=32),
}


def attention_inputs(sizes, dtype=torch.float32, seed=0):
    """q, k_ext, v_ext, k_in, v_in; NaN after ext_len, where no operator may read."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    q, (k_ext, v_ext, k_in, v_in) = random(sizes.S, sizes.H, sizes.T, sizes.D), (
        random(sizes.S, sizes.K, keys, sizes.D) for keys in (sizes.N, sizes.N, sizes.B, sizes.B))
    for s, length in enumerate(sizes.ext_len):
        k_ext[s, :, length:] = v_ext[s, :, length:] = torch.nan
    return q, k_ext, v_ext, k_in, v_in


def sets(sizes, k=4, seed=1):
    """index [S, K, k] int32: up to k different keys in any order; -1 after them, or before them in even heads."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.full((sizes.S, sizes.K, k), -1, dtype=torch.int32)
    for s, length in enumerate(sizes.ext_len):
        for head in range(sizes.K):
            found = torch.randperm(length, generator=generator)[:k - (s + head) % 2].int()
            index[s, head, slice(len(found)) if head % 2 else slice(k - len(found), None)] = found
    return index


# --- float64


def within(sizes):
    """[S, K, N] bool: the keys that count."""
    return (torch.arange(sizes.N) < torch.tensor(sizes.ext_len)[:, None])[:, None].expand(sizes.S, sizes.K, sizes.N)


def chosen(sizes, index):
    """[S, K, N] bool: the keys of the sets."""
    found = torch.zeros(sizes.S, sizes.K, sizes.N + 1, dtype=torch.bool)
    found.scatter_(2, torch.where(index < 0, sizes.N, index).long(), True)
    return found[..., :sizes.N]


def part(q, keys, values, seen, scale):
    """Attention over the keys of `seen` [S, K, N], or [S, 1, T, N]."""
    return am.attend(q, keys, values, scale, seen[:, :, None, None] if seen.dim() == 3 else seen[:, :, None])


def split(sizes, inputs, seen=None, cached=None, residual=None):
    """out, external, lse_external, internal, lse_internal. seen [S, K, N]; cached: (external, lse, reuse [S, H, T or 1])."""
    q, k_ext, v_ext, k_in, v_in = inputs
    external = part(q, k_ext, v_ext, within(sizes) if seen is None else seen, sizes.scale)
    if cached is not None:
        reuse = cached[2]
        external = (torch.where(reuse[..., None], cached[0], external[0]), torch.where(reuse, cached[1], external[1]))
    internal = am.attend(q, k_in, v_in, sizes.scale)
    return (am.merge([external, internal, *([residual] if residual else [])])[0], *external, *internal)


def refreshed(sizes):
    """Rows of each sequence, [S, T] bool: its own in each, none in the last."""
    rows = (torch.arange(sizes.T) + torch.arange(sizes.S)[:, None]) % 3 == 0
    rows[-1] = False
    return rows


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    turning = cos.shape[-1]
    low, high = x[..., :turning // 2], x[..., turning // 2:turning]
    return torch.cat([x[..., :turning] * cos + torch.cat([-high, low], -1) * sin, x[..., turning:]], -1)


def all_calls(dtype=torch.float32, device="cpu", sizes=CASES["grouped"], grad=False):
    """(name, arguments of torch.ops.blockscope.<name>) for every operator. grad: float tensors require gradients."""
    q, k_ext, v_ext, k_in, v_in = (x.nan_to_num(0.5) for x in attention_inputs(sizes, dtype))
    generator = torch.Generator().manual_seed(9)
    outputs = [torch.randn(q.shape, generator=generator) for _ in range(3)]
    lses = [torch.randn(q.shape[:3], generator=generator) for _ in range(3)]
    lengths, index = torch.tensor(sizes.ext_len), sets(sizes)
    weight = torch.rand(sizes.D, generator=generator).to(dtype)
    cos, sin = (torch.randn(1, 1, sizes.T, sizes.D - 2, generator=generator) for _ in range(2))
    pages = [k_ext[:, :, :4] + 1, k_ext[:, :, :4] - 1]
    keys = k_in[:, :, :sizes.T]
    reuse = torch.arange(sizes.H) < sizes.H // 2
    scale = sizes.scale
    calls = [
        ("split_attention", (q, k_ext, v_ext, lengths, k_in, v_in, scale)),
        ("reuse_attention", (q, k_ext, v_ext, lengths, k_in, v_in, outputs[0], lses[0], reuse, scale)),
        ("reuse_attention", (q, k_ext, v_ext, lengths, k_in, v_in, outputs[0], lses[0], reuse, scale,
                             refreshed(sizes))),
        ("prefill_attention", (q, k_ext, v_ext, lengths, 2, scale, 1)),
        ("merge_attention", (outputs, lses)),
        ("block_topk", (q, k_ext, lengths, lses[0], 3, scale)),
        ("token_topk", (q, k_ext, lengths, lses[0], 3, scale)),
        ("gather_attention", (q, k_ext, v_ext, lengths, index, k_in, v_in, scale, torch.arange(sizes.S) == 0,
                              outputs[0], lses[0])),
        ("gather_attention", (q, k_ext, v_ext, lengths, index, k_in, v_in, scale)),
        ("unselected_attention", (q, k_ext, v_ext, lengths, index, scale)),
        ("page_bounds", (k_ext, lengths, 2)),
        ("page_scores", (q, *pages, lengths, 2)),
        ("token_page_scores", (q, *pages, lengths, 2)),
        ("cross_step_similarity", (q, q + 1)),
        ("rms_norm_rows", (q, weight, 1e-6, True)),
        ("add_rms_norm_rows", (q, q + 1, weight, 1e-6, False)),
        ("norm_rotate_rows", (q, keys, weight, None, cos, sin, 1e-6, False)),
        ("silu_multiply", (q, q + 1)),
    ]
    on_cpu = {id(lengths), id(reuse)}  # and dense, which is the only other mask

    def place(x):
        if isinstance(x, list):
            return [place(one) for one in x]
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in on_cpu and x.dtype != torch.bool:
            x = x.to(device)
        return x.detach().clone().requires_grad_() if grad and x.is_floating_point() else x

    return [(name, tuple(place(x) for x in arguments)) for name, arguments in calls]
