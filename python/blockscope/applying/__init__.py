"""Decodes with a policy in another author's PyTorch model and loop: :func:`apply`, and :func:`blockscope.compare` with
a model. Both import torch when they are called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..loop_comparison import LoopComparison
from ..recording import torch_for

if TYPE_CHECKING:  # pragma: no cover
    from ..recording.settings import Settings
    from .applier import Applier


def apply(
    model: Any,
    policy: Any,
    *,
    block_length: int | None = None,
    mask_token_id: int | None = None,
    tokenizer: Any = None,
    gen_length: int | None = None,
    denoising_steps: int | None = None,
    bidirectional: bool | None = None,
    logit_shift: int | None = None,
    decoder_layers: Any = None,
    compiled: str = "keep",
    tokens_per_frame: int | None = None,
    sinks: int | None = None,
    context_noise: float = 0.0,
) -> Applier:
    """Lets ``model`` decode with a policy within ``with blockscope.apply(...) as run:``.

    Your own loop calls the model as always. At denoising steps, the policy's attention takes the place of the model's
    own ``scaled_dot_product_attention``; prefill and commit passes stay exact. Sequences, blocks and steps are inferred
    as by :func:`blockscope.record`, and ``run`` has the same ``step``, ``begin_sequence`` and ``paused``.
    ``run.summary()`` has the keys that were read. After the block, the model is as before.

    policy: a text of ``blockscope capture --policy``, such as ``"flashblock,reuse=reuse.json"``, ``"mage,k=64"`` or
        one of your own that ``@blockscope.policy`` registered; or an object with ``choose`` or ``attend``
        (docs/python.md, "Your own policy").
    gen_length, denoising_steps: positions after the prompt and steps of a block; ``sparsed`` without ``per_block``
        needs both.
    compiled: ``keep``: code of ``torch.compile`` runs unchanged, and attention in it is an error. ``eager``: the whole
        process runs without compilation while the policy is applied.
    tokens_per_frame, sinks, context_noise: of a continuous model, as for a recording. ``flashblock`` with a calibration
        file reuses in the clean pass, too.
    The other arguments are those of :func:`blockscope.record`.

    Raises:
        UsageError: an unknown policy or option, attention that can't be replaced (the message names the layer), or
            a model that is being recorded or has a policy already.
        CalibrationError: a calibration file for a model of other sizes.
    """
    from .applier import Applier
    from .policy_texts import read_policy

    model, settings, more = _observed(
        "apply", model, block_length=block_length, mask_token_id=mask_token_id, tokenizer=tokenizer,
        gen_length=gen_length, denoising_steps=denoising_steps, bidirectional=bidirectional, logit_shift=logit_shift,
        decoder_layers=decoder_layers, compiled=compiled, tokens_per_frame=tokens_per_frame, sinks=sinks,
        context_noise=context_noise)
    return Applier(model, read_policy(policy), settings, **more)


def compare_loops(model: Any, loop: Any, prompts: Any, *, policy: Any = None, reuse: Any = None, score: Any = None,
                  frames: Any = None, repeats: int = 3, seed: int = 0, replay: bool = True, propagated: bool = True,
                  **observed: Any) -> LoopComparison:
    """``blockscope.compare`` with a model."""
    if (policy is None) == (reuse is None):
        raise UsageError(f"compare: expected either policy or reuse, got {'none' if policy is None else 'both'}. HINT: "
                         "policy=\"flashblock,tau=2\"")
    chosen = policy if reuse is None else f"flashblock,reuse={os.fsdecode(reuse)}"
    unknown = [name for name in observed if name not in _OBSERVED]
    if unknown:
        raise UsageError(f"compare: {unknown[0]}: no such argument. HINT: those of blockscope.apply are "
                         f"{', '.join(_OBSERVED)}")
    model, settings, more = _observed("compare", model, **observed)
    from ..recording.settings import whole
    from . import comparing

    return LoopComparison(comparing.compare_loops(
        model, loop, prompts, policy=chosen, settings=settings, score=score, frames=frames,
        repeats=whole("repeats", repeats, 1), seed=seed, replay=replay, propagated=propagated, **more))


_OBSERVED = ("block_length", "mask_token_id", "tokenizer", "gen_length", "denoising_steps", "bidirectional",
             "logit_shift", "decoder_layers", "compiled", "tokens_per_frame", "sinks", "context_noise")


def _observed(
    function: str, model: Any, *, block_length: int | None = None, mask_token_id: int | None = None,
    tokenizer: Any = None, gen_length: int | None = None, denoising_steps: int | None = None,
    bidirectional: bool | None = None, logit_shift: int | None = None, decoder_layers: Any = None,
    compiled: str = "keep", tokens_per_frame: int | None = None, sinks: int | None = None, context_noise: float = 0.0,
) -> tuple[Any, Settings, dict[str, Any]]:
    """The model that is called, how its passes are observed, and further arguments of an Applier."""
    torch = torch_for(function)
    from ..recording.model import encoder_and_decoder, model_within
    from ..recording.regions import Regions
    from ..recording.settings import Settings, whole
    from ..recording.video import video_of

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    model = model_within(model)
    video = video_of(
        model, tokenizer, mask_token_id, block_length, None, tokens_per_frame, sinks, context_noise, 1,
        refused={"gen_length": gen_length, "denoising_steps": denoising_steps, "logit_shift": logit_shift})
    settings = Settings.of(
        model, tokenizer, level="summary", block_length=block_length, mask_token_id=mask_token_id,
        gen_length=gen_length, bidirectional=bidirectional, logit_shift=logit_shift, layers=None, heads=None,
        steps=None, blocks=None, batch_rows=None, set_size=1, set_normaliser="prefix", array_type="bf16",
        compiled=compiled, attention="replace", interventions=(), maps=None, regions=Regions(), ranks=None,
        canvas=encoder_and_decoder(model) is not None, video=video)
    if denoising_steps is not None:
        denoising_steps = whole("denoising_steps", denoising_steps, 1)
    return model, settings, {"denoising_steps": denoising_steps, "decoder_layers": decoder_layers}
