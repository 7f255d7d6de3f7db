"""blockscope.record() of a model whose layers lie on several devices, as device_map="auto" spreads them."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from pretended_devices import PretendedDevices  # noqa: E402
from recording_checks import MASK, PROMPT as TEXT, compare_traces  # noqa: E402

PROMPT = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])


def spread(layers, devices):
    """Moves what a layer gets to its device, and the last result back, as accelerate's hooks do."""

    def move(x, place):
        if isinstance(x, torch.Tensor):
            return x.to(place)
        return tuple(move(one, place) for one in x) if isinstance(x, tuple) else x

    for index, layer in enumerate(layers):
        place, last, own = torch.device("cpu", 1 + index // 2), index == len(layers) - 1, layer.forward
        devices.put(layer, place)

        def forward(*args, own=own, place=place, last=last, **kwargs):
            out = own(*move(args, place), **{name: move(x, place) for name, x in kwargs.items()})
            return move(out, torch.device("cpu")) if last else out

        layer.forward = forward


def qwen():
    model = models.qwen3(dtype=torch.bfloat16)
    return model, model.model.layers, lambda: models.decode_qwen_blocks(model, PROMPT, 16, 8, MASK)


def scattered():
    """Its passes compute some of the block's rows."""
    model = loops.CanvasModel()
    return model, model.layers, lambda: loops.left_out(model, TEXT, 32, 16)


LOOPS = {"qwen": (qwen, dict(block_length=8, mask_token_id=MASK, level="outputs", maps={}, gen_length=16)),
         "full": (qwen, dict(block_length=8, mask_token_id=MASK, level="full", gen_length=16)),
         "scattered": (scattered, dict(block_length=16, level="outputs"))}


@pytest.mark.parametrize("loop", LOOPS)
def test_layers_on_several_devices(tmp_path, monkeypatch, loop):
    monkeypatch.setattr(kernels, "loaded", lambda: False)  # the library is for the CPU
    make, settings = LOOPS[loop]
    devices = PretendedDevices()
    tokens = []
    for name, mode in (("one.h5", contextlib.nullcontext()), ("spread.h5", devices)):
        model, layers, decode = make()
        if mode is devices:
            spread(layers, devices)
        with mode, blockscope.record(model, tmp_path / name, set_size=5, **settings) as run:
            tokens.append(decode())
            run.end_sequence(tokens[-1])
    assert {str(place) for place in devices.seen} == {"cpu", "cpu:1", "cpu:2"}
    assert str(tokens[0]) == str(tokens[1])
    compare_traces(tmp_path / "spread.h5", tmp_path / "one.h5")


@pytest.mark.parametrize("policy", ["flashblock,tau=5", "flashblock,tau=4,refresh=near", "mage+flashblock,k=6",
                                    "quest,k=8,page=4", "sparsed,k=6,per_block", "oracle,k=6", "recent,k=5",
                                    "random,k=5", "flashblock,tau=9,sure=0.01"])
def test_a_policy_with_layers_on_several_devices(monkeypatch, policy):
    monkeypatch.setattr(kernels, "loaded", lambda: False)
    devices, found = PretendedDevices(), []
    for mode in (contextlib.nullcontext(), devices):
        model, layers, decode = qwen()
        if mode is devices:
            spread(layers, devices)
        with mode, blockscope.apply(model, policy, block_length=8, mask_token_id=MASK) as run:
            found.append((decode().tolist(), run.summary()))
    assert {str(place) for place in devices.seen} == {"cpu", "cpu:1", "cpu:2"}
    assert found[0] == found[1] and 0 < found[0][1]["saving"] < 1
