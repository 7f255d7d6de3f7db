"""The policies that blockscope.apply() reads: the runtime's table, calibration files, and what they refuse."""

import json
import re
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from apply_checks import SIZE, decode, hooks_of, refused  # noqa: E402
from blockscope.applying.policy_texts import KINDS  # noqa: E402
from conftest import BINARY  # noqa: E402
from recorded_canvases import diffusion_gemma, generate_canvases  # noqa: E402


@pytest.fixture
def model():
    return models.PlainModel("needle")


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


def test_a_set_of_the_run_and_a_sliding_window():
    gemma, prompt = diffusion_gemma(), torch.tensor([[5 * i % 90 + 3 for i in range(10)]])
    for policy in ("sparsed,k=4,per_block", "mage,k=4", "quest,k=4,page=2", "flashblock,tau=100"):
        with blockscope.apply(gemma, policy) as run:
            generate_canvases(gemma, prompt)
        assert 0 < run.summary()["saving"] < 1 and not hooks_of(gemma)
    with pytest.raises(blockscope.UsageError, match="the cache of layer 0 drops keys"):
        with blockscope.apply(gemma, "sparsed,k=4", gen_length=24, denoising_steps=1):
            generate_canvases(gemma, prompt)


def test_an_error_of_an_own_policy_names_the_call(model):
    class Wrong:
        def choose(self, layer, q, keys, step):
            return None if layer < 1 or step.step < 2 else [keys.shape[2]]

    refused(model, r"policy Wrong \(.*test_apply_policies\.py\): choose\(\), layer 1, step 2 of block 3 of sequence 0: "
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
