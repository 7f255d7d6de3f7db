"""A model and a check for the tests of what blockscope.apply() refuses."""

import blockscope
import pytest
import recorded_models as models
import torch

SIZE, GEN = 16, 32
PROMPT = [int(x) for x in torch.randint(1, 900, (45,), generator=torch.Generator().manual_seed(3))]


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
