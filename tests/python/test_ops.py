"""blockscope.ops: values against plain torch in float64, what torch.library.opcheck, torch.compile, torch.export and
FakeTensor make of every operator, and how the library is found. Gradients: test_ops_gradients.py."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import attention_math as am  # noqa: E402
import blockscope  # noqa: E402
import operator_cases as cases  # noqa: E402
from blockscope import ops  # noqa: E402
from conftest import FROZEN  # noqa: E402
from operator_cases import CASES, INF, all_calls, attention_inputs, sets  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

TOLERANCE = 2e-5
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static",
          "test_aot_dispatch_dynamic")
LIBRARY = pathlib.Path(ops.library)


def operator(name):
    return getattr(torch.ops.blockscope, name).default


def close(got, want, tolerance=TOLERANCE):
    assert got.shape == want.shape
    assert torch.equal(torch.isinf(got), torch.isinf(want))
    finite = torch.isfinite(want)
    if finite.any():
        assert (got.double()[finite] - want[finite]).abs().max() <= tolerance * max(1.0, want[finite].abs().max())


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "no room for a prefix"])
def test_attention(name):
    sizes = CASES[name]
    inputs, lengths, index = attention_inputs(sizes), torch.tensor(sizes.ext_len), sets(sizes)
    exact = [x.double().nan_to_num(0.0) for x in inputs]
    options = {"ext_len": lengths, "scale": sizes.scale}
    found = ops.split_attention(*inputs, **options)
    for got, want in zip(found, cases.split(sizes, exact)):
        close(got, want)

    reuse = torch.arange(sizes.H) % 2 == 0
    cached = (found.external + 1, found.lse_external.masked_fill(found.lse_external == -INF, 0.0) + 1)
    reused = ops.reuse_attention(*inputs, *cached, reuse, **options)
    for got, want in zip(reused, cases.split(sizes, exact, cached=(*(x.double() for x in cached),
                                                                   reuse[:, None].expand(sizes.S, -1, 1)))):
        close(got, want)
    assert reused.keys_read.shape == (sizes.S, sizes.K)
    rows = cases.refreshed(sizes)
    taken = ~rows[:, None].expand(-1, sizes.H, -1)
    updated = ops.reuse_attention(*inputs, *cached, torch.ones(sizes.H, dtype=torch.bool), refresh_rows=rows, **options)
    for got, want in zip(updated, cases.split(sizes, exact, cached=(*(x.double() for x in cached), taken))):
        close(got, want)
    assert torch.equal(updated.keys_read, (lengths * rows.any(-1))[:, None].expand(-1, sizes.K))

    seen = cases.chosen(sizes, index)
    gathered = ops.gather_attention(*inputs[:3], index, *inputs[3:], **options)
    for got, want in zip(gathered, cases.split(sizes, exact, seen)):
        close(got, want)
    assert torch.equal(gathered.keys_read, seen.sum(-1))
    rest = ops.unselected_attention(*inputs[:3], index, **options)
    for got, want in zip(rest, cases.part(*exact[:3], cases.within(sizes) & ~seen, sizes.scale)):
        close(got, want)
    whole = ops.gather_attention(*inputs[:3], index, *inputs[3:], residual=rest.output, lse_residual=rest.lse,
                                 **options)
    close(whole.out, found.out.double())

    visible = (torch.arange(sizes.T) + 1 + 2) // 2 * 2
    causal = (torch.arange(sizes.N) < visible[:, None]) & cases.within(sizes)[:, :1, None]
    close(ops.prefill_attention(*inputs[:3], block_length=2, lengths=lengths, query_start=1, scale=sizes.scale),
          cases.part(*exact[:3], causal, sizes.scale)[0])


def test_choosing():
    sizes = CASES["large"]
    q, k_ext, *_ = attention_inputs(sizes)
    lengths, within = torch.tensor(sizes.ext_len), cases.within(sizes)
    exact = q.double(), k_ext.double().nan_to_num(0.0)
    _, lse = cases.part(*exact, exact[1], within, sizes.scale)
    scores = am.scores_of(*exact, sizes.scale)
    options = {"ext_len": lengths, "scale": sizes.scale}
    block = ops.block_topk(q, k_ext, lse.float(), 5, **options)
    want = am.mean_probability(scores, lse, sizes.K).masked_fill(~within, -1.0).topk(5)
    assert torch.equal(block.index, want.indices.int())
    close(block.probability, want.values)
    token = ops.token_topk(q, k_ext, lse.float(), 5, **options)
    want = am.mean_probability(scores, lse, sizes.K, per_token=True).masked_fill(~within[:, :, None], -1.0).topk(5)
    assert torch.equal(token.index, want.indices.int())
    assert token.union_size.tolist() == [[len(set(token.index[s, head].flatten().tolist())) for head in range(sizes.K)]
                                         for s in range(sizes.S)]

    bounds = ops.page_bounds(k_ext, 16, ext_len=lengths)
    pages, tokens = (score(q, bounds, 16, ext_len=lengths) for score in (ops.page_scores, ops.token_page_scores))
    assert bounds.max.shape == (2, 2, 9, 32)
    for s, length in enumerate(sizes.ext_len):
        there = -(-length // 16)
        assert (pages[s, :, there:] == -INF).all() and (tokens[s, :, :, there:] == -INF).all()
        want = am.page_bounds(exact[1][s, :, :length], 16)
        for got, extreme in zip((bounds.max, bounds.min), want):
            assert torch.equal(got[s, :, :there].double(), extreme)
        each = am.page_scores(exact[0][s], want)
        close(tokens[s, :, :, :there], each, 1e-5)
        close(pages[s, :, :there], each.mean(1), 1e-5)
    # None: all pages count.
    assert torch.equal(ops.page_scores(q, bounds, 16)[0], pages[0])


def test_rows():
    generator = torch.Generator().manual_seed(0)
    x, y, weight = (torch.randn(*shape, generator=generator) for shape in ((2, 4, 3, 8), (2, 4, 3, 8), (8,)))
    cos, sin = (torch.randn(1, 1, 3, 6, generator=generator) for _ in range(2))
    wide = [t.double() for t in (x, y, weight, cos, sin)]
    close(ops.rms_norm_rows(x, weight, eps=0.1), cases.rms_norm(wide[0], wide[2], 0.1))
    both = ops.add_rms_norm_rows(x, y, weight)
    close(both.sum, wide[0] + wide[1])
    close(both.norm, cases.rms_norm(wide[0] + wide[1], wide[2], 1e-6))
    turned = ops.norm_rotate_rows(x, y[:, :2], cos, sin, q_weight=weight)
    close(turned.q, cases.rotate(cases.rms_norm(wide[0], wide[2], 1e-6), *wide[3:]))
    close(turned.k, cases.rotate(wide[1][:, :2], *wide[3:]))
    close(ops.silu_multiply(x, y), torch.nn.functional.silu(wide[0]) * wide[1])
    close(ops.cross_step_similarity(x, y), torch.nn.functional.cosine_similarity(wide[0], wide[1], dim=-1))
    merged = ops.merge_attention((x, y), (x[..., 0], y[..., 0]))
    for got, want in zip(merged, am.merge([(wide[0], wide[0][..., 0]), (wide[1], wide[1][..., 0])])):
        close(got, want)


def test_defaults():
    sizes = CASES["grouped"]
    inputs = [x.nan_to_num(0.5) for x in attention_inputs(sizes)]
    stated = ops.split_attention(*inputs, ext_len=torch.full((2,), sizes.N), scale=sizes.D ** -0.5)
    for other in (ops.split_attention(*inputs), ops.split_attention(*inputs, ext_len=sizes.N)):
        assert all(torch.equal(a, b) for a, b in zip(stated, other))
    with torch.device("meta"):  # lengths stay where they belong
        assert torch.equal(ops.split_attention(*inputs).out, stated.out)
    with pytest.raises(RuntimeError, match=r"ext_len\[0\]: expected a length in \[0, 7\], got 8"):
        ops.split_attention(*inputs, ext_len=8)


# --- the compiler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "strided", "bfloat16"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("number", range(len(all_calls())), ids=[name for name, _ in all_calls()])
def test_opcheck(number, grad, layout):
    half = layout == "bfloat16"
    name, arguments = all_calls(torch.bfloat16 if half else torch.float32, grad=grad)[number]
    if layout == "strided":  # [S, T, H, D] in memory, as projections leave it
        arguments = tuple(x.transpose(1, 2).contiguous().transpose(1, 2).detach().requires_grad_(grad)
                          if isinstance(x, torch.Tensor) and x.dim() == 4 else x for x in arguments)
    tolerance = 2e-2 if half else 1e-5
    torch.library.opcheck(operator(name), arguments, test_utils=CHECKS, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("number", range(len(all_calls())), ids=[name for name, _ in all_calls()])
def test_fake_tensors_on_a_gpu_with_lengths_on_the_cpu(number):
    real = operator(all_calls()[number][0])(*all_calls()[number][1])
    with FakeTensorMode():
        name, arguments = all_calls(device="cuda")[number]
        fake = operator(name)(*arguments)
    if isinstance(real, torch.Tensor):
        real, fake = (real,), (fake,)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride(), b.device.type) == (b.shape, b.dtype, b.stride(), "cuda")


def test_meta_kernels_refuse_what_has_no_shape():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="expected at least one, got none"):
        ops.merge_attention([], [])
    with pytest.raises(RuntimeError, match="page_size > 0"):
        torch.ops.blockscope.page_bounds(torch.empty(1, 1, 4, 8, device="meta"), torch.tensor([4]), 0)


def block(q, k_ext, v_ext, k_in, v_in, ext_len):
    a = ops.split_attention(q, k_ext, v_ext, k_in, v_in, ext_len=ext_len)
    chosen = ops.block_topk(q, k_ext, a.lse_external, 2, ext_len=ext_len)
    b = ops.gather_attention(q, k_ext, v_ext, chosen.index, k_in, v_in, ext_len=ext_len)
    c = ops.merge_attention([a.external, b.internal], [a.lse_external, b.lse_internal])
    return ops.cross_step_similarity(b.out, c.out), chosen.probability


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_gives_what_eager_gives(dynamic):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=dynamic)
    # Sizes that differ from each other: equal ones would be taken for one and the same.
    for sizes in (cases.Sizes((7, 4, 0), T=5, N=7, B=6), cases.Sizes((11, 2, 6, 1, 0), T=9, N=11, B=6)):
        inputs = [x.nan_to_num(0.5) for x in attention_inputs(sizes)]
        lengths = torch.tensor(sizes.ext_len)
        for got, want in zip(compiled(*inputs, lengths), block(*inputs, lengths)):
            assert torch.equal(got, want)
    assert len(graphs) == (1 if dynamic else 2)  # dynamic: one graph for both shapes


def test_export_with_dynamic_shapes():
    class Block(torch.nn.Module):
        def forward(self, *inputs):
            return block(*inputs)

    sizes = CASES["grouped"]
    inputs = [*(x.nan_to_num(0.5) for x in attention_inputs(sizes)), torch.tensor(sizes.ext_len)]
    keys = {2: torch.export.Dim("keys", min=2, max=4096)}
    program = torch.export.export(Block(), tuple(inputs), dynamic_shapes=(({}, keys, keys, {}, {}, {}),))
    longer = cases.Sizes((30, 4), N=33)
    inputs = [*(x.nan_to_num(0.5) for x in attention_inputs(longer)), torch.tensor(longer.ext_len)]
    for got, want in zip(program.module()(*inputs), block(*inputs)):
        assert torch.equal(got, want)


def test_the_lines_of_the_document():
    text = (FROZEN.parents[2] / "docs" / "python.md").read_text()
    lines, = re.findall(r"^## Operators$.*?```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor(0.")


# --- the library ------------------------------------------------------------------------------------------------------

SPLIT = """
q, k = torch.randn(1, 2, 3, 8, requires_grad=True), torch.randn(1, 1, 5, 8)
out = blockscope.ops.split_attention(q, k, k, k, k).out
want = torch.nn.functional.scaled_dot_product_attention(q, *([torch.cat([k, k], 2)] * 2), enable_gqa=True)
assert (out - want).abs().max() < 1e-5
out.sum().backward()
print("works", blockscope.ops.library)
"""
UNAVAILABLE = """
try:
    blockscope.ops
except blockscope.OperatorsUnavailable as error:
    assert isinstance(error, ImportError)
    print(error)
"""


def python(code, **environment):
    """Standard output of a fresh process."""
    done = subprocess.run([sys.executable, "-c", "import sys, blockscope\n" + code], capture_output=True, text=True,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_imported_with_the_operators_only():
    assert "works" in python("assert 'torch' not in sys.modules; from blockscope import ops; import torch" + SPLIT)


def test_without_torch():
    said = python(f"sys.modules['torch'] = None\n{UNAVAILABLE}print(blockscope.open({str(FROZEN)!r}).num_rows)")
    assert "expected torch 2." in said and "found none" in said and "HINT: pip install" in said
    assert int(said.splitlines()[-1]) > 0


def test_another_torch_is_named_and_not_loaded(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.99.1+cpu'\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    said = python(f"{UNAVAILABLE}print(blockscope.open({str(FROZEN)!r}).num_rows)", PYTHONPATH=path)
    release = ".".join(torch.__version__.split(".")[:2])
    assert f"expected torch {release}," in said and "found torch 2.99.1+cpu" in said and "HINT: " in said
    assert int(said.splitlines()[-1]) > 0


def test_a_library_of_another_torch_is_not_loaded(tmp_path):
    other, built = tmp_path / LIBRARY.name, LIBRARY.read_bytes()
    version = torch.__version__.split("+")[0].encode()
    assert built.count(b"torch=" + version + b";") == 1
    other.write_bytes(built.replace(b"torch=" + version, b"torch=" + b"9" + version[1:]))
    said = python("import torch" + UNAVAILABLE, BLOCKSCOPE_KERNELS=str(other))
    assert f"{other}: expected torch 9." in said and f"found torch {torch.__version__}" in said


def test_the_variable_names_a_library(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path / "mine.so")
    assert f"works {copy}" in python("import torch" + SPLIT, BLOCKSCOPE_KERNELS=str(copy))
    said = python(UNAVAILABLE, BLOCKSCOPE_KERNELS=str(tmp_path / "none.so"))
    assert "none.so: expected a file, found none" in said
    for name, content in (("empty.so", b""), ("text.so", b"no library")):
        (tmp_path / name).write_bytes(content)
        assert f"{name}: expected Blockscope's operators" in python(
            UNAVAILABLE, BLOCKSCOPE_KERNELS=str(tmp_path / name))


def test_a_damaged_library_is_an_import_error(tmp_path):
    (tmp_path / "cut.so").write_bytes(b"blockscope-kernels torch=" + torch.__version__.split("+")[0].encode() + b";")
    said = python(UNAVAILABLE, BLOCKSCOPE_KERNELS=str(tmp_path / "cut.so"))
    assert "cut.so: can't be loaded" in said


def test_a_package_without_a_library_says_so(tmp_path):
    package = tmp_path / "blockscope"
    package.mkdir()
    for file in pathlib.Path(blockscope.__file__).parent.iterdir():
        if file.name not in ("lib", "__pycache__"):
            (package / file.name).symlink_to(file.resolve())
    said = python(f"import torch\n{UNAVAILABLE}print(blockscope.open({str(FROZEN)!r}).num_rows)",
                  PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    assert "built without torch" in said and "BLOCKSCOPE_KERNELS" in said
    assert int(said.splitlines()[-1]) > 0


def test_operators_that_are_there_already_are_taken(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path)  # a second one of another path would register everything twice
    said = python(f"import torch\ntorch.ops.load_library({str(copy)!r})\n{SPLIT}")
    assert said.startswith("works None")


def test_a_cuda_library_that_does_not_load_is_a_warning(tmp_path):
    copy = shutil.copy(LIBRARY, tmp_path)
    (tmp_path / "libblockscope_kernels_cuda.so").write_text("no library")
    said = python("""
import torch, warnings
torch.cuda.is_available = lambda: True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    blockscope.ops
torch.cuda.is_available = lambda: False
print([str(one.message) for one in caught if one.category is RuntimeWarning])
""" + SPLIT, BLOCKSCOPE_KERNELS=str(copy))
    assert "libblockscope_kernels_cuda.so: can't be loaded" in said and f"works {copy}" in said


def test_build_ops_says_what_it_lacks(tmp_path):
    environment = dict(os.environ, PATH=str(tmp_path))
    file = tmp_path / "file"
    file.write_text("")
    module = [sys.executable, "-m", "blockscope.build_ops"]
    for arguments, code, words in (
            (["--jobs", "0"], 2, "--jobs: expected 1 or more, got 0"), (["--frobnicate"], 2, "--frobnicate"),
            (["-o", str(file / "lib")], 1, "can't be written to"), ([], 1, "expected cmake on PATH, found none")):
        given = dict(os.environ) if "-o" in arguments else environment
        done = subprocess.run([*module, *arguments], env=given, capture_output=True, text=True)
        assert done.returncode == code and words in done.stderr, (arguments, done)
        assert code == 2 or done.stderr.startswith("error: build-ops: ") and done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == ""


def test_the_command_starts_build_ops_in_the_pythons_environment(tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    environment = dict(os.environ, PATH=str(tmp_path))
    command = [os.environ["BLOCKSCOPE_BINARY"], "build-ops", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "usage: blockscope build-ops" in done.stdout, done
    del environment["PYTHONPATH"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "No module named 'blockscope'" in done.stderr, done
    assert done.stderr.startswith("error: build-ops: ") and done.stderr.count("\n") == 1, done.stderr
