"""What blockscope.apply() refuses, and that the model is as before after every error."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from apply_checks import PROMPT, SIZE, decode, hooks_of, refused  # noqa: E402
from torch.nn import functional as F  # noqa: E402


@pytest.fixture
def model():
    return models.PlainModel("needle")


# --- attention that can't be honoured ---------------------------------------------------------------------------------


def attend_with(model, layer, attend):
    model.layers[layer].__dict__["attend"] = attend


def test_dropout(model):
    attend_with(model, 2, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, 0.1, enable_gqa=True))
    refused(model, r"layers\.2: scaled_dot_product_attention: .* without dropout, got 0\.1. HINT: model\.eval")


@pytest.mark.parametrize("kind", ["hidden", "bias"])
def test_masks(model, kind):
    def attend(q, k, v, mask):
        if mask is None:
            mask = torch.zeros(q.shape[2], k.shape[2])
            mask[:, 3] = -torch.inf if kind == "hidden" else 0.5
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    attend_with(model, 1, attend)
    refused(model, r"layers\.1: scaled_dot_product_attention: its mask hides or biases keys")


def test_a_mask_that_hides_nothing_is_honoured(model):
    wanted = decode(model)
    for layer in range(len(model.layers)):
        attend_with(model, layer, lambda q, k, v, mask: F.scaled_dot_product_attention(
            q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool) if mask is None else mask, enable_gqa=True))
    with blockscope.apply(model, "exact", block_length=SIZE):
        assert torch.equal(decode(model), wanted)


def test_attention_that_is_spelled_out(model):
    def attend(q, k, v, mask):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v

    attend_with(model, 0, attend)
    refused(model, r"layers\.0: .*its result can't be replaced.*flashblock,tau=5")


def test_attention_that_is_stated(model):
    """Any function will do if the layer uses what is returned."""
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE) as run:
        wanted, reads = decode(model), run.summary()
    for index, layer in enumerate(model.layers):
        def attend(q, k, v, mask, index=index):
            out = run.attention(index, q, k, v, mask=mask)
            return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True) if out is None else out

        attend_with(model, index, attend)
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE) as run:
        assert torch.equal(decode(model), wanted)
    assert run.summary() == reads and reads["steps_reused"] > 0


def test_a_statement_that_is_refused_and_caught(model):
    """What the layer attends to next is its own."""
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE):
        wanted = decode(model)

    def attend(q, k, v, mask):
        if mask is None:
            with contextlib.suppress(blockscope.UsageError):
                run.attention(0, q, k, v)  # a second time
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    attend_with(model, 2, attend)
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE) as run:
        assert torch.equal(decode(model), wanted)


def test_the_error_of_stated_attention(model):
    """Of a stated layer, the exact run's attention isn't known."""
    def loop(model, prompt, run):
        def attend(q, k, v, mask):
            out = run.attention(1, q, k, v, mask=mask)
            return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True) if out is None else out

        attend_with(model, 1, attend)
        return decode(model)

    replay = blockscope.compare(model, loop, [0], policy="flashblock,tau=5", repeats=1, block_length=SIZE)[
        "settings"][0]["replay"]
    assert replay["propagated"] is None and replay["propagated_by_head"] is None
    assert len(replay["first_order_by_head"]) == len(model.layers)


def test_eager_attention():
    eager = models.qwen3("eager")
    with pytest.raises(blockscope.UsageError, match=r"layers\.0: eager attention: its result can't be replaced"):
        with blockscope.apply(eager, "flashblock,tau=5", block_length=8, mask_token_id=96):
            models.decode_qwen_blocks(eager, torch.arange(1, 17)[None], 16, 8, 96)
    assert not hooks_of(eager)


def test_no_attention_at_all(model):
    attend_with(model, 3, lambda q, k, v, mask: q)
    refused(model, r"PlainModel: the attention of layers\.3 can't be replaced")


def test_two_calls_in_a_layer(model):
    def attend(q, k, v, mask):
        for _ in range(2):
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return out

    attend_with(model, 1, attend)
    refused(model, r"layers\.1: scaled_dot_product_attention: called twice")


def test_gradients(model):
    def attend(q, k, v, mask):
        with torch.enable_grad():
            return F.scaled_dot_product_attention(q.requires_grad_(), k, v, mask, enable_gqa=True).detach()

    attend_with(model, 0, attend)
    refused(model, r"layers\.0: .*no gradients. HINT: decode within torch\.no_grad")


def test_rows_of_a_block(model):
    def run(model):
        cache = models.Cache(len(model.layers))
        ids = torch.tensor([PROMPT[:32] + [model.config.mask_token_id] * SIZE])
        with torch.no_grad():
            model(ids[:, :32], past_key_values=cache, mask=models.block_causal(32, SIZE), store=True)
            model(ids[:, 32:], past_key_values=cache)
            model(ids[:, 36:40], past_key_values=cache)

    refused(model, "length", run=run)


# --- errors and other uses --------------------------------------------------------------------------------------------


def test_an_error_of_the_loop(model):
    def run(model):
        def stop():
            raise KeyError("mine")

        decode(model, step=stop)

    refused(model, "mine", run=run, error=KeyError)


def test_a_pass_that_fails_and_is_run_again(model):
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE) as run:
        wanted = decode(model)
    counts = run.summary()
    passes, own = [], model.layers[4].forward

    def fails(*args):
        passes.append(0)
        if len(passes) % 3 == 0 and not args[-1]:  # it stores no keys
            raise RuntimeError("out of memory")
        return own(*args)

    class Again(torch.nn.Module):
        def forward(self, *args, **kwargs):
            try:
                return model(*args, **kwargs)
            except RuntimeError:
                return model(*args, **kwargs)

    loop = Again()
    loop.config = model.config
    model.layers[4].forward = fails
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE) as run:
        found = decode(loop)
    assert torch.equal(found, wanted) and len(passes) > 10
    assert run.summary() == counts and counts["steps_reused"] > 0


def test_passes_that_are_left_out(model):
    plain = decode(model)
    with blockscope.apply(model, "recent,k=1", block_length=SIZE) as run:
        with run.paused():
            assert torch.equal(decode(model), plain)
    assert run.summary()["passes"] == 0 and "recent,k=1" in repr(run)


@pytest.mark.parametrize("inside", ["apply", "record", "wrapper", "part"])
def test_double_use(model, tmp_path, inside):
    wrapper = torch.nn.Sequential(model)
    wrapper.config = model.config
    other = {"wrapper": wrapper, "part": model.layers}.get(inside, model)
    layers = {"decoder_layers": model.layers} if inside == "wrapper" else {}
    with blockscope.apply(model, "exact", block_length=SIZE) as run:
        with pytest.raises(blockscope.UsageError, match="blockscope.apply is open on this .* already"):
            if inside == "record":
                with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
                    pass
            elif inside == "part":
                other.config = model.config
                with blockscope.apply(other, "exact", block_length=SIZE, decoder_layers=model.layers):
                    pass
            else:
                with blockscope.apply(other, "exact", block_length=SIZE, **layers):
                    pass
        with pytest.raises(blockscope.UsageError, match="applied already"):
            run.__enter__()
        decode(model)
    assert run.summary()["passes"] > 0 and not hooks_of(model)
    with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, force=True) as recording:
        with pytest.raises(blockscope.UsageError, match="blockscope.record is open on this PlainModel already"):
            with blockscope.apply(model, "exact", block_length=SIZE):
                pass
        recording.end_sequence(decode(model))
    assert not hooks_of(model)


def test_compiled_models(model):
    with blockscope.apply(model, "flashblock,tau=5", block_length=SIZE):
        wanted = decode(model)
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(blockscope.UsageError, match="can't be replaced: .*compiled=\"eager\""):
        with blockscope.apply(compiled, "flashblock,tau=5", block_length=SIZE):
            decode(compiled)
    with blockscope.apply(compiled, "flashblock,tau=5", block_length=SIZE, compiled="eager") as run:
        assert torch.equal(decode(compiled), wanted)
    assert run.summary()["steps_reused"] > 0
    torch._dynamo.reset()
