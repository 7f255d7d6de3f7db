"""FlashBlock's rule and the arithmetic of a decoder under it, in float64, from a checkpoint's weights and the tokens of a
prompt alone: the judge of traces and of the official engine.

A pass reads the prefix at a block's first step, when `count` reaches tau, and at the commit; the others merge the pair of the
last reading pass of the block. `since_read` counts the positions decided since that pass, its own included, a position whose
token is the mask's among them; `step` counts the inputs that differ from the step before. With refresh `rows`, a pass after the
first reads for those rows only whose input changed since they last read; the others keep their pair.
"""

import json
import pathlib
import types

import attention_math as am
import numpy as np
from layer_math import Layers, rms_norm, silu
from safetensors.torch import load_file


def quota(block_length, steps, step):
    """Tokens due at a step, from 0."""
    return block_length // steps + (step < block_length % steps)


def choose(probability, masked, due, threshold):
    """low_confidence_dynamic: all above the threshold, or the best ones if they are fewer than due."""
    above = [i for i in masked if probability[i] > threshold]
    return sorted(above if len(above) >= due else sorted(masked, key=lambda i: -probability[i])[:due])


class Rule:
    """The two counts of one block, pass by pass."""

    def __init__(self, tau, size, count="since_read", refresh="all"):
        self.tau, self.count, self.refresh, self.since_read, self.changed = tau, count, refresh, 0, 0
        self.unread, self.first = np.ones(size, bool), True

    def rows(self):
        """Which rows of the next denoising pass read the prefix."""
        due = self.first or (self.since_read if self.count == "since_read" else self.changed) >= self.tau
        if self.first or self.refresh == "rows":
            return self.unread & due
        return np.full_like(self.unread, due)

    def after(self, decided, changed):
        """How many positions the pass decided, those whose token is the mask's included, and whose input it changed."""
        rows = self.rows()
        self.since_read = decided + (0 if rows.any() else self.since_read)
        self.unread &= ~rows
        self.unread[changed] = True
        self.changed, self.first = len(changed), False


class Decoder:
    def __init__(self, folder):
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        state = {}
        for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
            state |= load_file(file)
        self.spec = dict(head_dim=config["head_dim"], heads=config["num_attention_heads"], theta=config["rope_theta"],
                         kv_heads=config["num_key_value_heads"], layers=config["num_hidden_layers"])
        self.layers = Layers(types.SimpleNamespace(named_parameters=state.items), self.spec)
        self.weights = self.layers.weights
        self.head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])

    def forward(self, tokens, start, cache, pairs, rows):
        """One pass over a block. cache: (K, V) per layer, [K, N, D]; pairs: kept (A_out, L_out) per layer of the rows that
        don't read (`rows` [B] bool: those that do).
        -> (logits [B, V], (A_out, L_out) per layer, merged [layer, H, B, D], (K, V) of the block per layer)"""
        layers, spec, used, merged, new = self.layers, self.spec, [], [], []
        hidden, positions = self.weights["model.embed_tokens.weight"][tokens], start + np.arange(len(tokens))
        for layer in range(spec["layers"]):
            name = f"model.layers.{layer}"
            attn = f"{name}.self_attn"
            x = rms_norm(hidden, self.weights[f"{name}.input_layernorm.weight"])
            query = layers.rotate(layers.heads(x, f"{attn}.q_proj", spec["heads"], f"{attn}.q_norm"), positions)
            key = layers.rotate(layers.heads(x, f"{attn}.k_proj", spec["kv_heads"], f"{attn}.k_norm"), positions)
            value = layers.heads(x, f"{attn}.v_proj", spec["kv_heads"])
            scale = spec["head_dim"] ** -0.5
            pair = am.attend(query, *cache[layer], scale)
            if not rows.all():
                pair = tuple(np.where(rows.reshape(-1, *[1] * (new_one.ndim - 2)), new_one, kept)
                             for new_one, kept in zip(pair, pairs[layer]))
            out = am.merge([pair, am.attend(query, key, value, scale)])[0]
            hidden = hidden + layers.linear(out.transpose(1, 0, 2).reshape(len(tokens), -1), f"{attn}.o_proj")
            x = rms_norm(hidden, self.weights[f"{name}.post_attention_layernorm.weight"])
            gated = silu(layers.linear(x, f"{name}.mlp.gate_proj")) * layers.linear(x, f"{name}.mlp.up_proj")
            hidden = hidden + layers.linear(gated, f"{name}.mlp.down_proj")
            used, merged, new = [*used, pair], [*merged, out], [*new, (key, value)]
        return rms_norm(hidden, self.weights["model.norm.weight"]) @ self.head.T, used, np.stack(merged), new

    def decode(self, prompt, parameters, judged, **rule_options):
        """-> rows of denoising and commit passes, as `compare_flashblock.py` compares them, with this decoder's own choices.
        It goes on with the tokens that the rows `judged` decided."""
        size, steps, mask = (parameters[name] for name in ("block_length", "denoising_steps", "mask_id"))
        blocks = -(-(len(prompt) + parameters["gen_length"]) // size)
        tokens = list(prompt) + [mask] * (blocks * size - len(prompt))
        empty = np.zeros((self.spec["kv_heads"], 0, self.spec["head_dim"]))
        cache, rows = [(empty, empty)] * self.spec["layers"], []
        for start in range(0, len(tokens), size):
            rule, kept, step, every = Rule(parameters["tau"], size, **rule_options), None, 0, np.ones(size, bool)
            while start + size > len(prompt):
                block = tokens[start:start + size]
                masked = [i for i in range(size) if block[i] == mask]
                commit = not masked or step == steps
                fresh = every if commit else rule.rows()
                logits, used, merged, new = self.forward(block, start, cache, kept, fresh)
                kept = used
                probability = np.exp(logits - np.logaddexp.reduce(logits, -1)[:, None])
                best, row = logits.argmax(-1), dict(
                    kind="commit" if commit else "denoise", step=0 if commit else step + 1, start=start, input=block,
                    rows_read=int(fresh.sum()), since_read=rule.since_read, top1=logits.argmax(-1), probability=probability.max(-1),
                    external=np.stack([a for a, _ in used]), lse_external=np.stack([lse for _, lse in used]),
                    merged=merged, logits=logits, decided=[])
                rows.append(row)
                if commit:
                    break
                picked = choose(row["probability"], masked, quota(size, steps, step), parameters["threshold"])
                row["decided"] = [[i, int(best[i])] for i in picked if best[i] != mask]
                taken = judged[len(rows) - 1]["decided"] if len(rows) <= len(judged) else row["decided"]
                for i, token in taken:
                    tokens[start + i] = token
                rule.after(len(picked) - len(row["decided"]) + len(taken), [i for i, _ in taken])
                step += 1
            else:
                new = self.forward(tokens[start:start + size], start, cache, None, every)[3]
            cache = [tuple(np.concatenate(both, 1) for both in zip(old, more)) for old, more in zip(cache, new)]
        return rows[:-1]  # no pass reads what the last block's commit stores
