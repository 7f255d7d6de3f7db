"""What a recording computes with: the C++ operators or torch's, and in the model's place. Compared with: `blockscope
capture` replaying the same run, float64 recomputation of what another hook kept, and the loop without a recording."""

import json
import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from transformers import AutoTokenizer  # noqa: E402

import blockscope  # noqa: E402
import operator_cases as cases  # noqa: E402
import recorded_models as models  # noqa: E402
import recording_reference as reference  # noqa: E402
from blockscope.recording import kernels, torch_operators  # noqa: E402
from blockscope.recording.statistics import Predictions, recall  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, check_array, compare_with_capture, rows_of  # noqa: E402

if not kernels.loaded():
    pytest.skip("this build has no operators", allow_module_level=True)


class Counted(torch.overrides.TorchFunctionMode):
    """What reaches the model's own attention. Entered before a recording, it sees the calls after the recorder."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += function is torch._C._nn.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["operators", "torch", "derive", "replace"])
def test_every_way_gives_what_capture_gives(tmp_path, monkeypatch, kind):
    if kind == "torch":
        monkeypatch.setattr(kernels, "loaded", lambda: False)
    model, mine, theirs = models.PlainModel("needle"), tmp_path / "mine.h5", tmp_path / "theirs.h5"
    plain = models.decode_blocks(model, PROMPT, 48, 16)
    with Counted() as beneath, blockscope.record(
            model, mine, level="outputs", block_length=16, gen_length=48, array_type="f32",
            tokenizer=AutoTokenizer.from_pretrained(models.MODELS / "needle"),
            attention=kind if kind in ("derive", "replace") else "observe") as run:
        recorded = models.decode_blocks(model, PROMPT, 48, 16)
        run.end_sequence(recorded)
    assert torch.equal(plain, recorded)
    run = blockscope.open(mine).run
    assert run["kernels"] == ("torch" if kind == "torch" else "blockscope")
    assert run["attention"] == (kind if kind in ("derive", "replace") else "observe")
    with h5py.File(mine) as file:
        kinds = file["/steps/kind"][:rows_of(file)]
    layers = model.config.num_hidden_layers
    passes = len(np.unique(blockscope.open(mine).tree["steps/pass"].values[:len(kinds)]))
    denoising = int((kinds == 1).sum())
    # Each layer is checked once against the model's own attention before the recording replaces it.
    own = (passes - denoising + 1) * layers if kind == "replace" else passes * layers
    assert beneath.calls == own and denoising > 4
    subprocess.run([BINARY, "capture", models.MODELS / "needle", "--replay", mine, "--cache", "commit", "--predictions",
                    "all", "--dtype",
                    "float32", "--block-length", "16", "--record", "outputs", "--array-type", "f32", "-o", theirs],
                   check=True, capture_output=True)
    compare_with_capture(mine, theirs)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_batches_are_replaced_too(tmp_path, dtype, tolerance):
    recorder = models.CallRecorder()
    model = models.qwen3("judge", dtype=dtype)
    prompt = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])
    decoded = {}
    for way in ("observe", "derive", "replace"):
        model.config._attn_implementation = "judge" if way == "observe" else "sdpa"
        with blockscope.record(model, tmp_path / f"{way}.h5", block_length=8, mask_token_id=MASK, gen_length=16,
                               set_size=5, array_type="f32", attention=way):
            decoded[way] = models.decode_qwen_blocks(model, prompt, 16, 8, MASK)
    assert torch.equal(decoded["observe"], decoded["derive"])
    if dtype == torch.float32:  # in bfloat16 another order of sums may decide between two near tokens
        assert torch.equal(decoded["observe"], decoded["replace"])
    with h5py.File(tmp_path / "replace.h5") as file:
        assert rows_of(file) == 22
        group = recorder.calls[3:6]  # of the first denoising pass
        for sequence in range(2):
            q, k, v = (np.stack([call[i][sequence].numpy() for call in group]) for i in (1, 2, 3))
            now = reference.Step(q, k, v, np.arange(k.shape[2]) >= k.shape[2] - 8)
            row = 2 + sequence
            check_array("external", file["/attention/external"][row], now.external, tolerance)
            check_array("internal", file["/attention/internal"][row], now.internal, tolerance)
            check_array("lse", file["/attention/lse_external"][row], now.lse_external, tolerance)


def test_autocast_is_observed(tmp_path):
    """The result has another type than the queries, so A_out doesn't follow from it."""
    model = models.qwen3(dtype=torch.float32)
    prompt = torch.tensor([[5 * i % 90 for i in range(16)]])
    for way in ("observe", "derive"):
        with blockscope.record(model, tmp_path / f"{way}.h5", block_length=8, mask_token_id=MASK, gen_length=8, set_size=5,
                               array_type="f32", attention=way), torch.autocast("cpu", torch.bfloat16):
            models.decode_qwen_blocks(model, prompt, 8, 8, MASK)
    with h5py.File(tmp_path / "observe.h5") as a, h5py.File(tmp_path / "derive.h5") as b:
        check_array("external", b["/attention/external"][()], a["/attention/external"][()], 2e-2)


def test_a_causal_block_is_left_to_the_model(tmp_path):
    """A mask within the block is more than the operators have."""
    model = models.qwen3()
    prompt = torch.tensor([[5 * i % 90 for i in range(16)]])
    with Counted() as beneath, blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK,
                                                 attention="replace"), torch.no_grad():
        cache = model(prompt, use_cache=True).past_key_values
        for step in range(3):
            ids = torch.tensor([[7] * step + [MASK] * (8 - step)])
            model(ids, past_key_values=cache)  # causal: no mask of the loop's own
            cache.crop(-8)
    assert beneath.calls == 4 * model.config.num_hidden_layers


def test_what_replacing_needs_is_said(tmp_path, monkeypatch):
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match="attention: expected observe, derive, replace, got 'both'"):
        blockscope.record(model, tmp_path / "a.h5", block_length=8, mask_token_id=MASK, attention="both")
    with pytest.raises(blockscope.UsageError, match="for models on a CPU, got one on meta"):
        blockscope.record(model.to("meta"), tmp_path / "a.h5", block_length=8, mask_token_id=MASK, attention="replace")
    assert not list(tmp_path.iterdir())


def test_forbidden_tokens_and_kept_logits(tmp_path, monkeypatch):
    """A loop that writes -inf over its logits, in place, after each pass: what was predicted stays what it was."""
    model = models.qwen3()
    prompt = torch.tensor([[5 * i % 90 for i in range(16)]])
    found = {}
    for way in (True, False):
        if not way:
            monkeypatch.setattr(kernels, "loaded", lambda: False)
        path = tmp_path / f"{way}.h5"
        with blockscope.record(model, path, level="summary", block_length=8, mask_token_id=MASK,
                               gen_length=8) as run, torch.no_grad():
            cache = model(prompt, use_cache=True).past_key_values
            ids = torch.full((1, 8), MASK)
            seen = torch.zeros(1, 1, 8, 24)
            for step in range(8):
                logits = model(ids, past_key_values=cache, attention_mask=seen).logits
                cache.crop(-8)
                logits[..., 50:] = -torch.inf
                ids = ids.clone()
                ids[0, step] = logits[0, step].argmax()
            run.end_sequence(torch.cat([prompt, ids], 1))
        with h5py.File(path) as file:
            found[way] = {name: file[name][:rows_of(file)] for name in
                          ("/prediction/token", "/prediction/confidence", "/prediction/kl_step1")}
            found[way]["decided"] = file["/frames/confidence"][:]
    assert (found[True]["/prediction/token"] >= 50).any()  # before they were forbidden
    for name, values in found[False].items():
        np.testing.assert_allclose(found[True][name], values, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("library", [True, False])
def test_passes_in_and_out_of_inference_mode(tmp_path, monkeypatch, library):
    """Memory that a pass in inference mode made may not be written later outside it."""
    if not library:
        monkeypatch.setattr(kernels, "loaded", lambda: False)
    model = models.qwen3()
    prompt, seen = torch.tensor([[5 * i % 90 for i in range(16)]]), torch.zeros(1, 1, 8, 24)
    with blockscope.record(model, tmp_path / "run.h5", level="summary", block_length=8, mask_token_id=MASK,
                           gen_length=8) as run, torch.no_grad():
        cache = model(prompt, use_cache=True).past_key_values
        ids = torch.full((1, 8), MASK)
        for step in range(8):
            with torch.inference_mode(step % 2 == 0):
                token = int(model(ids.clone(), past_key_values=cache, attention_mask=seen).logits[0, step].argmax())
                cache.crop(-8)
            ids = ids.clone()
            ids[0, step] = token
        run.end_sequence(torch.cat([prompt, ids], 1))
    assert run.rows == 9


def test_queries_in_any_layout(tmp_path, monkeypatch):
    """A model that passes queries with channels that aren't adjacent in memory."""
    own = torch.nn.functional.scaled_dot_product_attention

    def scattered(q, k, v, *args, **kwargs):
        return own(q.transpose(-1, -2).contiguous().transpose(-1, -2), k, v, *args, **kwargs)

    model, prompt = models.qwen3(), torch.tensor([[5 * i % 90 for i in range(16)]])
    for name, function in (("plain", own), ("scattered", scattered)):
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", function)
        with blockscope.record(model, tmp_path / f"{name}.h5", block_length=8, mask_token_id=MASK, gen_length=8,
                               array_type="f32", set_size=5):
            models.decode_qwen_blocks(model, prompt, 8, 8, MASK)
    compare_with_capture(tmp_path / "scattered.h5", tmp_path / "plain.h5")


def test_the_trace_says_what_it_was_computed_with(tmp_path):
    model = models.qwen3()
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK, level="trajectory"):
        models.decode_qwen_blocks(model, torch.tensor([[1] * 8]), 8, 8, MASK)
    with h5py.File(tmp_path / "run.h5") as file:
        run = json.loads(bytes(file["/run/json"][()]).decode())
    assert run["kernels"] == "blockscope" and run["attention"] == "observe"


def both_operators(name, *args):
    """What torch's operator gives, and the library's."""
    found = [getattr(operators, name)(*args) for operators in (torch_operators, torch.ops.blockscope)]
    return [one if isinstance(one, (tuple, list)) else [one] for one in found]


def check_same(name, got, want, tolerance=2e-5):
    assert len(got) == len(want), name
    for mine, theirs in zip(got, want):
        assert mine.shape == theirs.shape, name
        assert mine.dtype == theirs.dtype or theirs.dtype == torch.float64, name
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)


@pytest.mark.parametrize("name", [name for name in cases.CASES if name != "no block"])
@pytest.mark.parametrize("with_block", [False, True])
def test_torch_gives_the_librarys_attention(name, with_block):
    sizes = cases.CASES[name]
    q, k_ext, v_ext, k_in, v_in = cases.attention_inputs(sizes)
    given = (q, k_ext, v_ext, torch.tensor(sizes.ext_len), k_in, v_in, sizes.scale)
    check_same(name, *both_operators("split_attention", *given))
    if q.shape[2] != k_in.shape[2]:
        return  # a recorder's queries are those of the whole block
    ends = torch.stack([(torch.tensor([0.0, 0.1, 0.1, 0.7, 1.0]) * length).long() for length in sizes.ext_len])
    check_same(name, *both_operators("recorded_attention", *given, ends, 5, with_block))
    check_same(name, *both_operators("recorded_attention", *given, ends))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_external_output_follows_from_the_models_result(dtype):
    """In float64 on the same inputs. The result's rounding error is divided by the weight of the external keys."""
    torch.manual_seed(7)
    heads, group, block, keys, dim = 8, 2, 16, 200, 32
    q = torch.randn(2, heads, block, dim, dtype=dtype)
    q[:, :3] *= 4  # sharp: some rows look at the block alone
    k, v = (torch.randn(2, heads // group, keys + block, dim, dtype=dtype) for _ in range(2))
    parts = k[:, :, :keys], v[:, :, :keys], torch.full((2,), keys), k[:, :, keys:], v[:, :, keys:], dim ** -0.5
    scores = q.double() @ k.double().repeat_interleave(group, 1).transpose(-1, -2) * dim ** -0.5
    wide = v.double().repeat_interleave(group, 1)
    result = (scores.softmax(-1) @ wide).to(dtype)
    exact = scores[..., :keys].softmax(-1) @ wide[:, :, :keys]
    share = scores.softmax(-1)[..., :keys].sum(-1)
    ends = torch.tensor([[keys // 2, keys]] * 2)
    direct = torch.ops.blockscope.recorded_attention(q, *parts, ends, 5)
    derived = torch.ops.blockscope.recorded_attention(q, *parts, ends, 5, False, result)
    for name, mine, theirs in zip(range(1, len(direct)), derived[1:], direct[1:]):
        if name != 1:
            assert torch.equal(mine, theirs), name  # LSEs, A_in, spread and sets are the same walk's
    whole = (share >= 0.5 + 1e-4).all(-1)
    part = (share < 0.5 - 1e-4).any(-1)
    assert whole.any() and part.any()
    assert torch.equal(derived[1][part], direct[1][part])
    unit = torch.finfo(dtype).eps / 2
    gap = (derived[1].double() - exact).abs().amax(-1)
    bound = 2 * unit * result.double().abs().amax(-1) / share + 1e-5
    assert (gap <= bound)[whole].all() and not torch.equal(derived[1][whole], direct[1][whole])


def test_torch_gives_the_librarys_statistics():
    torch.manual_seed(3)
    shape = (2, 3, 5, 8)  # S, H, B, D
    now, last, older = ([torch.randn(shape), torch.randn(shape[:3]), torch.randn(shape), torch.randn(shape[:3])]
                        for _ in range(3))
    now[0][1, :, 2] = now[1][1, :, 2] = now[2][1, :, 2] = now[3][1, :, 2] = torch.nan  # a row that was not computed
    last[0][1, 0, 3] = last[1][1, 0, 3] = torch.nan
    last[1][0, 1, 4] = -torch.inf  # a row without a key
    kinds = torch.tensor([0, 1, 2, 2, 1], dtype=torch.uint8)
    for row in range(2):
        for external, sources in ((True, [now, last, older, older]), (False, [])):
            pair = now[:2] if external else [None, None]
            for before in (True, False):
                args = (*pair, *now[2:], last[0] if external and before else None, last[2] if before else None,
                        [source[0] for source in sources], [source[1] for source in sources],
                        [kinds if source is not now else kinds[:0] for source in sources], row)
                check_same("step_statistics", *both_operators("step_statistics", *args))
        check_same("step_gaps", *both_operators("step_gaps", now[0].half(), last[0].half(), row), 1e-4)


def test_what_a_pass_did_not_compute_is_nowhere_compared():
    torch.manual_seed(5)
    missing, wanted = torch.tensor([False, True, False]), torch.tensor([True, True, False])
    whole, cut = Predictions(torch.randn(3, 50), 4), Predictions(torch.randn(3, 50), 4, missing)
    for first, now in ((whole, cut), (cut, whole)):
        assert now.kl_from(first, wanted).isnan().tolist() == [False, True, True]
    there, none = torch.tensor([[[4, 2]]]), torch.tensor([[[-1, -1]]])  # a set, and that of a layer without rows
    assert recall(there, there, [3]).tolist() == [[1.0]]
    assert recall(there, there, [2]).isnan().all()  # no more keys than the set has
    assert recall(none, there, [3]).isnan().all() and recall(there, none, [3]).isnan().all()


def test_torch_gives_the_librarys_predictions():
    torch.manual_seed(4)
    first, now = 3 * torch.randn(4, 50), 3 * torch.randn(4, 50)
    first[0, 7] = now[1, 3] = now[2, 9] = -torch.inf
    wanted = torch.tensor([True, False, True, True])
    check_same("row_log_sum_exp", *both_operators("row_log_sum_exp", now))
    check_same("best_token_rows", *both_operators("best_token_rows", now))
    check_same("row_divergence", *both_operators(
        "row_divergence", first, torch.ops.blockscope.row_log_sum_exp(first), now[[0, 1, 3, 3]], wanted))
