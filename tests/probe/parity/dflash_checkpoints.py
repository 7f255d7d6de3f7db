"""Random tiny targets, and DFlash and DFlash 2 drafts for them, in the two layouts that are published: z-lab's
(`dflash_config` among Qwen3's keys; embedding and LM head are the target's) and speculators' (a vocabulary of its
own)."""

import dataclasses
import json
import pathlib

import torch
import transformers
from dflash_oracle import Pair
from safetensors.torch import save_file

LETTERS = "abcdefghijklmnopqrstuvwxyz"
THETA = 5000.0
DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclasses.dataclass
class Shape:
    """Of a pair. target_layers: None where the file doesn't say; those of the draft's config, from 0."""
    vocab: int = 6
    hidden: int = 32
    layers: int = 5
    draft_layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 5
    target_layers: tuple | None = None
    tied: bool = False
    draft_vocab: int | None = None  # speculators' layout, with that many tokens
    block_key_inside: bool = False  # block_size is in dflash_config
    experts: int = 0                # of the target; 0: a dense one
    from_anchor: bool = False       # speculators' layout
    second: tuple | None = None     # DFlash 2: taps, channels of a group, rank and candidates of the selector
    windows: tuple = ()             # of the draft's layers, all 0 or of one size; empty: no keys say anything
    causal: bool | None = None      # z-lab: is_causal; speculators: not sliding_window_non_causal; None: no key
    factors: dict = dataclasses.field(default_factory=dict)  # keys of dflash_config: embedding, multiplier, cap
    positions: int = 1024
    llama: bool = False  # the target is Llama 3.1, not Qwen3
    seed: int = 0


def default_layers(target_layers, draft_layers):
    """Where the file names none: the middle one, or evenly from layer 1 to the third from the end."""
    if draft_layers == 1:
        return [target_layers // 2]
    return [round(1 + i * (target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers)]


def write_target(folder, shape):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(shape.seed)
    kind, of_config, own = transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {}
    if shape.llama:
        kind, of_config = transformers.LlamaForCausalLM, transformers.LlamaConfig
        own = {"rope_parameters": {
            "rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}}
    if shape.experts:
        kind, of_config = transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig
        own = {"num_experts": shape.experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
               "norm_topk_prob": True, "experts_implementation": "eager"}
    config = of_config(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=48, num_hidden_layers=shape.layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=shape.positions,
        **own, tie_word_embeddings=shape.tied, initializer_range=0.3, eos_token_id=None, bos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager")
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {LETTERS[i]: i for i in range(shape.vocab)}, "merges": []}}))
    return model.double()


def draft_tensors(shape, num_taps):
    generator = torch.Generator().manual_seed(shape.seed + 1000)
    random = lambda *size: 0.3 * torch.randn(*size, generator=generator)
    norm = lambda size: 1 + 0.2 * torch.randn(size, generator=generator)
    hidden, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {"fc.weight": random(hidden, num_taps * hidden), "hidden_norm.weight": norm(hidden),
               "norm.weight": norm(hidden)}
    for layer in range(shape.draft_layers):
        name = f"layers.{layer}."
        for part, rows, columns in (("q_proj", query, hidden), ("k_proj", key, hidden), ("v_proj", key, hidden),
                                    ("o_proj", hidden, query)):
            tensors[f"{name}self_attn.{part}.weight"] = random(rows, columns)
        for part, rows, columns in (("gate_proj", 40, hidden), ("up_proj", 40, hidden), ("down_proj", hidden, 40)):
            tensors[f"{name}mlp.{part}.weight"] = random(rows, columns)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{part}.weight"] = norm(hidden)
        for part in ("q_norm", "k_norm"):
            tensors[f"{name}self_attn.{part}.weight"] = norm(shape.head_dim)
        for part in ("attention_conv", "mlp_conv") if shape.second else ():
            taps, group = shape.second[:2]
            tensors[f"{name}{part}.base_kernel"] = torch.cat([norm((2, 1, hidden)), random(2, taps - 1, hidden)], 1)
            tensors[f"{name}{part}.kernel_projection.weight"] = random(2 * taps * (hidden // group), hidden)
    if shape.second:
        rank = shape.second[2]
        tensors["candidate_selector.hidden_projection.weight"] = random(rank, hidden)
        for part in ("predecessor", "successor"):
            tensors[f"candidate_selector.{part}_codebook"] = 2 * random(shape.vocab, rank)
    if shape.draft_vocab:
        tensors["embed_tokens.weight"] = random(shape.vocab, hidden)
        tensors["lm_head.weight"] = random(shape.draft_vocab, hidden)
    return tensors


def draft_config(shape):
    own = {"model_type": "qwen3", "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": 40,
           "num_hidden_layers": shape.draft_layers, "num_attention_heads": shape.heads,
           "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu",
           "max_position_embeddings": shape.positions, "rms_norm_eps": 1e-6, "rope_theta": THETA, "rope_scaling": None,
           "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
           "tie_word_embeddings": shape.tied,
           "layer_types": ["full_attention"] * shape.draft_layers, "dtype": "float32"}
    if any(shape.windows):
        own |= {"use_sliding_window": True, "sliding_window": max(shape.windows),
                "layer_types": ["sliding_attention" if window else "full_attention" for window in shape.windows]}
    mask, number = shape.vocab - 1, "2" if shape.second else ""
    second = dict(zip(DFLASH2_KEYS, shape.second or ()))
    if shape.draft_vocab:
        return {"architectures": [f"DFlash{number}DraftModel"], "speculators_model_type": f"dflash{number}",
                "dtype": "float32", "block_size": shape.block_size, "mask_token_id": mask,
                "draft_vocab_size": shape.draft_vocab,
                "aux_hidden_state_layer_ids": [layer + 1 for layer in shape.target_layers],
                "sample_from_anchor": shape.from_anchor, "transformer_layer_config": own} | second | (
                    {} if shape.causal is None else {"sliding_window_non_causal": not shape.causal})
    dflash = {"mask_token_id": mask} | second | shape.factors
    if shape.target_layers is not None:
        dflash["target_layer_ids"] = list(shape.target_layers)
    holder = dflash if shape.block_key_inside else own
    holder["block_size"] = shape.block_size
    own |= {} if shape.causal is None else {"is_causal": shape.causal}
    return own | {"architectures": [f"DFlash{number}DraftModel"], "num_target_layers": shape.layers,
                  "dflash_config": dflash}


def write_draft(folder, shape, tensors=None, config=None):
    """Writes the draft; tensors, config: in place of its own. -> its tensors (float32) and token map."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = shape.target_layers or default_layers(shape.layers, shape.draft_layers)
    tensors = dict(tensors or draft_tensors(shape, len(layers)))
    to_target = None
    if shape.draft_vocab and shape.draft_vocab < shape.vocab:
        generator = torch.Generator().manual_seed(shape.seed + 2000)
        to_target = sorted(torch.randperm(shape.vocab, generator=generator)[:shape.draft_vocab].tolist())
        known = torch.zeros(shape.vocab, dtype=torch.bool)
        known[to_target] = True
        tensors.setdefault("d2t", torch.tensor(to_target) - torch.arange(shape.draft_vocab))
        tensors.setdefault("t2d", known)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config or draft_config(shape), indent=2))
    return tensors, to_target


def causal_layers(shape):
    """Which layers are causal: in both layouts, by default those with a window, but none of speculators' DFlash 2."""
    slides = [window > 0 for window in shape.windows]
    if not shape.draft_vocab:
        return [shape.causal] * shape.draft_layers if shape.causal is not None else slides
    causal = not shape.second if shape.causal is None else shape.causal
    return slides if causal else [False] * len(slides)


def write_pair(folder, shape):
    """Folders `target` and `draft` under `folder`. -> Pair."""
    folder = pathlib.Path(folder)
    target = write_target(folder / "target", shape)
    tensors, to_target = write_draft(folder / "draft", shape)
    layers = shape.target_layers or default_layers(shape.layers, shape.draft_layers)
    weights = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
    _, group, _, candidates = shape.second or (0, 0, 0, 0)
    return Pair(target, weights, shape.heads, shape.kv_heads, THETA, shape.vocab - 1, shape.block_size,
                [layer + 1 for layer in layers], to_target, shape.from_anchor,
                shape.factors.get("input_embedding_scale", 1.0), shape.factors.get("output_multiplier", 1.0),
                shape.factors.get("final_logit_softcapping", 0.0), group, candidates, shape.windows,
                tuple(causal_layers(shape)))
