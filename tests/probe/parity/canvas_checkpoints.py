"""Tiny random checkpoints of bidirectional families, LLaDA and Dream, in the Hugging Face layout."""

import json
import pathlib

import torch
from canvas_oracle import Model
from safetensors.torch import save_file

_DEFAULTS = dict(family="llada", hidden=64, heads=4, kv_heads=4, layers=2, intermediate=96, vocab=131,
                 padded=0, tied=False, bias=False, theta=10000.0, eps=1e-5, std=0.25, sharp=1.0,
                 mask_scale=1.0, seed=1)

SPECS = {
    "llada": {},
    "llada-gqa-padded": dict(heads=8, kv_heads=2, vocab=113, padded=15, layers=3, theta=5e5, seed=2),
    "llada-mqa-bias": dict(hidden=48, heads=3, kv_heads=1, bias=True, vocab=97, sharp=1.6, seed=3),
    "llada-tied": dict(heads=2, kv_heads=2, tied=True, intermediate=80, seed=4),
    "dream": dict(family="dream", kv_heads=2, bias=True, eps=1e-6, seed=5),
    "dream-tied": dict(family="dream", hidden=48, heads=6, kv_heads=3, bias=True, tied=True, layers=3,
                       vocab=149, eps=1e-6, theta=1e6, seed=6),
    # [MASK] is often the best token, so that the pass which fills a cache leaves the block's first one.
    "dream-mask-best": dict(family="dream", kv_heads=2, bias=True, eps=1e-6, mask_scale=2.5, seed=7),
}

_LLADA = dict(layer="model.transformer.blocks.{}.", norm1="attn_norm", norm2="ff_norm", q="q_proj",
              k="k_proj", v="v_proj", o="attn_out", gate="ff_proj", up="up_proj", down="ff_out",
              embed="model.transformer.wte", norm="model.transformer.ln_f", head="model.transformer.ff_out")
_DREAM = dict(layer="model.layers.{}.", norm1="input_layernorm", norm2="post_attention_layernorm",
              q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
              gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj", embed="model.embed_tokens",
              norm="model.norm", head="lm_head")


def spec_of(name):
    spec = {**_DEFAULTS, **SPECS[name]}
    return {**spec, "head_dim": spec["hidden"] // spec["heads"], "mask": spec["vocab"] - 3}


def _shapes(spec):
    """-> {neutral name: shape} of the whole model and of one layer."""
    hidden, wide = spec["hidden"], spec["intermediate"]
    kv = spec["kv_heads"] * spec["head_dim"]
    layer = dict(norm1=[hidden], norm2=[hidden], q=[hidden, hidden], k=[kv, hidden], v=[kv, hidden],
                 o=[hidden, hidden], gate=[wide, hidden], up=[wide, hidden], down=[hidden, wide])
    if spec["bias"]:
        layer.update(q_bias=[hidden], k_bias=[kv], v_bias=[kv])
    rows = spec["vocab"] + spec["padded"]
    return dict(embed=[rows, hidden], norm=[hidden], head=[rows, hidden]), layer


def _config(spec):
    if spec["family"] == "dream":
        return dict(architectures=["DreamModel"], model_type="Dream", hidden_act="silu",
                    hidden_size=spec["hidden"], intermediate_size=spec["intermediate"],
                    num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"],
                    num_key_value_heads=spec["kv_heads"], max_position_embeddings=512,
                    rms_norm_eps=spec["eps"], rope_theta=spec["theta"], rope_scaling=None,
                    tie_word_embeddings=spec["tied"], vocab_size=spec["vocab"], torch_dtype="float32",
                    mask_token_id=spec["mask"], use_sliding_window=False)
    return dict(architectures=["LLaDAModelLM"], model_type="llada", activation_type="silu",
                alibi=False, attention_layer_norm=False, block_type="llama", d_model=spec["hidden"],
                embedding_size=spec["vocab"] + spec["padded"], include_bias=False,
                include_qkv_bias=spec["bias"], layer_norm_type="rms", layer_norm_with_affine=True,
                mask_token_id=spec["mask"], max_sequence_length=512, mlp_hidden_size=spec["intermediate"],
                n_heads=spec["heads"], n_kv_heads=spec["kv_heads"], n_layers=spec["layers"],
                rms_norm_eps=spec["eps"], rope=True, rope_full_precision=True, rope_theta=spec["theta"],
                vocab_size=spec["vocab"], weight_tying=spec["tied"])


def write_checkpoint(folder, name):
    """-> the oracle's model with the same weights."""
    spec = spec_of(name)
    names = _DREAM if spec["family"] == "dream" else _LLADA
    generator = torch.Generator().manual_seed(spec["seed"])
    whole_shapes, layer_shapes = _shapes(spec)
    stored = {}

    def draw(neutral, shape, file_name):
        noise = torch.randn(shape, generator=generator)
        scale = {"embed": 0.5 if spec["tied"] else 1.0, "head": spec["std"] * spec["sharp"]}
        value = 1.0 + 0.3 * noise if "norm" in neutral else noise * scale.get(neutral, spec["std"])
        if neutral == "head":
            value[spec["mask"]] *= spec["mask_scale"]
        stored[file_name] = value
        return value.double()

    weights = {key: draw(key, shape, names[key] + ".weight") for key, shape in whole_shapes.items()
               if not (key == "head" and spec["tied"])}
    weights.setdefault("head", weights["embed"])
    weights["layers"] = []
    for index in range(spec["layers"]):
        layer = {}
        for key, shape in layer_shapes.items():
            part, _, bias = key.partition("_")
            layer[key] = draw(key, shape, names["layer"].format(index) + names[part] +
                              (".bias" if bias else ".weight"))
        weights["layers"].append(layer)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(spec)))
    return Model(spec, weights)
