"""Which attention blockscope.record() sees: flex attention, flash-attn's operators, compiled code, and what it
refuses. Compared with: float64 recomputation of the queries, keys and values that the model itself kept, and the loop
without a recording."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from torch.nn.attention.flex_attention import (AuxRequest, BlockMask, create_block_mask,  # noqa: E402
                                               flex_attention)

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import MASK, PROMPT, SIZE, Kept, check_rows, rows_of  # noqa: E402


# --- flex attention ---------------------------------------------------------------------------------------------------

SLOPE = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03, 0.01])


def window_of(q, k):
    """A mask whose rows count from the keys' end: the last 40 keys."""
    behind = k.shape[2] - q.shape[2]
    return create_block_mask(lambda b, h, row, key: key > row + behind - 40, None, None, q.shape[2], k.shape[2], "cpu")


FLEX = {
    "plain": (lambda q, k: {}, lambda s, h, row, key, rows: s),
    "mask": (lambda q, k: {"block_mask": window_of(q, k)},
             lambda s, h, row, key, rows: np.where(key > row + len(key) - rows - 40, s, -np.inf)),
    "bias": (lambda q, k: {"score_mod": lambda s, b, h, row, key: s + SLOPE[h] * (key - row)},
             lambda s, h, row, key, rows: s + float(SLOPE[h]) * (key - row)),
    "softcap": (lambda q, k: {"score_mod": lambda s, b, h, row, key: 2.0 * torch.tanh(s / 2.0),
                              "block_mask": window_of(q, k), "return_aux": AuxRequest(lse=True)},
                lambda s, h, row, key, rows: np.where(key > row + len(key) - rows - 40, 2 * np.tanh(s / 2), -np.inf)),
}


@pytest.mark.parametrize("name", FLEX)
@pytest.mark.parametrize("canvas", [False, True])
def test_flex_attention(tmp_path, name, canvas):
    options, change = FLEX[name]

    def attend(q, k, v, mask):
        found = compiled(q, k, v, enable_gqa=True, **options(q, k))
        return found[0] if isinstance(found, tuple) else found

    compiled = torch.compile(flex_attention)  # as everybody calls it
    model = models.PlainModel("needle-bidirectional" if canvas else "needle")
    kept = Kept(model, attend)
    decode = models.decode_canvas if canvas else models.decode_blocks
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4, compiled="eager") as run:
        run.end_sequence(decode(model, PROMPT[:40], 32, SIZE))
    with h5py.File(path) as file:
        starts = iter(file["/steps/block_start"][:rows_of(file)][file["/steps/kind"][:rows_of(file)] == 1].repeat(6))
    check_rows(path, kept.calls, 6, change, lambda rows, keys: [next(starts)] * 2 if canvas else (keys - SIZE, 0))


def test_flex_attention_that_nobody_compiled(tmp_path):
    """PyTorch traces it even then."""
    model = models.PlainModel("needle")
    kept = Kept(model, lambda q, k, v, mask: flex_attention(q, k, v, enable_gqa=True, score_mod=capped))

    def capped(score, b, h, row, key):
        return score * SLOPE[h]

    path = tmp_path / "run.h5"
    torch.manual_seed(0)
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4):
        models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    check_rows(path, kept.calls, 6, lambda s, h, row, key, rows: s * float(SLOPE[h]))


def test_flex_attention_of_an_older_torch(tmp_path, monkeypatch):
    """torch 2.8 builds a BlockMask without some of the later arguments."""
    now = BlockMask.from_kv_blocks

    def older(kv_num_blocks, kv_indices, full_kv_num_blocks=None, full_kv_indices=None, BLOCK_SIZE=128, mask_mod=None,
              seq_lengths=None):
        return now(kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, BLOCK_SIZE, mask_mod, seq_lengths)

    monkeypatch.setattr(BlockMask, "from_kv_blocks", older)
    options, change = FLEX["mask"]
    model = models.PlainModel("needle")
    kept = Kept(model, lambda q, k, v, mask: flex_attention(q, k, v, enable_gqa=True, **options(q, k)))
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4, compiled="eager"):
        models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    check_rows(path, kept.calls, 6, change)


def test_flex_masks_that_the_kernel_would_not_follow_are_refused(tmp_path):
    """A BlockMask that leaves out blocks which its mask_mod doesn't: the kernel leaves them out, eager code doesn't."""
    model = models.PlainModel("needle")

    def attend(q, k, v, mask):
        last = torch.tensor([[[k.shape[2] // 128]]], dtype=torch.int32)
        sparse = BlockMask.from_kv_blocks(torch.ones(1, 1, 1, dtype=torch.int32), last.unsqueeze(-1),
                                          seq_lengths=(q.shape[2], k.shape[2]))
        return flex_attention(q, k, v, enable_gqa=True, block_mask=sparse)

    Kept(model, lambda q, k, v, mask: attend(q, k, v, mask) if q.shape[2] == SIZE else v.repeat_interleave(3, 1))
    with pytest.raises(blockscope.UsageError, match="flex_attention: what its queries, keys and mask give differs"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, compiled="eager"):
            models.decode_blocks(model, PROMPT * 2, SIZE, SIZE)


def test_a_score_mod_that_fails_is_named():
    from blockscope.recording.flex import ScoreMod

    def wrong(score, b, h, row, key):
        raise ValueError("not for you")

    with pytest.raises(blockscope.UsageError, match=r"score_mod \(wrong\) can't be evaluated.*not for you.*HINT"):
        ScoreMod(wrong).difference(torch.zeros(1, 2, 3, 4), 5, None)


def test_flex_attention_of_transformers(tmp_path):
    """Its interface hands over a mask of four dimensions, or a BlockMask; both as sdpa sees them."""
    prompt = torch.tensor([[5 * i % 90 for i in range(16)], [7 * i % 90 for i in range(16)]])
    paths = []
    with torch.compiler.set_stance("force_eager"):  # the machine may have no compiler
        for implementation in ("sdpa", "flex_attention"):
            model = models.qwen3(implementation)
            plain = models.decode_qwen_blocks(model, prompt, 16, 8, MASK), models.decode_tokens(model, prompt, 6)
            paths.append([tmp_path / f"{implementation}{i}.h5" for i in range(2)])
            with blockscope.record(model, paths[-1][0], block_length=8, mask_token_id=MASK, array_type="f32",
                                   set_size=4):
                assert torch.equal(models.decode_qwen_blocks(model, prompt, 16, 8, MASK), plain[0])
            with blockscope.record(model, paths[-1][1], array_type="f32", set_size=4):
                assert torch.equal(models.decode_tokens(model, prompt, 6), plain[1])
    for sdpa, flex in zip(*paths):
        assert blockscope.compare(sdpa, flex, absolute=1e-3, ignore_timing=True).equal
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert ALL_ATTENTION_FUNCTIONS["flex_attention"] is flex_attention_forward  # all is as it was


# --- compiled code ----------------------------------------------------------------------------------------------------


def compiled_model(how, backend, **options):
    """-> what the loop calls, and the model within."""
    model = models.PlainModel("needle")
    model.layers = model.layers[:2]
    model.config.num_hidden_layers = 2
    if how == "torch.compile(model)":
        return torch.compile(model, backend=backend, **options), model
    if how == "model.compile()":
        model.compile(backend=backend, **options)
    elif how == "forward":
        model.forward = torch.compile(model.forward, backend=backend, **options)
    elif how == "layers":
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer, backend=backend, **options)
    elif how == "layer.compile()":
        for layer in model.layers:
            layer.compile(backend=backend, **options)
    elif how == "attention":
        for layer in model.layers:
            layer.attend = torch.compile(layer.attend, backend=backend, **options)
    return model, model


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that keeps operators and shows no call of them to a TorchFunctionMode, as inductor's code."""

    def __init__(self):
        self.runs = 0

    def __call__(self, graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        code = aot_eager(graph, inputs)

        def run(*arguments):
            self.runs += 1
            return code(*arguments)

        return run


HOW = ["torch.compile(model)", "model.compile()", "forward", "layers", "layer.compile()", "attention"]


@pytest.mark.parametrize("how", HOW)
def test_compiled_code_runs_eagerly_where_it_is_asked_for(tmp_path, fresh, how):
    paths = [tmp_path / "plain.h5", tmp_path / "compiled.h5"]
    plain, _ = compiled_model("", None)
    with blockscope.record(plain, paths[0], block_length=SIZE, array_type="f32", set_size=4):
        expected = models.decode_blocks(plain, PROMPT[:32], SIZE, SIZE)
    backend = Counted()
    model, _ = compiled_model(how, backend)
    with torch.no_grad():
        model(torch.full((1, SIZE), 5))  # compiled before it is recorded
    runs = backend.runs
    assert runs > 0
    with blockscope.record(model, paths[1], block_length=SIZE, array_type="f32", set_size=4, compiled="eager"):
        ids = models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    assert torch.equal(ids, expected) and backend.runs == runs
    assert blockscope.compare(*paths, ignore_timing=True).equal
    trace = blockscope.open(paths[1])
    assert trace.run["compiled"] == "eager" and trace.model["architecture"] == "PlainModel"
    with torch.no_grad():
        model(torch.full((1, SIZE), 5))
    assert backend.runs > runs  # as it was


@pytest.mark.parametrize("how, fullgraph", [(how, False) for how in HOW] + [(how, True) for how in HOW[3:]])
def test_compiled_attention_is_refused_by_default(tmp_path, fresh, how, fullgraph):
    backend = Counted()
    model, _ = compiled_model(how, backend, fullgraph=fullgraph)
    ids = torch.full((1, SIZE), 1018)
    with torch.no_grad():
        before = model(ids).logits
        runs = backend.runs
        with pytest.raises(blockscope.UsageError, match=r"compiled=\"eager\""):
            with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
                model(ids)
        assert backend.runs > runs
        assert torch.equal(model(ids).logits, before)


def test_compiled_code_beside_the_attention_is_no_hindrance(tmp_path, fresh):
    backend = Counted()
    paths = [tmp_path / "plain.h5", tmp_path / "compiled.h5"]
    expected = []
    for path in paths:
        model, _ = compiled_model("", None)
        if path == paths[1]:
            model.embed = torch.compile(model.embed, backend=backend, fullgraph=True)
        with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4):
            expected.append(models.decode_blocks(model, PROMPT[:32], 2 * SIZE, SIZE))
    assert backend.runs > 8 and torch.equal(*expected)
    assert blockscope.compare(*paths, ignore_timing=True).equal


@pytest.mark.parametrize("how", ["torch.compile(model)", "forward", "layers", "attention"])
def test_the_trajectory_of_compiled_code(tmp_path, fresh, how):
    """Needs to see no attention, so that compiled code goes on."""
    backend = Counted()
    model, _ = compiled_model(how, backend)
    expected = models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    runs = backend.runs
    with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, level="trajectory"):
        assert torch.equal(models.decode_blocks(model, PROMPT[:32], SIZE, SIZE), expected)
    assert backend.runs == 2 * runs
    frame = blockscope.open(tmp_path / "run.h5").frame(0, 4)
    assert frame.tokens.tolist() == expected[0, 32:].tolist()


def test_recordings_that_overlap_share_the_stance(tmp_path, fresh):
    backend = Counted()
    model, _ = compiled_model("torch.compile(model)", backend)
    first = blockscope.record(model, tmp_path / "a.h5", block_length=SIZE, compiled="eager")
    second = blockscope.record(model, tmp_path / "b.h5", block_length=SIZE, compiled="eager")
    first.__enter__()
    second.__enter__()
    models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    first.__exit__(None, None, None)
    models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    second.__exit__(None, None, None)
    assert backend.runs == 0
    models.decode_blocks(model, PROMPT[:32], SIZE, SIZE)
    assert backend.runs > 0
    assert len(blockscope.open(tmp_path / "b.h5").sequences) == 2
    with pytest.raises(blockscope.UsageError, match="compiled: expected keep or eager"):
        blockscope.record(model, tmp_path / "c.h5", block_length=SIZE, compiled=True)
