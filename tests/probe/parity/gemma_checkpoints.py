"""Random DiffusionGemma checkpoints as transformers saves them, and its own decoder over given canvases."""

import json
import math

import numpy as np
import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaTextConfig
from transformers.cache_utils import DynamicCache
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as official

EAGER = official.eager_attention_forward
_DEFAULTS = dict(vocab=101, hidden=32, width=48, layers=3, heads=4, kv_heads=2, head_dim=16, global_head_dim=24,
                 global_kv_heads=1, window=6, kinds="ssf", experts=6, per_token=2, expert_width=20, canvas=8,
                 cap=30.0, rotating=0.25, dtype="float32", std=0.25, head=1.0, older_keys=False, seed=1)

SPECS = {
    "gemma": {},
    "gemma-older-keys": dict(heads=6, kv_heads=3, head_dim=12, global_head_dim=8, global_kv_heads=2, layers=4,
                             kinds="sfsf", window=9, canvas=5, experts=4, per_token=4, cap=5.0, rotating=0.5,
                             older_keys=True, seed=2),
    # The canvas is longer than the window, and the prompt shorter.
    "gemma-long-canvas": dict(window=5, canvas=11, heads=2, kv_heads=1, global_kv_heads=2, vocab=67, seed=3),
    "gemma-global-only": dict(kinds="ff", layers=2, canvas=6, hidden=24, seed=4),
    # Sure predictions, so canvases end before their last step.
    "gemma-sure": dict(canvas=6, vocab=31, head=14.0, cap=100.0, seed=7),
}


def spec_of(name):
    return {**_DEFAULTS, **SPECS[name]}


def write_checkpoint(folder, spec):
    """-> transformers' model with the weights that `folder` has."""
    kinds = [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in spec["kinds"]]
    text = DiffusionGemmaTextConfig(
        vocab_size=spec["vocab"], hidden_size=spec["hidden"], intermediate_size=spec["width"],
        num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"], num_key_value_heads=spec["kv_heads"],
        head_dim=spec["head_dim"], global_head_dim=spec["global_head_dim"],
        num_global_key_value_heads=spec["global_kv_heads"], sliding_window=spec["window"], layer_types=kinds,
        num_experts=spec["experts"], top_k_experts=spec["per_token"], moe_intermediate_size=spec["expert_width"],
        final_logit_softcapping=spec["cap"], max_position_embeddings=512, eos_token_id=1,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                         "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0,
                                            "partial_rotary_factor": spec["rotating"]}})
    vision = dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=spec["canvas"])
    model = official.DiffusionGemmaForBlockDiffusion(config).eval()
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(spec["seed"])

    def draw(shape, mean, std):
        return torch.randn(shape, generator=generator) * std + mean

    with torch.no_grad():
        # Tied weights have several names, whose order differs from run to run: the decoder's count.
        named = {**dict(model.named_buffers(remove_duplicate=False)),
                 **dict(model.named_parameters(remove_duplicate=False))}
        drawn = set()
        for name in sorted(named, key=lambda name: (not name.startswith("model.decoder"), name)):
            value = named[name]
            if "vision" in name or not name.startswith("model.") or value.data_ptr() in drawn:
                continue
            drawn.add(value.data_ptr())
            if name.endswith("layer_scalar"):
                value.copy_(draw(value.shape, 0.9, 0.1))
            elif "norm" in name or name.endswith(("router.scale", "per_expert_scale")):
                value.copy_(draw(value.shape, 1.0, 0.3))
            elif "embed_tokens.weight" in name:
                value.copy_(draw(value.shape, 0.0, spec["std"] * spec["head"]))
            elif "self_conditioning.down_proj" in name:  # larger, each step would multiply the last one's rounding
                value.copy_(draw(value.shape, 0.0, 0.03 * spec["std"]))
            elif value.dim() >= 2 and name.startswith("model.decoder"):
                value.copy_(draw(value.shape, 0.0, spec["std"]))
            elif name.endswith(".bias"):
                value.copy_(draw(value.shape, 0.0, 0.2))
        model.tie_weights()
    if spec["dtype"] != "float32":
        model = model.to(getattr(torch, spec["dtype"]))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    if spec["older_keys"]:
        write_older_keys(folder, spec)
    return model


def write_older_keys(folder, spec):
    """The keys of Gemma 4's own files, which transformers still reads."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = config["text_config"]
    text.pop("per_layer_config")
    text.update(global_head_dim=spec["global_head_dim"], num_global_key_value_heads=spec["global_kv_heads"],
                attention_k_eq_v=True, enable_moe_block=True, num_kv_shared_layers=0)
    path.write_text(json.dumps(config))


class OfficialCanvas:
    """The official encoder and decoder over given tokens. Keeps what its layers hand to the attention, and its
    routers' choices."""

    def __init__(self, model):
        self.model = model
        self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.length = 0
        self.calls, self.routed = [], []
        for layer in model.model.decoder.layers:
            layer.router.register_forward_hook(
                lambda _module, _inputs, outputs: self.routed.append((outputs[2], outputs[1])))
        official.eager_attention_forward = self._attend  # the layers look the name up at every call

    def _attend(self, module, query, key, value, mask, scaling, **kwargs):
        if not module.is_causal:
            self.calls.append(tuple(x[0].double().numpy() for x in (query, key, value)) + (scaling,))
        return EAGER(module, query, key, value, mask, scaling=scaling, **kwargs)

    @torch.no_grad()
    def encode(self, tokens):
        ids = torch.tensor(tokens)[None]
        positions = torch.arange(self.length, self.length + len(tokens))[None]
        masks = self.model.model.encoder.create_masks_for_generate(
            config=self.model.config, inputs_embeds=torch.empty((1, len(tokens), 0)),
            attention_mask=torch.ones((1, self.length + len(tokens)), dtype=torch.long), past_key_values=self.cache,
            position_ids=positions)
        self.model.model.encoder(input_ids=ids, attention_mask=masks, position_ids=positions,
                                 past_key_values=self.cache)
        self.length += len(tokens)

    @torch.no_grad()
    def step(self, canvas, before):
        """-> logits [B, V] of the decoder; `before`: the last step's logits over its temperature, or None."""
        self.calls, self.routed = [], []
        ids = torch.tensor(canvas)[None]
        positions = torch.arange(self.length, self.length + len(canvas))[None]
        return self.model(decoder_input_ids=ids, past_key_values=self.cache, self_conditioning_logits=before,
                          decoder_position_ids=positions).logits


def temperature_of(step, steps, t_min, t_max):
    """Of step `step`, from 1: the official loop counts the steps that are left."""
    return t_min + (t_max - t_min) * ((steps - step + 1) / steps)


def log_softmax(rows):
    rows = np.asarray(rows, np.float64)
    top = rows.max(-1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(-1, keepdims=True))


def entropy_of(rows):
    log = log_softmax(rows)
    return -(np.exp(log) * log).sum(-1)


assert math.isclose(entropy_of(np.zeros((1, 8)))[0], math.log(8))
