"""One decoder layer in float64 numpy, from the checkpoint's weights: ties the recorded hidden
states, queries, keys, values and attention parts to each other, so that what a trace calls A_out is
what the model went on with."""

import attention_math as am
import numpy as np


def rms_norm(x, weight, eps=1e-6):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


class Layers:
    def __init__(self, model, spec):
        self.spec = spec
        self.weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}

    def linear(self, x, name):
        bias = self.weights.get(f"{name}.bias", 0.0)
        return x @ self.weights[f"{name}.weight"].T + bias

    def heads(self, x, name, count, norm=None):
        """x [B, hidden] -> [count, B, D]"""
        rows = self.linear(x, name).reshape(x.shape[0], count, self.spec["head_dim"])
        if norm:
            rows = rms_norm(rows, self.weights[f"{norm}.weight"])
        return rows.transpose(1, 0, 2)

    def rotate(self, x, positions):
        """Rotate-half RoPE without scaling: x [heads, B, D]."""
        half = self.spec["head_dim"] // 2
        frequency = self.spec["theta"] ** (-np.arange(half) / half)
        angle = positions[:, None] * frequency
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def check(self, trace, row, worst):
        spec = self.spec
        get = lambda path, layer: trace.file[path][row, layer].astype(np.float64)
        start = int(trace.rows("/steps/block_start")[row])
        for layer in range(spec["layers"]):
            name = f"model.layers.{layer}"
            attn = f"{name}.self_attn"
            hidden = get("/hidden/hidden", layer)
            x = rms_norm(hidden, self.weights[f"{name}.input_layernorm.weight"])
            positions = start + np.arange(hidden.shape[0])
            query = self.rotate(self.heads(x, f"{attn}.q_proj", spec["heads"], f"{attn}.q_norm"),
                                positions)
            key = self.rotate(self.heads(x, f"{attn}.k_proj", spec["kv_heads"], f"{attn}.k_norm"),
                              positions)
            value = self.heads(x, f"{attn}.v_proj", spec["kv_heads"])
            for what, path, ours in (("query", "/query/query", query), ("key", "/kv/key", key),
                                     ("value", "/kv/value", value)):
                worst.add(f"{what} from hidden", get(path, layer), ours, 1e-5, np.abs(ours).max())
            if layer + 1 == spec["layers"]:
                continue
            z = am.merge([(get(f"/attention/{n}", layer), get(f"/attention/lse_{n}", layer))
                          for n in ("external", "internal")])[0]
            flat = z.transpose(1, 0, 2).reshape(hidden.shape[0], -1)
            after = hidden + self.linear(flat, f"{attn}.o_proj")
            x = rms_norm(after, self.weights[f"{name}.post_attention_layernorm.weight"])
            gated = silu(self.linear(x, f"{name}.mlp.gate_proj")) * self.linear(
                x, f"{name}.mlp.up_proj")
            after = after + self.linear(gated, f"{name}.mlp.down_proj")
            worst.add("next hidden from A_in, A_out", get("/hidden/hidden", layer + 1), after, 1e-5,
                      np.abs(after).max())
