"""The digest of a recorded module's weights: what it depends on, that no tensor makes a recording fail, and that
`calibrate` and `apply` take a recorded trace of tokens with it."""

import copy
import re

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.recording.digest import SAMPLED_BYTES, digest_of  # noqa: E402

SIZE = 8
PROMPT = list(range(1, 33))


class Odd(torch.Tensor):
    """A subclass that refuses every operation."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError(f"{function} isn't supported")


def with_buffer(values):
    model = models.PlainModel("needle")
    model.register_buffer("more", values)
    return model


def raising_hook():
    model = models.PlainModel("needle")

    def refuse(*_):
        raise ValueError("no state")

    model._register_state_dict_hook(refuse)
    return model


def lazy():
    model = models.PlainModel("needle")
    model.more = torch.nn.LazyLinear(3)
    return model


MODELS = {
    "meta": lambda: with_buffer(torch.zeros(3, device="meta")),
    "quantised": lambda: with_buffer(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
    "subclass": lambda: with_buffer(torch.zeros(3).as_subclass(Odd)), "hook": raising_hook, "lazy": lazy,
    "none": lambda: with_buffer(None), "sparse": lambda: with_buffer(torch.eye(3).to_sparse()),
    "nested": lambda: with_buffer(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "transposed": lambda: with_buffer(torch.rand(300, 500).T), "expanded": lambda: with_buffer(
        torch.zeros(1, 1).expand(400, 400)),
    "empty": lambda: with_buffer(torch.zeros(0, 4)), "scalar": lambda: with_buffer(torch.tensor(3)),
    "bool": lambda: with_buffer(torch.ones(3, dtype=torch.bool)), "complex": lambda: with_buffer(
        torch.ones(3, dtype=torch.complex64).conj()),
    "float8": lambda: with_buffer(torch.ones(3).to(torch.float8_e4m3fn))}


@pytest.mark.parametrize("kind", MODELS)
def test_no_tensor_makes_a_recording_fail(tmp_path, kind):
    model = MODELS[kind]()
    with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, level="trajectory") as run:
        run.end_sequence(models.decode_blocks(model, PROMPT, SIZE, SIZE))
    assert re.fullmatch("[0-9a-f]{64}", blockscope.open(tmp_path / "run.h5").model["digest"])


def test_what_the_digest_depends_on():
    linear = torch.nn.Linear(400, 300)
    base = digest_of(linear)
    assert digest_of(copy.deepcopy(linear)) == base
    for place in ((0, 0), (299, 399)):
        other = copy.deepcopy(linear)
        other.weight.data[place] += 1
        assert digest_of(other) != base
    other = copy.deepcopy(linear)
    other.weight.data[150, 200] += 1  # between the ends, which are 64 KiB of 469
    assert digest_of(other) == base and linear.weight.numel() * 4 > 4 * SAMPLED_BYTES
    other.weight.data = other.weight.data.T.contiguous().T
    assert not other.weight.is_contiguous() and digest_of(other) == base
    assert len({base, digest_of(linear.half()), digest_of(torch.nn.Sequential(linear.float())),
                digest_of(torch.nn.Linear(400, 300, bias=False))}) == 4
    model = models.PlainModel("needle")
    assert digest_of(model) != digest_of(with_buffer(torch.zeros(1)))
    model.register_buffer("more", torch.zeros(1), persistent=False)  # isn't saved
    assert digest_of(model) == digest_of(models.PlainModel("needle"))


def test_the_ends_of_every_shape():
    """Against the whole tensor, flattened."""
    most = SAMPLED_BYTES // 4
    for shape in ((2 * most + 1,), (3, most), (1, 5 * most), (5 * most, 1), (7, 3, most // 2), (most, 7)):
        values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
        found = []
        for place in (0, most - 1, most, len(values) - most - 1, len(values) - most, len(values) - 1):
            changed = values.clone()
            changed[place] = -1
            module = torch.nn.Module()
            module.register_buffer("weight", changed.view(shape).transpose(0, -1).contiguous().transpose(0, -1))
            found.append(digest_of(module))
        module.weight = values.view(shape)
        assert [one != digest_of(module) for one in found] == [True, True, False, False, True, True]


def test_a_recorded_trace_of_tokens_is_calibrated_and_applied(tmp_path):
    model, size = models.PlainModel("needle"), 16
    with blockscope.record(model, tmp_path / "run.h5", block_length=size, level="outputs", array_type="f32") as run:
        run.end_sequence(models.decode_blocks(model, PROMPT, 32, size))
    trace = blockscope.open(tmp_path / "run.h5")
    found = trace.calibrate(gamma=0.5)
    assert found.reuse.shape == (len(model.layers), model.config.num_heads) and found.reuse.any()
    found.save(tmp_path / "reuse.json")
    assert trace.model["digest"] == digest_of(model) and digest_of(model) in (tmp_path / "reuse.json").read_text()
    with blockscope.apply(model, f"flashblock,reuse={tmp_path / 'reuse.json'},tau=9", block_length=size) as run:
        models.decode_blocks(model, PROMPT, 32, size)
    assert 0 < run.summary()["key_rows_read"] < run.summary()["key_rows"]
