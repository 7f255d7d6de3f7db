"""What blockscope.apply() refuses, and that the model is as before after every error."""

import json
import re
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.applying.policy_texts import KINDS  # noqa: E402
from conftest import BINARY  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SIZE, GEN = 16, 32
PROMPT = [int(x) for x in torch.randint(1, 900, (45,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture
def model():
    return models.PlainModel("needle")


def decode(model, **options):
    return models.decode_blocks(model, PROMPT, GEN, SIZE, **options)


def hooks_of(model):
    names = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
    return [(name, key) for name, module in model.named_modules() for kind in names for key in getattr(module, kind)]


def refused(model, words, *, policy="flashblock,tau=5", run=decode, error=blockscope.UsageError, **options):
    before, forward = decode(models.PlainModel("needle")), model.__dict__.get("forward")
    with pytest.raises(error, match=words):
        with blockscope.apply(model, policy, **{"block_length": SIZE, **options}):
            run(model)
    assert not hooks_of(model) and model.__dict__.get("forward") is forward
    for layer in model.layers:
        layer.__dict__.pop("attend", None)
    assert torch.equal(decode(model), before)


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
    assert run.summary()["steps_reused"] == counts["steps_reused"] > 0
    assert run.summary()["denoising_steps"] == counts["denoising_steps"]


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


# --- policies ---------------------------------------------------------------------------------------------------------


def reuse_file(path, layers=6, heads=6, **more):
    content = {"format": "blockscope-reuse", "format_version": 2, "reuse": [[True] * heads] * layers,
               "model": {"layers": layers, "heads": heads, "digest": "0" * 64, **more}}
    path.write_text(json.dumps(content))
    return path


def test_calibration_files(model, tmp_path):
    layers, heads = len(model.layers), model.config.num_heads
    with blockscope.apply(model, f"flashblock,reuse={reuse_file(tmp_path / 'right.json', layers, heads)}",
                          block_length=SIZE) as run:
        decode(model)
    assert "right.json" in run.policy
    for more, words in ((dict(layers=layers + 1), f"model.layers: expected {layers}, as this model has"),
                        (dict(heads=heads * 2), f"model.heads: expected {heads}, as this model has"),
                        (dict(kv_heads=1), "model.kv_heads: expected")):
        path = reuse_file(tmp_path / "wrong.json", **{"layers": layers, "heads": heads, **more})
        refused(model, words, policy=f"flashblock,reuse={path}", error=blockscope.CalibrationError)
    path = reuse_file(tmp_path / "bound.json", layers, heads)
    refused(model, "row_errors", policy=f"flashblock,bound=0.1,reuse={path}", error=blockscope.CalibrationError)
    refused(model, "none.json", policy="flashblock,reuse=none.json", error=(blockscope.Error, OSError))


@pytest.mark.parametrize("policy, words", [
    ("flashblok", "policy 'flashblok': expected exact, flashblock, mage, .*recent.*, got 'flashblok'"),
    ("flashblock,taw=2", "expected tau, count, refresh, bound, sure or reuse, got 'taw'"),
    ("flashblock,tau=0", "tau: expected a whole number from 1, got '0'"),
    ("flashblock,tau=2,tau=3", "expected tau once, got it twice"),
    ("flashblock,count=often", "count: expected since_read or step, got 'often'"),
    ("flashblock,bound=0.1", "expected a reuse file with row_errors"),
    ("flashblock,bound=0.1,tau=2,reuse=x", "expected bound or tau and count, got both"),
    ("mage", "expected either k or density, got none"), ("mage,k=1,density=0.5", "got both"),
    ("mage,density=1.5", "density: expected a number above 0, up to 1"),
    ("sparsed+flashblock,k=3", "expected per_block, got none"), ("exact,k=3", "exact has no options, got 'k'"),
    ("sparsed,k=3,per_block=1", "per_block: expected no value"), (3, "expected a text .*, or an object with choose"),
    (dict, "expected a text or an object, got the class dict"),
    (type("Both", (), {"choose": print, "attend": print})(), "expected a class with either choose.*, got both")])
def test_policies_that_are_refused(model, policy, words):
    with pytest.raises(blockscope.UsageError, match=words):
        blockscope.apply(model, policy, block_length=SIZE)


def test_what_a_policy_must_know(model):
    refused(model, "gen_length=64, denoising_steps=16", policy="sparsed,k=8")
    refused(model, "exact_layers: expected 0 to the model's 6 layers, got 9", policy="mage,k=8,exact_layers=9")
    tokens = models.qwen3()
    for policy in ("flashblock,tau=5", "mage,k=8", "sparsed,k=8,per_block"):
        with pytest.raises(blockscope.UsageError, match="token by token"):
            with blockscope.apply(tokens, policy):
                models.decode_tokens(tokens, torch.arange(1, 9)[None], 4)


def test_an_error_of_an_own_policy_names_the_call(model):
    class Wrong:
        def choose(self, layer, q, keys, step):
            return None if layer < 1 or step.step < 2 else [keys.shape[2]]

    refused(model, r"policy Wrong \(.*test_apply_faults\.py\): choose\(\), layer 1, step 2 of block 3 of sequence 0: "
                   r"positions: KV head 0: expected -1 or 0 to 47, got 48", policy=Wrong(), error=blockscope.Error)


def test_the_table_is_the_runtimes():
    """Names, options, ranges and defaults."""
    listed = subprocess.run([BINARY, "help", "policy"], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  ([a-z+]+) ", listed, re.MULTILINE) == list(KINDS)
    for name, kind in KINDS.items():
        shown = subprocess.run([BINARY, "help", "policy", name], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"^  (\w+)(=\.\.\.)? .*\n(?:  +\((.*?)(?:; default (\S+))?\)\n)?", shown, re.MULTILINE)
        mine = [(option.name, "=..." if option.range else "", option.range,
                 str(option.initial) if option.range and option.initial is not None else "") for option in kind.options]
        assert found == mine, name
