"""Gradients of blockscope.ops against float64 autograd of plain torch. The compiled operators take no float64, so that
torch.autograd.gradcheck can't judge them; what walks over the keys in the backward pass takes float64 and is judged in
it as well."""

import pytest

torch = pytest.importorskip("torch")

import attention_math as am  # noqa: E402
import operator_cases as cases  # noqa: E402
from operator_cases import CASES, INF, attention_inputs, sets  # noqa: E402

from blockscope import ops  # noqa: E402
from blockscope.ops import _backward  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

FLOAT = 2e-5  # of the largest gradient; float32 sums
HALF = 2e-2   # bfloat16: results are rounded to 8 bits, gradients too


def weights_for(results, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in results]


def loss(results, weights):
    """Weighs every element of every float result differently. An lse of -inf is a constant."""
    total = 0.0
    for x, weight in zip(results, weights):
        if x.is_floating_point():
            total = total + (torch.where(torch.isfinite(x), x.double(), 0.0) * weight).sum()
    return total


def leaves(tensors, dtype=None):
    return [x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]


def assert_gradients(run, reference, tensors, tolerance=FLOAT, only=None):
    """run and reference take `tensors` (as they are, and in float64) and return tuples of results. NaN in an input is
    not read: the reference gets 0 there."""
    mine, exact = leaves(tensors), leaves([x.nan_to_num(0.0) for x in tensors], torch.float64)
    results, wanted = run(*mine), reference(*exact)
    weights = weights_for(wanted)
    chosen = range(len(wanted)) if only is None else only
    got = torch.autograd.grad(loss([results[i] for i in chosen], [weights[i] for i in chosen]), mine,
                              allow_unused=True)
    want = torch.autograd.grad(loss([wanted[i] for i in chosen], [weights[i] for i in chosen]), exact,
                               allow_unused=True)
    largest = max(w.abs().max().item() for w in want if w is not None and w.numel())
    assert largest > 0.1
    for index, (g, w, x) in enumerate(zip(got, want, tensors)):
        w = torch.zeros(x.shape, dtype=torch.float64) if w is None else w
        g = torch.zeros(x.shape) if g is None else g
        assert g.shape == x.shape and g.isfinite().all(), index
        error = (g.double() - w).abs().max().item() if g.numel() else 0.0
        assert error <= tolerance * max(1.0, largest), (index, error, largest)


@pytest.fixture(params=["whole", "in pieces"])
def pieces(request, monkeypatch):
    """The same walk a few keys at a time."""
    if request.param == "in pieces":
        for name in ("_SCORES", "_SCORES_ON_CPU"):
            monkeypatch.setattr(_backward, name, 100)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_split_attention(name, dtype, pieces):
    sizes, lengths = CASES[name], torch.tensor(CASES[name].ext_len)
    assert_gradients(lambda *x: ops.split_attention(*x, ext_len=lengths, scale=sizes.scale),
                     lambda *x: cases.split(sizes, x), attention_inputs(sizes, dtype),
                     FLOAT if dtype == torch.float32 else HALF)


@pytest.mark.parametrize("result", range(5), ids=["out", "external", "lse_external", "internal", "lse_internal"])
def test_every_result_of_split_attention_alone(result):
    sizes = CASES["grouped"]
    assert_gradients(lambda *x: ops.split_attention(*x, ext_len=torch.tensor(sizes.ext_len), scale=sizes.scale),
                     lambda *x: cases.split(sizes, x), attention_inputs(sizes), only=[result])


def test_keys_without_gradient_cost_none():
    sizes = CASES["grouped"]
    q, *keys = attention_inputs(sizes)
    lengths = torch.tensor(sizes.ext_len)
    assert_gradients(lambda x: ops.split_attention(x, *keys, ext_len=lengths, scale=sizes.scale),
                     lambda x: cases.split(sizes, (x, *(k.double().nan_to_num(0.0) for k in keys))), [q])


@pytest.mark.parametrize("name", ["grouped", "an empty prefix", "equal lengths", "large"])
@pytest.mark.parametrize("mask", ["none", "all", "half", "one sequence"])
@pytest.mark.parametrize("rows", ["no row", "some rows", "every row"])
def test_reuse_attention(name, mask, rows, pieces):
    sizes = CASES[name]
    generator = torch.Generator().manual_seed(3)
    cached = [torch.randn(sizes.S, sizes.H, sizes.T, sizes.D, generator=generator),
              torch.randn(sizes.S, sizes.H, sizes.T, generator=generator)]
    reuse = {"none": torch.zeros(sizes.H, dtype=torch.bool), "all": torch.ones(sizes.H, dtype=torch.bool),
             "half": torch.arange(sizes.H) < sizes.H // 2,
             "one sequence": torch.arange(sizes.S)[:, None].expand(sizes.S, sizes.H) == 0}[mask]
    refresh = {"no row": None, "some rows": cases.refreshed(sizes),
               "every row": torch.ones(sizes.S, sizes.T, dtype=torch.bool)}[rows]
    each = reuse[..., None].expand(sizes.S, sizes.H, sizes.T)
    if refresh is not None:
        each = each & ~refresh[:, None]
    # A group that reuses in all rows doesn't look at its keys; a row that doesn't reuse, not at what was cached.
    inputs = attention_inputs(sizes)
    unread = each.reshape(sizes.S, sizes.K, -1).all(-1)
    inputs[1][unread] = inputs[2][unread] = torch.nan
    cached[0][~each] = torch.nan
    cached[1][:, 0] = -200.0  # far below every score: what was cached weighs nothing
    lengths = torch.tensor(sizes.ext_len)

    def reference(*x):
        return cases.split(sizes, x[:5], cached=(*x[5:], each))

    assert_gradients(lambda *x: ops.reuse_attention(*x, reuse, ext_len=lengths, scale=sizes.scale,
                                                    refresh_rows=refresh)[:5], reference, [*inputs, *cached])


@pytest.mark.parametrize("name", ["grouped", "an empty prefix", "large"])
@pytest.mark.parametrize("more", ["sets", "dense", "residual"])
def test_gather_attention(name, more, pieces):
    sizes = CASES[name]
    index, lengths = sets(sizes), torch.tensor(sizes.ext_len)
    seen, inputs, dense = cases.chosen(sizes, index), attention_inputs(sizes), None
    if more == "dense":
        dense = torch.arange(sizes.S) == 1
        seen = torch.where(dense[:, None, None], cases.within(sizes), seen)
    else:  # what is in no set is not read
        for x in inputs[1:3]:
            x[~seen] = torch.nan
    if more == "residual":
        generator = torch.Generator().manual_seed(4)
        lse = torch.randn(sizes.S, sizes.H, sizes.T, generator=generator)
        lse[0, 0] = -INF
        residual = [torch.randn(sizes.S, sizes.H, sizes.T, sizes.D, generator=generator), lse]
        assert_gradients(
            lambda *x: ops.gather_attention(*x[:3], index, *x[3:5], ext_len=lengths, scale=sizes.scale, residual=x[5],
                                            lse_residual=x[6])[:5],
            lambda *x: cases.split(sizes, x[:5], seen, residual=(x[5], torch.where(lse == -INF, -INF, x[6]))),
            [*inputs, *residual])
        return
    assert_gradients(
        lambda *x: ops.gather_attention(*x[:3], index, *x[3:], ext_len=lengths, scale=sizes.scale, dense=dense)[:5],
        lambda *x: cases.split(sizes, x, seen), inputs)


@pytest.mark.parametrize("name", ["grouped", "an empty prefix", "large"])
def test_unselected_attention(name, pieces):
    sizes = CASES[name]
    index, lengths = sets(sizes), torch.tensor(sizes.ext_len)
    seen, inputs = cases.within(sizes) & ~cases.chosen(sizes, index), attention_inputs(sizes)[:3]
    for x in inputs[1:]:
        x[~seen] = torch.nan
    assert_gradients(lambda q, k, v: ops.unselected_attention(q, k, v, index, ext_len=lengths, scale=sizes.scale),
                     lambda q, k, v: cases.part(q, k, v, seen, sizes.scale), inputs)


@pytest.mark.parametrize("name", ["grouped", "an empty prefix", "no room for a prefix", "large"])
@pytest.mark.parametrize("block_length, start", [(1, 0), (4, 0), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prefill_attention(name, block_length, start, dtype, pieces):
    sizes = CASES[name]
    inputs, lengths = attention_inputs(sizes, dtype)[:3], torch.tensor(sizes.ext_len)
    if not sizes.N:
        mine = leaves(inputs)
        ops.prefill_attention(*mine, block_length=block_length, lengths=lengths).sum().backward()
        assert not mine[0].grad.any()
        return
    visible = (torch.arange(start, start + sizes.T) // block_length + 1) * block_length
    seen = (torch.arange(sizes.N) < visible[:, None]) & cases.within(sizes)[:, :1, None]
    assert_gradients(
        lambda *x: (ops.prefill_attention(*x, block_length=block_length, lengths=lengths, query_start=start,
                                          scale=sizes.scale),),
        lambda q, k, v: cases.part(q, k, v, seen, sizes.scale)[:1], inputs,
        FLOAT if dtype == torch.float32 else HALF)


@pytest.mark.parametrize("only", [None, [0], [1]], ids=["both", "out", "lse"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_merge_attention(count, only):
    generator = torch.Generator().manual_seed(0)
    outputs = [torch.randn(2, 3, 8, generator=generator) for _ in range(count)]
    lses = [torch.randn(2, 3, generator=generator) for _ in range(count)]
    if count == 3:  # left out, whatever it holds
        lses[1][0], outputs[1][0] = -INF, torch.nan

    def reference(*x):
        kept = [torch.where(lse == -INF, -INF, one) for lse, one in zip(lses, x[count:])]
        return am.merge(list(zip(x[:count], kept)))

    assert_gradients(lambda *x: ops.merge_attention(x[:count], x[count:]), reference, [*outputs, *lses],
                     only=only)


def test_a_merge_of_nothing_has_no_gradient():
    parts = leaves([torch.ones(2, 8), torch.ones(2, 8), torch.tensor([-INF, 0.0]), torch.tensor([-INF, 0.0])])
    ops.merge_attention(parts[:2], parts[2:]).out.sum().backward()
    for x in parts:
        assert not x.grad[0].any() and x.grad.isfinite().all()
    assert parts[0].grad[1].any()


def test_rows():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    x, y, weight = random(2, 3, 4, 8), random(2, 3, 4, 8), random(8)
    assert_gradients(lambda *a: (ops.rms_norm_rows(*a, eps=0.1),), lambda *a: (cases.rms_norm(*a, 0.1),), [x, weight])
    assert_gradients(lambda *a: ops.add_rms_norm_rows(*a, eps=0.1),
                     lambda a, b, w: (a + b, cases.rms_norm(a + b, w, 0.1)), [x, y, weight])
    assert_gradients(lambda *a: (ops.silu_multiply(*a),), lambda a, b: (torch.nn.functional.silu(a) * b,), [x, y])
    assert_gradients(lambda *a: (ops.cross_step_similarity(*a),),
                     lambda a, b: (torch.nn.functional.cosine_similarity(a, b, dim=-1),), [x, y])
    # 16 bits: sums of 24 rows
    half = [a.bfloat16() for a in (x, weight)]
    assert_gradients(lambda *a: (ops.rms_norm_rows(*a, eps=0.1),), lambda *a: (cases.rms_norm(*a, 0.1),), half, HALF)


def test_similarity_of_zeros_has_no_gradient():
    a, b = leaves([torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]])])
    ops.cross_step_similarity(a, b).sum().backward()
    assert not a.grad[0].any() and not b.grad[0].any() and a.grad[1].any()


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("normed", [True, False])
def test_norm_rotate_rows(sequences, normed):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 3, 8, generator=generator) for heads in (4, 2))
    tables = [torch.randn(sequences, 1, 3, 6, generator=generator) for _ in range(2)]
    weights = [torch.randn(8, generator=generator) for _ in range(2)] if normed else []

    def run(q, k, cos, sin, *w):
        return ops.norm_rotate_rows(q, k, cos, sin, **dict(zip(("q_weight", "k_weight"), w)), eps=0.1)

    def reference(q, k, cos, sin, *w):
        heads = [cases.rms_norm(x, one, 0.1) for x, one in zip((q, k), w)] if w else (q, k)
        return tuple(cases.rotate(x, cos, sin) for x in heads)

    assert_gradients(run, reference, [q, k, *tables, *weights])


def test_rows_that_see_only_scores_of_minus_infinity_have_no_gradient():
    q, k, v = leaves([torch.full((1, 1, 2, 8), 1e20), torch.full((1, 1, 3, 8), -1e20), torch.ones(1, 1, 3, 8)])
    block_keys = torch.zeros(1, 1, 1, 8)
    found = ops.split_attention(q, k, v, block_keys, block_keys + 5)
    assert (found.lse_external == -INF).all()
    (found.out.sum() + found.external.sum()).backward()
    assert not q.grad.any() and not k.grad.any() and not v.grad.any()


def test_the_walk_in_float64(pieces):
    sizes = CASES["large"]
    q, k, v = leaves([x.nan_to_num(0.0) for x in attention_inputs(sizes)[:3]], torch.float64)
    output, lse = cases.part(q, k, v, cases.within(sizes), sizes.scale)
    grads = weights_for((output, lse))
    want = torch.autograd.grad((output, lse), (q, k, v), grads)
    got = torch.ops.blockscope.attention_backward(q.detach(), k.detach(), v.detach(), torch.tensor(sizes.ext_len), None,
                                                  output.detach(), lse.detach(), *grads, sizes.scale, True)
    for one, other in zip(got, want):
        assert one.dtype == torch.float64 and (one - other).abs().max() < 1e-12 * max(1, other.abs().max())


class Largest(TorchDispatchMode):
    """How many elements the largest new tensor has."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


def test_memory_does_not_grow_with_scores(monkeypatch):
    for name in ("_SCORES", "_SCORES_ON_CPU"):
        monkeypatch.setattr(_backward, name, 1 << 14)
    sizes = cases.Sizes((4096, 3000), T=64, N=4096)  # 2^21 scores, 2^17 elements of keys
    q, k, v = (x.nan_to_num(0.0) for x in attention_inputs(sizes)[:3])
    lengths, rows = torch.tensor(sizes.ext_len), torch.zeros(q.shape[:3])
    with Largest() as largest:
        _backward._attention_backward(q, k, v, lengths, None, q, rows, q, rows, 1.0, True)
    assert largest.elements == k.numel()
    with Largest() as largest:
        _backward._prefill_backward(q, k, v, lengths, q, 32, 1.0, 4000)
    assert largest.elements == k.numel()


def test_gradients_of_gradients_are_refused():
    sizes = CASES["grouped"]
    q, *keys = [x.nan_to_num(0.0) for x in attention_inputs(sizes)]
    q.requires_grad_()
    out = ops.split_attention(q, *keys).out
    first, = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention_backward"):
        first.sum().backward()


def test_a_cache_written_before_the_backward_pass_is_an_error():
    sizes = CASES["equal lengths"]
    q, k_ext, *rest = attention_inputs(sizes)
    q.requires_grad_()
    out = ops.split_attention(q, k_ext, *rest, ext_len=5).out
    k_ext[:, :, 5:] = 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def train(step, tensors, goal):
    """Gradient descent on the distance of a merged attention to `goal`; the losses."""
    tensors, losses = leaves(tensors), []
    for _ in range(40):
        distance = (step(*tensors) - goal.to(tensors[0].dtype)).square().mean()
        losses.append(distance.item())
        grads = torch.autograd.grad(distance, tensors)
        tensors = leaves([x - 2.0 * grad for x, grad in zip(tensors, grads)])
    return losses


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_through_split_and_merge(compiled):
    sizes = CASES["equal lengths"]
    inputs = [x.nan_to_num(0.0) for x in attention_inputs(sizes)]
    goal = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def step(*x):
        a = ops.split_attention(*x, ext_len=5, scale=sizes.scale)
        return ops.merge_attention([a.external, a.internal], [a.lse_external, a.lse_internal]).out

    def reference(*x):
        _, external, lse_external, internal, lse_internal = cases.split(sizes, x)
        return am.merge([(external, lse_external), (internal, lse_internal)])[0]

    run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
    losses = train(run, inputs, goal)
    want = train(reference, [x.double() for x in inputs], goal)
    assert losses[-1] < 0.8 * losses[0]
    assert max(abs(a - b) / b for a, b in zip(losses, want)) < 1e-5
