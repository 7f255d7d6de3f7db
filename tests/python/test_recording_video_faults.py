"""Recorded videos: what can't be inferred is asked for, and a failed pass or loop leaves a readable trace."""

import threading

import h5py
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as videos  # noqa: E402
import wan_like_models as wan  # noqa: E402
from recording_checks import rows_of  # noqa: E402
from video_reference import check_rows  # noqa: E402

SHAPE = videos.Shape()
BLOCK = videos.CHUNK * SHAPE.frame
OPTIONS = {"block_length": BLOCK, "array_type": "f32"}


class Caller:
    """One pass at a time of a causal model."""

    def __init__(self, shape=SHAPE):
        self.model = videos.CausalVideoModel(shape)
        self.noise, self.context, _ = videos.inputs(shape, 12)
        self.kv, self.crossattn = videos.new_caches(self.model, 12, 1)

    @torch.no_grad()
    def __call__(self, start, timestep, x=None, **changed):
        x = self.noise[:, :, :3] if x is None else x
        arguments = dict(t=torch.full((1, 3), float(timestep)), context=self.context, seq_len=1, kv_cache=self.kv,
                         crossattn_cache=self.crossattn, current_start=start)
        return self.model(x, **{**arguments, **changed})


def refused(tmp_path, match, passes, shape=SHAPE, **options):
    """The last of the passes is refused; the ones before are in the unfinished trace."""
    caller, path = Caller(shape), tmp_path / "run.h5"
    with pytest.raises(blockscope.UsageError, match=match) as error:
        with blockscope.record(caller.model, path, **{**OPTIONS, **options}) as run:
            passes(caller, run)
    assert "HINT" in str(error.value)
    return path


def test_two_calls_with_one_timestep(tmp_path):
    path = refused(tmp_path, "two passes with timestep 900",
                   lambda call, run: (call(0, 1000), call(0, 900), call(0, 900)))
    with h5py.File(f"{path}.partial", swmr=True) as file:
        assert rows_of(file) == 2 and file["/steps/step"][:2].tolist() == [1, 2]


def test_two_calls_with_one_timestep_that_are_stated(tmp_path):
    caller, path = Caller(), tmp_path / "run.h5"
    with blockscope.record(caller.model, path, **OPTIONS) as run:
        for _ in range(2):
            run.step(kind="denoise")
            caller(0, 900)
        with run.paused():
            caller(0, 900)
        caller(0, 800)
    with h5py.File(path) as file:
        assert file["/steps/step"][:].tolist() == [1, 2, 3]


def test_a_timestep_that_rises_in_a_later_block(tmp_path):
    refused(tmp_path, "timestep 950 after one with 900",
            lambda call, run: (call(0, 1000), call(0, 0), call(BLOCK, 900), call(BLOCK, 950)))


@pytest.mark.parametrize("start", [BLOCK - SHAPE.frame, BLOCK // 2])
def test_blocks_that_overlap(tmp_path, start):
    refused(tmp_path, f"a block at position {start} after the one at 0, expected {BLOCK} or a later one",
            lambda call, run: (call(0, 1000), call(0, 0), call(start, 1000)))


def test_frames_at_different_timesteps(tmp_path):
    refused(tmp_path, "t: expected one timestep for all frames of the pass, got 0, 1000",
            lambda call, run: call(0, 0, t=torch.tensor([[0.0, 1000.0, 1000.0]])))


def test_a_timestep_that_is_not_a_number(tmp_path):
    refused(tmp_path, "t: expected one timestep", lambda call, run: call(0, float("nan")))
    caller = Caller()
    with blockscope.record(caller.model, tmp_path / "other.h5", **OPTIONS) as run:
        for given in (float("inf"), "now"):
            with pytest.raises(blockscope.UsageError, match="timestep: expected a number"):
                run.step(timestep=given)
        caller(0, 1000)


def test_a_rolling_cache_that_does_not_tell(tmp_path):
    def passes(caller, run):
        for frame in range(0, 15, 3):
            for timestep in (1000, 0):
                caller(frame * SHAPE.frame, timestep)

    match = "block at position 144 sees 108 keys before its own: the cache has dropped some"
    refused(tmp_path, match, passes)
    refused(tmp_path, "sees 108 keys before its own, and sinks = 109 of them", passes, sinks=109, force=True)


@pytest.mark.parametrize("external, match", [
    ([(0, 12), (24, 30)], r"\[\(0, 12\), \(24, 30\)\] are 18 keys, and the block at position 36 sees 36"),
    ([(12, 4)], "expected rising ranges"), ([(4, 12), (0, 4)], "expected rising ranges"),
    (7, "expected rising ranges")])
def test_external_keys_that_do_not_fit(tmp_path, external, match):
    refused(tmp_path, match, lambda call, run: (
        call(0, 1000), call(0, 0), run.step(external=external), call(BLOCK, 1000)))


def test_a_block_of_another_length(tmp_path):
    """Its own keys and the passes' queries don't fit."""
    refused(tmp_path, f"attends with {BLOCK} queries, expected those of a block of 24",
            lambda call, run: call(0, 1000), block_length=24)


def test_no_position(tmp_path):
    model = wan.WanLikeModel(SHAPE)
    noise, context, _ = videos.inputs(SHAPE, 3)
    with pytest.raises(blockscope.UsageError, match="where the block stands can't be seen.*HINT.*run.step"):
        with blockscope.record(model, tmp_path / "run.h5", **OPTIONS):
            model(noise, torch.tensor([1000.0]), context)


def test_no_latent(tmp_path):
    refused(tmp_path, "called without a latent.*got x of int64.*mask_token_id",
            lambda call, run: call(0, 1000, x=torch.zeros(1, 4, 3, 4, 3, dtype=torch.long)))


def test_no_timestep(tmp_path):
    refused(tmp_path, "called without a timestep", lambda call, run: call(0, 1000, t=None))


@pytest.mark.parametrize("options, match", [
    ({"block_length": None}, "block_length: missing.*takes a timestep, so it is continuous"),
    ({"rows": 0}, "rows: expected 1 to block_length = 36 of them, got 0"),
    ({"rows": 37}, "rows: expected 1 to block_length = 36 of them, got 37"),
    ({"rows": []}, "rows: expected a number of rows, or at least one row"),
    ({"rows": [0, 36]}, r"from 0 to 35, got \[0, 36\]"), ({"rows": "all"}, "rows: expected a number of rows"),
    ({"rows": True}, "rows: expected a number of rows"), ({"rows": [0.5]}, "rows: expected a number of rows"),
    ({"sinks": -1}, "sinks: expected 0 to"), ({"sinks": 1.5}, "sinks: expected a whole number"),
    ({"pair_steps": 0}, "pair_steps: expected 1 to 1024"), ({"tokens_per_frame": 0}, "tokens_per_frame: expected 1"),
    ({"tokens_per_frame": 10}, "tokens_per_frame: expected a divisor of block_length = 36, got 10"),
    ({"context_noise": float("nan")}, "context_noise: expected a number"),
    ({"level": "full"}, "level: 'full' isn't possible with CausalVideoModel, a continuous model"),
    ({"level": "sets"}, "level: 'sets' isn't possible"), ({"maps": {}}, "maps: {} isn't possible"),
    ({"heads": [0]}, r"heads: \[0\] isn't possible"), ({"attention": "replace"}, "attention: 'replace' isn't possible"),
    ({"gen_length": 8}, "gen_length: 8 isn't possible"), ({"ranks": "heads"}, "ranks: 'heads' isn't possible")])
def test_arguments(tmp_path, options, match):
    with pytest.raises(blockscope.UsageError, match=match):
        blockscope.record(videos.CausalVideoModel(SHAPE), tmp_path / "run.h5", **{**OPTIONS, **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["rows", "sinks", "tokens_per_frame"])
def test_arguments_of_a_model_of_tokens(tmp_path, name):
    class Tokens(torch.nn.Module):
        def forward(self, input_ids):
            return input_ids

    with pytest.raises(blockscope.UsageError, match=f"{name}: is for a continuous model"):
        blockscope.record(Tokens(), tmp_path / "run.h5", mask_token_id=3, block_length=4, **{name: 4})


def test_a_pass_that_fails_is_run_again(tmp_path):
    """The loop catches the error of a pass and goes on: the block's steps count on, and their comparisons hold."""
    caller, path, calls = Caller(), tmp_path / "run.h5", []
    videos.watch(caller.model, lambda *call: calls.append(call))
    with blockscope.record(caller.model, path, **OPTIONS):
        for start in (0, BLOCK):
            for timestep in (1000, 800, 0):
                if timestep == 800:
                    done = len(calls)
                    with pytest.raises(RuntimeError):  # in the second layer
                        caller(start, timestep, crossattn_cache=[caller.crossattn[0], {"is_init": True, "k": context(3),
                                                                                      "v": context(3)}, None])
                    del calls[done:]
                caller(start, timestep)
    steps = check_rows(path, calls, BLOCK, SHAPE.layers)
    assert steps["step"].tolist() == [1, 2, 3] * 2


def context(tokens):
    """Keys with a number of heads that the model doesn't have."""
    return torch.zeros(1, tokens, 3, SHAPE.head_dim)


def test_an_exception_of_the_loop_leaves_the_rows(tmp_path):
    caller, path = Caller(), tmp_path / "run.h5"
    with pytest.raises(ZeroDivisionError):
        with blockscope.record(caller.model, path, **OPTIONS):
            caller(0, 1000)
            caller(0, 500)
            1 / 0
    trace = blockscope.open(path)
    assert trace.partial and trace.num_rows == 2
    with blockscope.record(caller.model, path, **OPTIONS, force=True):
        caller(0, 1000)
    assert blockscope.open(path).complete


def test_two_threads(tmp_path):
    caller, inside, go = Caller(), threading.Event(), threading.Event()
    kept = []

    def other():
        try:
            caller(0, 900)
        except blockscope.UsageError as error:
            kept.append(error)
        go.set()

    def wait(*_):
        if not inside.is_set():
            inside.set()
            threading.Thread(target=other).start()
            go.wait(60)

    handle = caller.model.blocks[1].register_forward_pre_hook(wait)
    with blockscope.record(caller.model, tmp_path / "run.h5", **OPTIONS):
        caller(0, 1000)
    handle.remove()
    assert len(kept) == 1 and "two threads" in str(kept[0])
    assert blockscope.open(tmp_path / "run.h5").num_rows == 1


def test_nothing_but_given_frames(tmp_path):
    refused(tmp_path, "nothing was recorded: the model ran no denoising pass", lambda call, run: call(0, 0))


def test_compiled_code_is_not_seen(tmp_path, monkeypatch):
    caller = Caller()
    monkeypatch.setattr(videos, "attend", torch.compile(videos.attend, backend="aot_eager"))
    with pytest.raises(blockscope.UsageError, match="attention of blocks.0, .* can't be seen"):
        with blockscope.record(caller.model, tmp_path / "run.h5", **OPTIONS):
            caller(0, 1000)
    with blockscope.record(caller.model, tmp_path / "run.h5", **OPTIONS, compiled="eager", force=True):
        caller(0, 1000)
    assert blockscope.open(tmp_path / "run.h5").num_rows == 1
