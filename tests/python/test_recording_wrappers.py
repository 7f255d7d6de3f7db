"""blockscope.record() of models that the loop doesn't call itself, and of models with layers that can't be identified.
The reference is the trace of the same loop over the plain model."""

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
import video_models as videos  # noqa: E402
from recording_checks import PROMPT, SIZE  # noqa: E402

PROMPTS = torch.tensor([[5 * i % 90 + 1 for i in range(9)], [7 * i % 90 + 1 for i in range(9)]])


class HandsOn(torch.nn.Module):
    def __init__(self, **models_):
        super().__init__()
        for name, model in models_.items():
            setattr(self, name, model)

    def forward(self, *args, **kwargs):
        return next(self.children())(*args, **kwargs)


@pytest.mark.parametrize("level", ["trajectory", "full"])
@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, lambda model: HandsOn(inner=HandsOn(model=model))])
def test_wrappers_that_hand_on_what_they_are_given(tmp_path, wrap, level):
    paths = [tmp_path / "plain.h5", tmp_path / "wrapped.h5"]
    for path in paths:
        model = models.PlainModel("needle")
        called = model if path == paths[0] else wrap(model)
        with blockscope.record(called, path, block_length=SIZE, level=level, array_type="f32") as run:
            object.__setattr__(called, "config", model.config)  # for the loop
            run.end_sequence(models.decode_blocks(called, PROMPT[:40], 32, SIZE))
    assert blockscope.compare(*paths, ignore_timing=True).equal
    assert blockscope.open(paths[1]).model["architecture"] == "PlainModel"


def test_a_model_of_one_of_several_processes(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = models.qwen3()
        paths = [tmp_path / "plain.h5", tmp_path / "wrapped.h5"]
        for path, called in zip(paths, (model, torch.nn.parallel.DistributedDataParallel(model))):
            with blockscope.record(called, path, array_type="f32", set_size=4) as run:
                run.end_sequence(models.decode_tokens(called, PROMPTS, 6))
    finally:
        distributed.destroy_process_group()
    assert blockscope.compare(*paths, ignore_timing=True).equal


def test_wrappers_that_are_no_one_model(tmp_path):
    model = models.PlainModel("needle")
    several = torch.nn.DataParallel(model)
    several.device_ids = [0, 1]
    with pytest.raises(blockscope.UsageError, match=r"DataParallel splits each batch over 2 devices.*model\.module"):
        blockscope.record(several, tmp_path / "run.h5", block_length=SIZE)
    two = HandsOn(policy=model, reference=models.PlainModel("needle"))
    with pytest.raises(blockscope.UsageError, match=r"HandsOn: .*holds 2 models \(PlainModel, PlainModel\).*HINT"):
        blockscope.record(two, tmp_path / "run.h5", block_length=SIZE)
    headed = HandsOn(trunk=models.qwen3().model, head=torch.nn.Linear(48, 97))  # what it holds gives no logits
    headed.config = headed.trunk.config
    with pytest.raises(blockscope.UsageError, match="without token ids.*the module inside a wrapper"):
        with blockscope.record(headed, tmp_path / "run.h5"):
            headed(PROMPTS)


class Called(torch.nn.Module):
    """A continuous model that names its arguments."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, timestep, **others):
        return self.model(x, t=timestep, **others)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, lambda model: HandsOn(inner=HandsOn(model=model)), "process",
                                  torch.compile])
def test_wrappers_of_continuous_models(tmp_path, wrap, named):
    shape, distributed = videos.Shape(), torch.distributed
    noise, context, _ = videos.inputs(shape, 6)
    if wrap == "process":
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    paths = [tmp_path / "plain.h5", tmp_path / "wrapped.h5"]
    try:
        for path in paths:
            model = videos.CausalVideoModel(shape)
            called = Called(model) if named else model
            if path == paths[1]:
                called = (torch.nn.parallel.DistributedDataParallel if wrap == "process" else wrap)(called)

            def call(x, t, called=called, **others):
                return called(x, **({"timestep": t} if named else {"t": t}), **others)

            call.shape = shape
            with blockscope.record(called, path, block_length=videos.CHUNK * shape.frame, array_type="f32",
                                   decoder_layers=model.blocks, compiled="eager"):
                videos.causal_loop(call, noise, context)
    finally:
        if wrap == "process":
            distributed.destroy_process_group()
    assert blockscope.compare(*paths, ignore_timing=True).equal
    assert blockscope.open(paths[1]).model["architecture"] == ("Called" if named else "CausalVideoModel")


# --- decoder_layers ---------------------------------------------------------------------------------------------------


def test_layers_that_cannot_be_told_are_asked_for(tmp_path):
    model = models.PlainModel("needle")
    model.others = torch.nn.ModuleList(torch.nn.Identity() for _ in range(6))
    with pytest.raises(blockscope.UsageError, match=r"found 2 among layers \(6\), others \(6\).*decoder_layers="):
        blockscope.record(model, tmp_path / "run.h5", block_length=SIZE)
    with pytest.raises(blockscope.UsageError, match="decoder_layers: expected modules of the model"):
        blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, decoder_layers=[torch.nn.Identity()])
    paths = [tmp_path / "told.h5", tmp_path / "plain.h5"]
    for path in paths:
        told = dict(decoder_layers=model.layers) if path == paths[0] else {}
        with blockscope.record(model if told else models.PlainModel("needle"), path, block_length=SIZE,
                               array_type="f32", **told) as run:
            run.end_sequence(models.decode_blocks(model if told else run._model, PROMPT[:32], SIZE, SIZE))
    assert blockscope.compare(*paths, ignore_timing=True).equal
