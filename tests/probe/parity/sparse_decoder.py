"""A decoder's forward passes in float64 numpy under a sparse policy. No KV cache and no split over
passes: at every block the prefix is run again from its tokens, exactly, as commits are."""

import dataclasses

import attention_math as am
import numpy as np
import torch
from layer_math import rms_norm, silu
from selection_math import Pass, Selector


@dataclasses.dataclass
class LayerRow:
    """What a trace says about one layer of one denoising step."""
    query: np.ndarray
    external: np.ndarray      # of the keys that were read
    lse_external: np.ndarray
    internal: np.ndarray
    lse_internal: np.ndarray
    selected: list            # [K] index arrays; None: the whole prefix was read
    residual: np.ndarray
    lse_residual: np.ndarray
    shadow: np.ndarray
    lse_shadow: np.ndarray
    output_error: np.ndarray


def attention_of(scores, value, sets):
    """Attention of every query head over the keys of its KV head's set."""
    return am.attention(scores, value, am.members(sets, value.shape[1])[:, None, None])


class SparseForward:
    """`logits` in the form that oracle_decoder.decode_with needs; `rows` collects [steps][L]."""

    def __init__(self, layers, options, planned, selector: Selector):
        self.layers, self.spec, self.selector = layers, layers.spec, selector
        self.options, self.planned = options, planned
        self.rows, self.prefix, self.residual = [], None, {}
        weights = layers.weights
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        self.scale = self.spec["head_dim"] ** -0.5

    def logits(self, tokens, begin, step):
        size = self.options.block_length
        if step == 1:
            self.prefix = self.run(tokens[:begin], 0, self.block_causal)
        row = []
        hidden = self.run(tokens[begin:begin + size], begin,
                          lambda *parts: self.denoise(row, begin, step, *parts))
        self.rows.append(row)
        return torch.from_numpy(
            rms_norm(hidden, self.layers.weights["model.norm.weight"]) @ self.head.T)

    def run(self, tokens, start, attend):
        """Through all layers. -> hidden states; of a prefix: [(key, value)] by layer."""
        layers, spec = self.layers, self.spec
        hidden, kept = self.embedding[np.array(tokens, int)], []
        positions = start + np.arange(len(tokens))
        for layer in range(spec["layers"]):
            name = f"model.layers.{layer}"
            attn = f"{name}.self_attn"
            x = rms_norm(hidden, layers.weights[f"{name}.input_layernorm.weight"])
            query = layers.rotate(
                layers.heads(x, f"{attn}.q_proj", spec["heads"], f"{attn}.q_norm"), positions)
            key = layers.rotate(
                layers.heads(x, f"{attn}.k_proj", spec["kv_heads"], f"{attn}.k_norm"), positions)
            value = layers.heads(x, f"{attn}.v_proj", spec["kv_heads"])
            kept.append((key, value))
            out = attend(layer, query, key, value)
            flat = out.transpose(1, 0, 2).reshape(len(tokens), spec["heads"] * spec["head_dim"])
            hidden = hidden + layers.linear(flat, f"{attn}.o_proj")
            x = rms_norm(hidden, layers.weights[f"{name}.post_attention_layernorm.weight"])
            hidden = hidden + layers.linear(
                silu(layers.linear(x, f"{name}.mlp.gate_proj"))
                * layers.linear(x, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
        return kept if attend == self.block_causal else hidden

    def block_causal(self, _layer, query, key, value):
        block = np.arange(query.shape[1]) // self.options.block_length
        return am.attend(query, key, value, self.scale, block[:, None] >= block)[0]

    def denoise(self, row, begin, step, layer, query, key, value):
        prefix_key, prefix_value = self.prefix[layer]
        scores = am.scores_of(query, prefix_key, self.scale)
        at = Pass(layer, step, len(self.rows) + 1, self.planned,
                  begin // self.options.block_length, query, prefix_key, scores)
        dense, sets = self.selector.choose(at)
        whole = am.attention(scores, prefix_value)
        inner = am.attend(query, key, value, self.scale)
        none = (np.zeros_like(query), np.full(query.shape[:2], -np.inf))
        outer, rest = whole, none
        if self.selector.policy.residual and layer >= self.selector.policy.exact_layers:
            if step == 1:
                others = [np.setdiff1d(np.arange(begin), index) for index in sets]
                self.residual[layer] = attention_of(scores, prefix_value, others)
            else:
                rest = self.residual[layer]
        if not dense:
            outer = attention_of(scores, prefix_value, sets)
        used, exact = (am.merge(parts)[0] for parts in ([outer, rest, inner], [whole, inner]))
        norm = lambda x: np.sqrt((x**2).sum((-2, -1)))
        row.append(LayerRow(query, *outer, *inner, None if dense else sets, *rest, *whole,
                            norm(used - exact) / norm(exact)))
        return used
