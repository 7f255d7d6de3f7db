"""Tiny random configurations of official models and what their loops' own variables say about a pass."""

import dataclasses
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import types
from typing import Any

import common
import torch
from torch.nn import functional as F
from recording_observer import COMMIT, DENOISE, PREFILL, Pass


@dataclasses.dataclass
class Case:
    loop: str
    name: str
    model: Any
    layers: Any
    generate: Any  # recording or None -> ids [S, L]
    options: dict
    observer: dict
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
LLADA_RULES = [{}, dict(threshold=0.03), dict(threshold=0.2), dict(threshold=0.6)]


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


# --- d2Cache ----------------------------------------------------------------------------------------------------------

D2_RULES = [dict(threshold=0.3), dict(num_transfer_tokens=2), dict(num_transfer_tokens=3)]
D2_CACHES = {
    "without a cache": [(None, {})],
    "PrefixCache": [("PrefixCache", dict(use_dual=False)), ("PrefixCache", dict(use_dual=True))],
    "d2Cache": [("d2Cache", dict(rollout_p=0.1, current_k=4, sigma=3.0, inflate_w=0)),
                ("d2Cache", dict(rollout_p=0.3, current_k=6, sigma=10.0, inflate_w=4))],
    "dLLMCache": [("dLLMCache", dict(kp=5, kr=2, rou=0.25)), ("dLLMCache", dict(kp=4, kr=3, rou=0.0))]}


def d2cache(checkout):
    """The evaluation harness, which the repository's models import, is replaced by empty modules; the corpus's token
    frequencies, which these rules don't use and a small vocabulary doesn't hold, by ones."""
    sys.path.insert(0, str(checkout))
    for name, content in {"lm_eval": {}, "lm_eval.api": {}, "lm_eval.api.model": dict(TemplateLM=object),
                          "lm_eval.api.instance": dict(Instance=object)}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(content)
    caches = importlib.import_module("src.cache")
    vanilla = importlib.import_module("src.generation.vanilla")
    models = importlib.import_module("src.models")
    importlib.import_module("src.generation.utils").get_token_freq = lambda *_: torch.ones(131)
    shapes = [(7, 16, 8), (20, 24, 8), (12, 16, 16)]
    for family, implementation in itertools.product(("LLaDA", "Dream"), ("eager", "sdpa")):
        if family == "LLaDA":
            config = models.LLaDAConfig(**llada_config(4, 2, 3))
            model = models.LLaDAModelLM._from_config(config, attn_implementation=implementation)
            randomise(model, 21, model.get_output_embeddings())
            layers, mask = model.model.transformer.blocks, 126
        else:
            config = models.DreamConfig(**dream_config(4, 2, 3))
            model = models.DreamModel._from_config(config, attn_implementation=implementation)
            randomise(model, 22, model.lm_head)
            layers, mask = model.model.layers, 127
        os.environ["MASK_TOKEN_ID"] = str(mask)
        for (method, variants), (number, shape), rule in itertools.product(
                D2_CACHES.items(), enumerate(shapes), D2_RULES):
            if method == "d2Cache" and implementation == "sdpa":
                continue  # it needs the weights
            for name, arguments in variants:
                yield d2_case(family, implementation, model, layers, mask, method, name and getattr(caches, name),
                              arguments, shape, rule, number, vanilla)


def d2_case(family, implementation, model, layers, mask, method, cache_class, arguments, shape, rule, number, vanilla):
    length, gen_length, size = shape
    prompt = prompt_of(13 * number, length, 131, mask, 2 if "threshold" not in rule else 1)

    def generate(_):
        make = cache_class and (lambda config: cache_class(config, **arguments))
        record = vanilla.vanilla_generate(model, prompt, block_length=size, gen_length=gen_length, mask_token_id=mask,
                                          cache_cls=make, **rule)
        return torch.cat([prompt, record[-1].generated_tokens], 1)

    def look(module, args, kwargs, variables):
        ids = variables["generate_step"]["x"].numpy().copy()
        return Pass(DENOISE, ids, length + variables["vanilla_generate"]["block_idx"] * size, span=(0, ids.shape[1]))

    def late(one, variables):
        cache = variables["generate_step"]["past_key_values"]
        if cache is not None and cache.active_q_mask is not None:
            one.computed = [row.nonzero()[:, 0].tolist() for row in cache.active_q_mask]
        if method == "dLLMCache":  # a layer that computes no row attends to nothing
            for layer in range(len(layers)):
                one.rows.setdefault(layer, [[]] * len(one.tokens))

    def each(one, layer, variables):
        if method == "dLLMCache":
            one.rows[layer] = variables["generate_step"]["past_key_values"]._refresh_index.tolist()

    shift = int(family == "Dream")
    return Case(f"d2Cache's {family}, {method}", f"{implementation} {shape} {rule} {arguments}", model, layers,
                generate, dict(block_length=size, logit_shift=shift),
                dict(loop=["vanilla_generate", "generate_step"], look=look, late=late, each=each,
                     eager=implementation == "eager"),
                dict(size=size, mask=mask, kv_heads=2, layers=len(layers), bidirectional=True, shift=shift))


# --- SDAR -------------------------------------------------------------------------------------------------------------


def sdar_modules(checkout):
    """flash-attn is replaced by scaled_dot_product_attention and the formula of its RMSNorm; the training loss, which
    needs triton, by an empty module."""
    def attend(q, k, v, causal=False, softmax_scale=None):
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
                                             scale=softmax_scale, enable_gqa=True)
        return out.transpose(1, 2)

    def rms_norm(x, weight=None, bias=None, eps=1e-6, **_):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    package = "sdar_official"
    stand_ins = {"flash_attn": dict(flash_attn_func=attend, flash_attn_varlen_func=None),
                 "flash_attn.bert_padding": dict(index_first_axis=None, pad_input=None, unpad_input=None),
                 "flash_attn.ops": {}, "flash_attn.ops.triton": {},
                 "flash_attn.ops.triton.layer_norm": dict(rms_norm_fn=rms_norm),
                 f"{package}.fused_linear_diffusion_cross_entropy": dict(FusedLinearDiffusionCrossEntropyLoss=None)}
    for name, content in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(content)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    folder = checkout / "training/model/SDAR-4B-Chat"
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(folder)]
    configuration = importlib.import_module(f"{package}.configuration_sdar")
    modeling = importlib.import_module(f"{package}.modeling_sdar")
    spec = importlib.util.spec_from_file_location("sdar_generate", checkout / "generate.py")
    official = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(official)
    return configuration, modeling, official


def sdar(checkout):
    configuration, modeling, official = sdar_modules(checkout)
    rules = [dict(remasking_strategy=rule) for rule in ("low_confidence_static", "sequential")] + [
        dict(remasking_strategy="low_confidence_dynamic", confidence_threshold=0.4)]

    def look(module, args, kwargs, variables):
        mine = variables["block_diffusion_generate"]
        size, x = mine["block_length"], mine["x"].clone()
        if "num_block" not in mine:
            return Pass(PREFILL, x.numpy(), span=(0, mine["prefill_length"]))
        start = mine["num_block"] * size
        x[:, start:start + size] = mine["cur_x"]
        return Pass(COMMIT if kwargs["store_kv"] else DENOISE, x.numpy(), start, span=(start, start + size))

    for heads, kv_heads, layers in ((4, 2, 3), (6, 3, 2)):
        config = configuration.SDARConfig(
            vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=kv_heads, head_dim=16, max_position_embeddings=256, mask_token_id=126,
            fuse_cross_entropy=False, use_sliding_window=False, sliding_window=None)
        model = modeling.SDARForCausalLM(config)
        randomise(model, 40 + heads, model.lm_head)
        for (number, (length, gen_length, size)), rule in itertools.product(
                enumerate([(16, 16, 8), (19, 20, 4), (5, 12, 8), (3, 8, 4)]), rules):
            prompt = prompt_of(7 * number, length, 131, 126)

            def generate(_, prompt=prompt, gen_length=gen_length, size=size, rule=rule):
                return official.block_diffusion_generate(
                    model, {"input_ids": prompt}, mask_id=126, gen_length=gen_length, block_length=size,
                    denoising_steps=size, **rule)

            yield Case("SDAR", f"{(length, gen_length, size)} {rule}", model, model.model.layers, generate,
                       dict(block_length=size, gen_length=gen_length),
                       dict(loop=["block_diffusion_generate"], look=look),
                       dict(size=size, mask=126, kv_heads=kv_heads, layers=layers, bidirectional=False))


FAMILIES = {"llada": llada, "dream": dream, "d2cache": d2cache, "sdar": sdar}
