"""blockscope.record() over decoding loops that know nothing of it. Compared with: float64 recomputation of what another
hook kept, `blockscope capture` replaying the same run, and the loop without a recording."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import warnings

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
import recording_reference as reference  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, check_array, compare_with_capture, rows_of  # noqa: E402


# --- against float64 --------------------------------------------------------------------------------------------------


def reference_steps(calls, passes, layers, sequence, inside):
    """Step of each pass in `passes`: the block's rows are all the call's."""
    def one(number):
        group = calls[number * layers:(number + 1) * layers]
        assert [call[0] for call in group] == list(range(layers))
        q, k, v = (np.stack([call[i][sequence].numpy() for call in group]) for i in (1, 2, 3))
        return reference.Step(q, k, v, inside(k.shape[2]))
    return [one(number) for number in passes]


@pytest.mark.parametrize("dtype, tolerance, kept", [(torch.float32, 2e-5, 5), (torch.float32, 2e-5, 24),  # N of a block
                                                    (torch.bfloat16, 2e-2, 5)])
def test_block_diffusion_is_what_float64_gives(tmp_path, dtype, tolerance, kept):
    recorder = models.CallRecorder()
    model = models.qwen3("judge", dtype=dtype)
    prompt = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])
    plain = models.decode_qwen_blocks(model, prompt, 16, 8, MASK)
    recorder.calls.clear()
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, level="outputs", block_length=8, mask_token_id=MASK, gen_length=16,
                           set_size=kept, array_type="f32"):
        recorded = models.decode_qwen_blocks(model, prompt, 16, 8, MASK)
    assert torch.equal(plain, recorded)
    with h5py.File(path) as file:
        count, size = rows_of(file), 8
        steps = {name: file["/steps/" + name][:count] for name in
                 ("sequence", "pass", "kind", "block", "block_start", "step", "context_length", "changed",
                  "masks_left", "recorded")}
        for sequence in range(2):
            mine = np.flatnonzero(steps["sequence"] == sequence)
            assert steps["kind"][mine].tolist() == [0, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2]
            assert steps["step"][mine].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
            assert steps["block"][mine].tolist() == [-1] + [3] * 5 + [4] * 5
            assert steps["masks_left"][mine].tolist() == [0, 8, 6, 4, 2, 0, 8, 6, 4, 2, 0]
            assert steps["changed"][mine].tolist() == [0, 0, 2, 2, 2, 2, 0, 2, 2, 2, 2]
            assert steps["context_length"][mine].tolist() == [0] + [24] * 5 + [32] * 5
            for block in (3, 4):
                rows = [r for r in mine if steps["block"][r] == block and steps["kind"][r] == 1]
                history = reference_steps(recorder.calls, [int(steps["pass"][r]) for r in rows], 3, sequence,
                                       lambda keys: np.arange(keys) >= keys - size)
                for i, row in enumerate(rows):
                    now = history[i]
                    for path_, expected in (("/attention/external", now.external), ("/attention/internal", now.internal),
                                            ("/attention/lse_external", now.lse_external),
                                            ("/attention/lse_internal", now.lse_internal), ("/query/query", now.q)):
                        check_array(path_, file[path_][row], expected, tolerance)
                    values = reference.summary(history[:i + 1], [int(steps["changed"][r]) for r in rows])
                    for name in ("similarity_external", "similarity_internal", "external_mass", "query_gap",
                                 "query_block_gap", "reuse_error"):
                        got = file["/summary/" + name][row]
                        expected = values.get(name, np.full(got.shape, np.nan))
                        check_array(name, got, expected, 10 * tolerance)
                    decided = slice(*file["/frames/delta_end"][row - 1:row + 1])
                    at = file["/frames/position"][decided] + 24 - steps["block_start"][row]
                    assert len(at) == 2
                    check_array("confidence", file["/frames/confidence"][decided],
                                file["/prediction/confidence"][row][at], 1e-5)
                    index, probability, union = now.sets(kept)
                    check_array("probability", file["/sets/probability"][row], probability, tolerance)
                    if dtype == torch.float32:
                        assert np.array_equal(file["/sets/topk"][row], index)
                        assert np.array_equal(file["/sets/union_size"][row], union)
                        first = history[0].sets(kept)[0]
                        recall = [[len(set(a) & set(b)) / kept for a, b in zip(x, y)] for x, y in zip(first, index)]
                        known = i and steps["context_length"][row] > kept
                        check_array("recall", file["/sets/recall"][row],
                                    recall if known else np.full((3, 2), np.nan), 1e-6)
        tokens = [recorded[s, 24:].tolist() for s in range(2)]
    trace = blockscope.open(path)
    for sequence in range(2):
        last = trace.frame(sequence, 7)  # before the last denoising row
        seen = np.asarray(last.tokens)
        decided = seen != MASK
        assert decided.sum() == 14 and np.array_equal(seen[decided], np.asarray(tokens[sequence])[decided])


def test_token_by_token(tmp_path):
    recorder = models.CallRecorder()
    model = models.qwen3("judge")
    prompt = torch.tensor([[3, 14, 15, 9, 2, 6]])
    plain = models.decode_tokens(model, prompt, 7)
    recorder.calls.clear()
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, array_type="f32", set_size=3) as run:
        recorded = models.decode_tokens(model, prompt, 7)
        run.end_sequence(recorded)
    assert torch.equal(plain, recorded)
    with h5py.File(path) as file:
        count = rows_of(file)
        assert file["/steps/kind"][:count].tolist() == [0] + [1] * 6
        assert file["/steps/block"][:count].tolist() == [-1, 6, 7, 8, 9, 10, 11]
        assert file["/frames/insert_token"][:7].tolist() == recorded[0, 6:].tolist()
        assert file["/model"].attrs["mask_token_id"] == -1 and file["/model"].attrs["logit_shift"] == 1
        for row, now in enumerate(reference_steps(recorder.calls, range(1, 7), 3, 0, lambda n: np.arange(n) == n - 1), 1):
            check_array("external", file["/attention/external"][row], now.external, 2e-5)
            check_array("lse", file["/attention/lse_external"][row], now.lse_external, 2e-5)
            check_array("internal", file["/attention/internal"][row], now.internal, 2e-5)
            assert np.array_equal(file["/sets/topk"][row], now.sets(3)[0])
        top = file["/prediction/token"][1:count, 0]
    assert top.tolist() == recorded[0, 7:].tolist()
    # Without a cache every token runs the whole sequence again: the same attention.
    other = tmp_path / "other.h5"
    with blockscope.record(model, other, array_type="f32", set_size=3) as run, torch.no_grad():
        ids = prompt
        for _ in range(7):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        run.end_sequence(ids)
    assert blockscope.compare(path, other, absolute=1e-4, ignore_timing=True).equal


def test_the_generate_of_transformers(tmp_path):
    model = models.qwen3()
    prompt = torch.tensor([[3, 14, 15, 9, 2, 6]])
    options = {"max_new_tokens": 6, "do_sample": False}
    plain = model.generate(prompt, **options)
    with blockscope.record(model, tmp_path / "run.h5", level="summary") as run:
        ids = model.generate(prompt, **options)
        run.end_sequence(ids)
    trace = blockscope.open(tmp_path / "run.h5")
    assert torch.equal(plain, ids) and trace.num_rows == 6 and trace.complete
    assert trace.frame(0, trace.num_steps(0)).tokens.tolist() == ids[0, 6:].tolist()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_eager_attention_is_seen_as_sdpa_is(tmp_path, kv_heads):
    prompt = torch.tensor([[5 * i % 90 for i in range(16)]])
    paths = []
    for implementation in ("sdpa", "eager"):
        model = models.qwen3(implementation, kv_heads=kv_heads)
        paths.append(tmp_path / f"{implementation}.h5")
        with blockscope.record(model, paths[-1], block_length=8, mask_token_id=MASK, array_type="f32", set_size=4):
            models.decode_qwen_blocks(model, prompt, 16, 8, MASK)
    assert blockscope.compare(*paths, absolute=1e-3, ignore_timing=True).equal
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert "eager" not in ALL_ATTENTION_FUNCTIONS  # all is as it was


# --- against our own runtime ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, decode, cache, normaliser", [
    ("needle", models.decode_blocks, "commit", "prefix"), ("needle", models.decode_blocks, "commit", "prefix+block"),
    ("needle-bidirectional", models.decode_canvas, "none", "prefix"),
    ("needle-bidirectional", models.decode_prefix_cache, "prefix", "prefix"),
    ("needle-bidirectional", models.decode_dual_cache, "dual", "prefix")])
def test_is_the_trace_that_capture_writes(tmp_path, name, decode, cache, normaliser):
    size = 16
    model = models.PlainModel(name)
    plain = decode(model, PROMPT, 48, size)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models.MODELS / name)
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    with blockscope.record(model, mine, level="outputs", block_length=size, gen_length=48, array_type="f32",
                           tokenizer=tokenizer, set_normaliser=normaliser) as run:
        state = {"state": lambda start: run.step(start=start)} if cache == "dual" else {}  # positions aren't an input
        recorded = decode(model, PROMPT, 48, size, **state)
        run.end_sequence(recorded)
    assert torch.equal(plain, recorded)
    done = subprocess.run(
        [BINARY, "capture", str(models.MODELS / name), "--replay", str(mine), "--predictions", "all", "--dtype",
         "float32", "--block-length", str(size), "--cache", cache, "--record", "outputs", "--array-type", "f32", "--set-normaliser", normaliser, "-o",
         str(theirs)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare_with_capture(mine, theirs)
    assert blockscope.open(mine).text(0).startswith(blockscope.open(theirs).text(0)[:20])


def test_an_unknown_length_grows_with_the_blocks(tmp_path):
    model = models.PlainModel("needle")
    paths = [tmp_path / "known.h5", tmp_path / "unknown.h5"]
    for path, gen_length in zip(paths, (48, None)):
        with blockscope.record(model, path, level="trajectory", block_length=16, gen_length=gen_length):
            ids = models.decode_blocks(model, PROMPT, 48, 16)
    for path in paths:
        trace = blockscope.open(path)
        tokens = np.asarray(trace.frame(0, trace.num_steps(0)).tokens)
        assert tokens.tolist() == ids[0, len(PROMPT):].tolist()


def test_two_sequences_follow_each_other(tmp_path):
    model = models.PlainModel("needle-bidirectional")
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, level="summary", block_length=16) as run:
        for prompt in (PROMPT, PROMPT[:40], PROMPT[:40]):
            run.end_sequence(models.decode_canvas(model, prompt, 32, 16))
        with run.paused():
            models.decode_canvas(model, PROMPT, 16, 16)
    with h5py.File(path) as file:
        assert file["/sequences/prompt_length"][:3].tolist() == [75, 40, 40]
        assert int(file["/sequences/committed"][0]) == 3 and rows_of(file) == 24


def test_filters(tmp_path):
    model = models.PlainModel("needle")
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=16, layers=[1, 4], steps=[2], array_type="f32"):
        models.decode_blocks(model, PROMPT, 32, 16)
    whole = tmp_path / "whole.h5"
    with blockscope.record(model, whole, block_length=16, array_type="f32"):
        models.decode_blocks(model, PROMPT, 32, 16)
    with h5py.File(path) as some, h5py.File(whole) as all_:
        assert some["/layer"][:].tolist() == [1, 4]
        count = rows_of(some)
        recorded = some["/steps/recorded"][:count] == 1
        assert np.array_equal(recorded, some["/steps/step"][:count] == 2)
        for name in ("/attention/external", "/summary/similarity_internal", "/summary/query_gap"):
            assert np.array_equal(some[name][:count][recorded], all_[name][:count][recorded][:, [1, 4]], equal_nan=True)


def test_a_masked_block_is_recorded_as_it_is(tmp_path):
    """Causal within the block, as a backbone under diffusion's loop: what a query doesn't see is in neither part."""
    recorder = models.CallRecorder()
    model = models.qwen3("judge")
    from transformers import DynamicCache

    prompt, size = torch.tensor([[5 * i % 90 for i in range(16)]]), 8
    cache = DynamicCache(config=model.config)
    path = tmp_path / "run.h5"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with blockscope.record(model, path, block_length=size, mask_token_id=MASK, array_type="f32", set_size=4):
            model(prompt, past_key_values=cache)
            recorder.calls.clear()
            model(torch.full((1, size), MASK), past_key_values=cache)
    step = recorder.calls
    q, k, v = (np.stack([call[i][0].numpy() for call in step]) for i in (1, 2, 3))
    visible = np.arange(24)[None, :] <= np.arange(16, 24)[:, None]
    now = reference.Step(q, k, v, np.arange(24) >= 16, visible)
    with h5py.File(path) as file:
        check_array("internal", file["/attention/internal"][1], now.internal, 2e-5)
        check_array("lse", file["/attention/lse_internal"][1], now.lse_internal, 2e-5)
        check_array("external", file["/attention/external"][1], now.external, 2e-5)


# --- faults -----------------------------------------------------------------------------------------------------------


class Unseen(torch.nn.Module):
    """Attends in its own way."""

    def __init__(self, model):
        super().__init__()
        self.config = model.config
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(model.config.num_hidden_layers))

    def forward(self, input_ids):
        x = torch.zeros(*input_ids.shape, 8)
        for layer in self.layers:
            x = layer(x)
        return x.new_zeros(*input_ids.shape, 1024)


def test_attention_that_cannot_be_seen_is_named(tmp_path):
    model = Unseen(models.PlainModel("needle"))
    ids = torch.full((1, 16), model.config.mask_token_id)
    with pytest.raises(blockscope.UsageError, match=r"layers\.0.*can't be seen.*scaled_dot_product_attention"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=16):
            model(ids)
    with blockscope.record(model, tmp_path / "run.h5", block_length=16, level="trajectory") as run:
        model(ids)
        run.end_sequence(torch.zeros(1, 16, dtype=torch.long))


def test_dropout_is_refused(tmp_path):
    model = models.qwen3()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train()
    with pytest.raises(blockscope.UsageError, match=r"dropout.*model\.eval"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK):
            models.decode_qwen_blocks(model, torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), 8, 8, MASK)


def test_what_cannot_be_inferred_is_asked_for(tmp_path):
    model = models.PlainModel("needle")
    mask = model.config.mask_token_id

    def run(loop, message, **options):
        with pytest.raises(blockscope.UsageError, match=message):
            with blockscope.record(model, tmp_path / "run.h5", force=True,
                                   **{"block_length": 16, "level": "trajectory", **options}):
                loop()

    run(lambda: model(torch.full((1, 8), mask)), "over 8 positions.*at least block_length = 16")
    run(lambda: model(torch.ones(1, 8, dtype=torch.long)), "nothing was recorded")
    cache = models.Cache(6)
    model(torch.ones(1, 32, dtype=torch.long), past_key_values=cache, store=True)
    run(lambda: model(torch.full((1, 16), mask), past_key_values=cache), "first pass begins at position 32")
    run(lambda: None, "gen_length", gen_length=0)
    run(lambda: None, "layers: expected 0 to 5, got 6", layers=[6])
    run(lambda: None, "expected one of trajectory", level="all")
    run(lambda: None, "block_length: missing", block_length=None)

    def anywhere():
        ids = torch.full((1, 48), mask)
        model(ids)
        ids[0, 40] = 5
        model(ids)

    run(anywhere, "position 40 was decided by a pass over block 0.*block by block")


def test_padding_is_refused(tmp_path):
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match="padded"):
        with blockscope.record(model, tmp_path / "run.h5"):
            model(torch.tensor([[0, 0, 1, 2], [1, 2, 3, 4]]), attention_mask=torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))


@pytest.mark.parametrize("bad, layer", [(1, 0), (2, 3), (5, 3), (8, 0), (9, 0), (10, 3)])
def test_a_pass_that_failed_and_was_repeated_leaves_no_mark(tmp_path, bad, layer):
    """Pass 1 is the prompt's. A pass that stores keys fails before it has stored any."""
    model = models.PlainModel("needle")
    passes = []

    def fail(*ignored):
        passes.append(1)
        if len(passes) == bad:
            raise ValueError("a passing fault")

    class Repeating:
        def __getattr__(self, name):
            return getattr(model, name)

        def __call__(self, *args, **kwargs):
            try:
                return model(*args, **kwargs)
            except ValueError:
                return model(*args, **kwargs)

    with blockscope.record(model, tmp_path / "once.h5", block_length=16):
        models.decode_blocks(model, PROMPT, 32, 16)
    hook = model.layers[layer].register_forward_pre_hook(fail)
    with blockscope.record(model, tmp_path / "twice.h5", block_length=16):
        models.decode_blocks(Repeating(), PROMPT, 32, 16)
    hook.remove()
    with h5py.File(tmp_path / "once.h5") as once, h5py.File(tmp_path / "twice.h5") as twice:
        assert rows_of(once) == rows_of(twice) == 14
        for group in ("steps", "frames", "attention"):
            for name, data in once[group].items():
                # /steps/pass counts every call of the model.
                if name != "pass" and not name.endswith("_ns") and isinstance(data, h5py.Dataset):
                    np.testing.assert_array_equal(data[()], twice[group][name][()], err_msg=name)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("inside", [False, True])
def test_an_exception_leaves_an_unfinished_trace(tmp_path, error, inside):
    model = models.PlainModel("needle")
    passes = []
    raised = error("stop here")

    def step(*ignored):
        passes.append(1)
        if len(passes) == 5:
            raise raised

    hook = model.layers[3].register_forward_hook(lambda *ignored: step() and None) if inside else None
    with pytest.raises(error) as caught:
        with blockscope.record(model, tmp_path / "run.h5", block_length=16):
            models.decode_blocks(model, PROMPT, 48, 16, step=None if inside else step)
    assert caught.value is raised
    if hook is not None:
        hook.remove()
    assert not (tmp_path / "run.h5").exists()
    with h5py.File(tmp_path / "run.h5.partial", swmr=True) as file:
        assert rows_of(file) == (4 if inside else 7) and file["/run/complete"][0] == 0
        assert np.isfinite(file["/attention/lse_internal"][2]).all()
    assert not blockscope.open(tmp_path / "run.h5").complete
    # The model is as it was, and can be recorded again.
    before = models.decode_blocks(model, PROMPT, 32, 16)
    with blockscope.record(model, tmp_path / "run.h5", block_length=16, force=True):
        assert torch.equal(models.decode_blocks(model, PROMPT, 32, 16), before)
    assert not torch.overrides._get_current_function_mode_stack()


def test_two_recordings_at_once(tmp_path):
    model, other = models.PlainModel("needle"), models.PlainModel("needle-bidirectional")
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    with blockscope.record(model, a, block_length=16, array_type="f32"), \
            blockscope.record(model, b, block_length=16, array_type="f32"), \
            blockscope.record(other, c, block_length=16) as run:
        models.decode_blocks(model, PROMPT, 32, 16)
        run.end_sequence(models.decode_canvas(other, PROMPT, 32, 16))
    assert blockscope.compare(a, b, ignore_timing=True).equal
    assert blockscope.open(c).model["bidirectional"]
    with pytest.raises(blockscope.UsageError, match="exists already.*force"):
        with blockscope.record(model, a, block_length=16):
            pass
    with blockscope.record(model, tmp_path / "d.h5", block_length=16):
        models.decode_blocks(model, PROMPT, 16, 16)
        with pytest.raises(blockscope.Error):
            with blockscope.record(model, tmp_path / "d.h5", block_length=16):
                pass


def test_threads(tmp_path):
    """Two loops in two threads, each with its recording; models that run at the same time aren't in it."""
    paths = [tmp_path / f"{i}.h5" for i in range(2)]
    found = []

    def work(path):
        model = models.PlainModel("needle")
        with blockscope.record(model, path, block_length=16, array_type="f32"):
            found.append(models.decode_blocks(model, PROMPT, 48, 16))

    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    q = torch.zeros(1, 2, 16, 8)
    while any(thread.is_alive() for thread in threads):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert torch.equal(*found)
    assert blockscope.compare(*paths, absolute=1e-6, ignore_timing=True).equal


def test_a_fork_leaves_the_trace_alone(tmp_path):
    model = models.PlainModel("needle")
    path = tmp_path / "run.h5"
    torch.set_num_threads(1)  # a fork has no threads of OpenMP
    with blockscope.record(model, path, block_length=16):
        models.decode_blocks(model, PROMPT, 16, 16)
        child = os.fork()
        if child == 0:
            model(torch.full((1, 16), model.config.mask_token_id))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        models.decode_blocks(model, PROMPT, 16, 16)
    assert len(blockscope.open(path).sequences) == 2


def test_the_file_is_deleted(tmp_path):
    model = models.PlainModel("needle")
    with pytest.raises(blockscope.TraceError, match="was removed while it was written"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=16) as run:
            models.decode_blocks(model, PROMPT, 16, 16)
            run.commit()
            os.remove(tmp_path / "run.h5.partial")


def test_a_kill_keeps_committed_rows(tmp_path):
    path = tmp_path / "run.h5"
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import blockscope, recorded_models as models
model = models.PlainModel("needle")
with blockscope.record(model, {str(path)!r}, block_length=16) as run:
    def step():
        if run.rows == 6:
            run.commit()
            os.kill(os.getpid(), signal.SIGKILL)
    models.decode_blocks(model, {PROMPT}, 48, 16, step=step)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with h5py.File(f"{path}.partial", swmr=True) as file:
        assert rows_of(file) == 6
        assert np.isfinite(file["/attention/external"][2].astype(np.float32)).all()


def test_without_torch(tmp_path):
    code = """
import sys
sys.modules["torch"] = None
import blockscope
try:
    blockscope.record(object(), "run.h5", block_length=4)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "needs torch" in done.stdout and "HINT" in done.stdout, done.stderr


def test_importing_blockscope_imports_no_torch():
    done = subprocess.run([sys.executable, "-c", "import sys, blockscope; blockscope.record; print('torch' in sys.modules)"],
                          capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
