"""Tiny random configurations of official models and what their loops' own variables say of a pass."""

import dataclasses
import importlib
import importlib.util
import itertools
import os
import sys
import types
from typing import Any

import common
import numpy as np
import torch
from torch.nn import functional as F
from witness import COMMIT, DENOISE, PREFILL, Pass


@dataclasses.dataclass
class Case:
    loop: str
    name: str
    model: Any
    layers: Any
    generate: Any  # recording or None -> ids [S, L]
    options: dict
    witness: dict
    comparison: dict


def prompt_of(seed, length, vocab, mask, batch=1):
    return torch.tensor([common.prompt_of(seed + i, length, vocab, mask) for i in range(batch)])


def randomise(model, seed, head):
    width = model.config.hidden_size ** -0.5
    common.random_weights(model, seed, std=1.1 * width, embedding_std=1.0, head_std=2.7 * width)
    with torch.no_grad():
        head.weight[model.config.mask_token_id] *= 0.2  # seldom the best token
    return model.eval()


# --- Fast-dLLM: LLaDA -------------------------------------------------------------------------------------------------


def llada_config(heads, kv_heads, layers):
    return dict(
        d_model=64, n_heads=heads, n_kv_heads=kv_heads, n_layers=layers, mlp_hidden_size=96, vocab_size=131,
        embedding_size=131, mask_token_id=126, eos_token_id=129, pad_token_id=129, activation_type="silu", alibi=False,
        attention_dropout=0.0, attention_layer_norm=False, attention_layer_norm_with_affine=True,
        bias_for_layer_norm=False, block_group_size=1, block_type="llama", embedding_dropout=0.0,
        flash_attention=False, include_bias=False, include_qkv_bias=False, input_emb_norm=False,
        layer_norm_type="rms", layer_norm_with_affine=True, max_sequence_length=256, mlp_ratio=4,
        multi_query_attention=None, residual_dropout=0.0, rms_norm_eps=1e-5, rope=True, rope_full_precision=True,
        rope_theta=500000.0, scale_logits=False, use_cache=False, weight_tying=False)


SHAPES = [(7, 16, 8, 16), (19, 20, 5, 8), (33, 24, 8, 9), (5, 16, 16, 8)]  # prompt, gen_length, block, steps
LLADA_RULES = [{}, dict(threshold=0.2), dict(threshold=0.6)]


def fast_span(x, args, kwargs):
    """Positions of the input of a pass of Fast-dLLM's loops."""
    ids = args[0] if args else kwargs["input_ids"]
    past, replaced = kwargs.get("past_key_values"), kwargs.get("replace_position")
    if replaced is not None:
        start = int(replaced[0].int().argmax())
    else:
        start = 0 if past is None else x.shape[1] - ids.shape[1]
    return start, start + ids.shape[1]


def llada(checkout):
    sys.path.insert(0, str(checkout / ("v1/llada" if (checkout / "v1").is_dir() else "llada")))
    import generate as official
    from model.modeling_llada import LLaDAConfig, LLaDAModelLM

    loops = {"generate": "no cache", "generate_with_prefix_cache": "prefix cache",
             "generate_with_dual_cache": "dual cache"}

    def look(module, args, kwargs, variables):
        (mine,) = variables.values()
        block = mine["prompt"].shape[1] + mine["num_block"] * mine["block_length"]
        return Pass(DENOISE, mine["x"].numpy().copy(), block, span=fast_span(mine["x"], args, kwargs))

    for heads, kv_heads, layers in ((4, 4, 2), (8, 2, 3)):
        model = LLaDAModelLM(LLaDAConfig(**llada_config(heads, kv_heads, layers)))
        randomise(model, heads, model.get_output_embeddings())
        for loop, (number, shape), rule in itertools.product(loops, enumerate(SHAPES), LLADA_RULES):
            length, gen_length, size, steps = shape
            prompt = prompt_of(31 * number, length, 131, 126)

            def generate(_, loop=loop, prompt=prompt, rule=rule, gen_length=gen_length, size=size, steps=steps):
                return getattr(official, loop)(model, prompt, steps=steps, gen_length=gen_length, block_length=size,
                                               mask_id=126, **rule)[0]

            yield Case(f"Fast-dLLM LLaDA, {loops[loop]}", f"{shape} {rule}", model, model.model.transformer.blocks,
                       generate, dict(block_length=size), dict(loop=[loop], look=look),
                       dict(size=size, mask=126, kv_heads=kv_heads, layers=layers, bidirectional=True))


# --- Dream, as Fast-dLLM has it ---------------------------------------------------------------------------------------


def dream_config(heads, kv_heads, layers):
    return dict(
        attention_dropout=0.0, hidden_act="silu", hidden_size=64, intermediate_size=96, num_attention_heads=heads,
        num_key_value_heads=kv_heads, num_hidden_layers=layers, vocab_size=131, mask_token_id=127, bos_token_id=129,
        eos_token_id=129, pad_token_id=129, initializer_range=0.02, max_position_embeddings=256,
        max_window_layers=layers, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=10000.0, sliding_window=None,
        tie_word_embeddings=False, use_cache=True, use_sliding_window=False)


def dream(checkout):
    sys.path.insert(0, str(checkout / ("v1/dream" if (checkout / "v1").is_dir() else "dream")))
    from model import generation_utils, generation_utils_block
    from model.configuration_dream import DreamConfig
    from model.modeling_dream import DreamModel

    def look(module, args, kwargs, variables):
        mine = variables["_sample"]
        prompt = mine["input_ids"].shape[1]
        block = prompt + mine.get("num_block", 0) * (mine.get("block_length") or 0)
        return Pass(DENOISE, mine["x"].numpy().copy(), block, span=fast_span(mine["x"], args, kwargs))

    rules = [dict(alg="confidence_threshold", threshold=0.3), dict(alg="maskgit_plus"), dict(alg="entropy")]
    methods = {"no cache": (generation_utils, {}), "prefix cache": (generation_utils_block, dict(dual_cache=False)),
               "dual cache": (generation_utils_block, dict(dual_cache=True))}
    for heads, kv_heads, layers in ((4, 2, 2), (4, 4, 3)):
        model = DreamModel(DreamConfig(**dream_config(heads, kv_heads, layers)))
        randomise(model, 10 + heads, model.lm_head)
        for (method, (module, cache)), (number, shape), rule in itertools.product(
                methods.items(), enumerate([(7, 16, 8, 8), (19, 20, 5, 20), (5, 16, 16, 8)]), rules):
            length, gen_length, size, steps = shape
            size = size if cache else gen_length
            prompt = prompt_of(17 * number, length, 131, 127)
            more = dict(cache, block_length=size) if cache else {}
            config = module.DreamGenerationConfig(
                temperature=0.0, steps=steps, eps=1e-3, alg=rule["alg"], max_new_tokens=gen_length, mask_token_id=127,
                bos_token_id=129, eos_token_id=129, pad_token_id=129)

            def generate(_, module=module, prompt=prompt, more=more | rule, config=config):
                for name in ("diffusion_generate", "_sample"):
                    function = getattr(module.DreamGenerationMixin, name)
                    setattr(model, name, types.MethodType(function, model))
                return model.diffusion_generate(prompt, generation_config=config, **more)

            yield Case(f"Dream, {method}", f"{shape} {rule}", model, model.model.layers, generate,
                       dict(block_length=size, logit_shift=1), dict(loop=["_sample"], look=look),
                       dict(size=size, mask=127, kv_heads=kv_heads, layers=layers, bidirectional=True, shift=1))


FAMILIES = {"llada": llada, "dream": dream}
