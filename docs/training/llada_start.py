"""Starting weights of the family llada from a checkpoint of the family sdar.

    python3 docs/training/llada_start.py models/needle START --prompts PROMPTS.jsonl --ffn 160

LLaDA has no QK-norm, and its heads have d_model / n_heads channels. So
  - the residual stream is widened to heads * head_dim channels; the new ones carry noise that nothing reads yet;
  - QK-norm becomes a constant scale for each head, the mean of 1 / rms over the prompts;
  - of each SwiGLU the channels that matter most on the prompts stay, and `down` is fitted again (least squares).
The result retrieves nothing by itself: `blockscope train --family llada --stage diffusion --init START` goes
on from it. PROMPTS come from `blockscope train --dump-prompts`. Needs torch, safetensors and tokenizers.
"""
import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    angles = torch.cat([angles, angles], -1)
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


class Sdar:
    """The model of the family sdar, with a look at q, k and the SwiGLU's inside."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
        self.scales = {}  # (layer, "q" or "k") -> sums of 1 / rms by head, rows
        self.inner = {}  # layer -> rows of silu(gate) * up, over the rms of the residual stream

    def layer(self, index, part):
        return self.weights[f"model.layers.{index}.{part}.weight"]

    def forward(self, tokens, block):
        c = self.config
        heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        eps = c["rms_norm_eps"]
        rows = torch.arange(len(tokens))
        mask = (rows[None, :] // block <= rows[:, None] // block)
        x = self.weights["model.embed_tokens.weight"][tokens]
        for index in range(c["num_hidden_layers"]):
            y = rms_norm(x, self.layer(index, "input_layernorm"), eps)
            parts = []
            for name, count in (("q", heads), ("k", kv_heads)):
                p = (y @ self.layer(index, f"self_attn.{name}_proj").T).view(len(tokens), count, dim)
                scale = torch.rsqrt(p.pow(2).mean(-1) + eps)
                self.scales.setdefault((index, name), []).append(scale)
                p = rms_norm(p, self.layer(index, f"self_attn.{name}_norm"), eps).transpose(0, 1)
                parts.append(rotate(p, rows.float(), c["rope_theta"]))
            v = (y @ self.layer(index, "self_attn.v_proj").T).view(len(tokens), kv_heads, dim).transpose(0, 1)
            group = heads // kv_heads
            q, k, v = parts[0], parts[1].repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            z = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + z.transpose(0, 1).flatten(1) @ self.layer(index, "self_attn.o_proj").T
            y = rms_norm(x, self.layer(index, "post_attention_layernorm"), eps)
            size = x.pow(2).mean(-1, keepdim=True).sqrt()
            a = torch.nn.functional.silu(y @ self.layer(index, "mlp.gate_proj").T)
            a = a * (y @ self.layer(index, "mlp.up_proj").T)
            self.inner.setdefault(index, []).append(a / size)
            x = x + a @ self.layer(index, "mlp.down_proj").T
        x = rms_norm(x, self.weights["model.norm.weight"], eps)
        return x @ self.weights["model.embed_tokens.weight"].T


def sequences(path, tokenizer, mask, end, generator):
    for line in path.read_text().splitlines():
        prompt = json.loads(line)
        answer = tokenizer.encode(prompt["answer"]).ids + [end]
        answer += [end] * (32 - len(answer))
        ids = torch.tensor(tokenizer.encode(prompt["prompt"]).ids + answer)
        hidden = torch.rand(32, generator=generator) < torch.rand(1, generator=generator)
        ids[-32:][hidden] = mask
        yield ids


def fewer_channels(model, index, ffn):
    """Gate and up projections of the `ffn` SwiGLU channels that matter most; a down projection fitted to them."""
    inner = torch.cat(model.inner[index])
    down = model.layer(index, "mlp.down_proj")
    keep = (inner.pow(2).mean(0).sqrt() * down.norm(dim=0)).topk(ffn).indices.sort().values
    kept = inner[:, keep]
    ridge = 1e-3 * kept.pow(2).mean() * len(kept) * torch.eye(ffn)
    fitted = torch.linalg.solve(kept.T @ kept + ridge, kept.T @ (inner @ down.T)).T
    missed = (kept @ fitted.T - inner @ down.T).pow(2).sum() / (inner @ down.T).pow(2).sum()
    print(f"layer {index}: {ffn} of {inner.shape[1]} SwiGLU channels miss {missed:.1%} of its output's power")
    return model.layer(index, "mlp.gate_proj")[keep], model.layer(index, "mlp.up_proj")[keep], fitted


def widened(model, ffn, generator):
    """LLaDA's weights: hidden size heads * head_dim, query and key norms folded into the projections."""
    c = model.config
    old, wide = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
    shrink = math.sqrt(old / wide)  # the root mean square of `wide` channels of which `old` are in use

    def noise(*shape, std):
        return torch.randn(*shape, generator=generator) * std

    def widen_columns(w):  # nothing reads the new channels yet
        return torch.cat([w, torch.zeros(w.shape[0], wide - old)], 1)

    def widen_rows(w):
        return torch.cat([w, noise(wide - old, w.shape[1], std=0.2 * w.std())], 0)

    def norm(w, new):
        return torch.cat([w * shrink, torch.full((wide - old,), new)])

    embed = model.weights["model.embed_tokens.weight"]
    weights = {
        "model.transformer.wte.weight": torch.cat([embed, noise(embed.shape[0], wide - old, std=0.2 * embed.std())], 1),
        "model.transformer.ln_f.weight": norm(model.weights["model.norm.weight"], 0.1),
    }
    for index in range(c["num_hidden_layers"]):
        get = lambda part: model.layer(index, part)  # noqa: E731
        out = f"model.transformer.blocks.{index}."
        weights[out + "attn_norm.weight"] = norm(get("input_layernorm"), 1.0)
        weights[out + "ff_norm.weight"] = norm(get("post_attention_layernorm"), 1.0)
        for name in ("q", "k"):
            scale = torch.cat(model.scales[index, name]).mean(0)  # [heads]
            rows = scale[:, None] * get(f"self_attn.{name}_norm")[None, :]
            projection = get(f"self_attn.{name}_proj") * rows.flatten()[:, None]
            weights[out + f"{name}_proj.weight"] = widen_columns(projection)
        weights[out + "v_proj.weight"] = widen_columns(get("self_attn.v_proj"))
        weights[out + "attn_out.weight"] = widen_rows(get("self_attn.o_proj"))
        gate, up, down = fewer_channels(model, index, ffn)
        weights[out + "ff_proj.weight"] = widen_columns(gate)
        weights[out + "up_proj.weight"] = widen_columns(up)
        weights[out + "ff_out.weight"] = widen_rows(down)
    return weights


def llada_config(c, ffn):
    return {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "block_type": "llama",
        "layer_norm_type": "rms", "d_model": c["num_attention_heads"] * c["head_dim"], "n_heads": c["num_attention_heads"],
        "n_kv_heads": c["num_key_value_heads"], "n_layers": c["num_hidden_layers"], "mlp_hidden_size": ffn, "rope": True,
        "rope_theta": c["rope_theta"], "rms_norm_eps": 1e-5, "max_sequence_length": c["max_position_embeddings"],
        "vocab_size": c["vocab_size"], "embedding_size": c["vocab_size"], "mask_token_id": c["mask_token_id"],
        "eos_token_id": c["eos_token_id"], "weight_tying": True,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--ffn", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Sdar(args.source)
    c = model.config
    tokenizer = Tokenizer.from_file(str(args.source / "tokenizer.json"))
    with torch.no_grad():
        for ids in sequences(args.prompts, tokenizer, c["mask_token_id"], c["eos_token_id"], generator):
            model.forward(ids, 16)
    weights = widened(model, args.ffn, generator)
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: w.contiguous() for name, w in weights.items()}, args.out / "model.safetensors")
    (args.out / "config.json").write_text(json.dumps(llada_config(c, args.ffn), indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(args.source / name, args.out / name)


if __name__ == "__main__":
    main()
