"""Models and decoding loops to record, as a person who doesn't know Blockscope would write them: a plain decoder in
PyTorch that loads our checkpoints (block-causal and bidirectional), transformers' Qwen3 with random weights, and
greedy loops over both. `CallRecorder` keeps queries, keys and values on its own way."""

import json
import pathlib
import types

import torch
from torch import nn
from torch.nn import functional as F

MODELS = pathlib.Path(__file__).parents[2] / "models"
SDAR = dict(layer="model.layers.{}.", norm1="input_layernorm", norm2="post_attention_layernorm", q="self_attn.q_proj",
            k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj", gate="mlp.gate_proj", up="mlp.up_proj",
            down="mlp.down_proj", embed="model.embed_tokens", norm="model.norm", q_norm="self_attn.q_norm",
            k_norm="self_attn.k_norm")
LLADA = dict(layer="model.transformer.blocks.{}.", norm1="attn_norm", norm2="ff_norm", q="q_proj", k="k_proj",
             v="v_proj", o="attn_out", gate="ff_proj", up="up_proj", down="ff_out", embed="model.transformer.wte",
             norm="model.transformer.ln_f")


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Layer(nn.Module):
    def __init__(self, weights, names, index, config):
        super().__init__()
        prefix = names["layer"].format(index)
        for name, path in names.items():
            tensor = weights.get(f"{prefix}{path}.weight")
            if name != "layer" and tensor is not None:
                self.register_buffer(name, tensor)
        self.config, self.index = config, index

    @staticmethod
    def attend(q, k, v, mask):
        """[S, H, T, D]; a test may put another in its place."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def attention(self, x, cos, sin, past, mask, store):
        c = self.config

        def heads(name, count):
            rows = F.linear(x, getattr(self, name)).view(*x.shape[:2], count, c.head_dim)
            if hasattr(self, name + "_norm"):
                rows = rms_norm(rows, getattr(self, name + "_norm"), c.eps)
            return rows.transpose(1, 2)

        def rotate(rows):
            a, b = rows.chunk(2, -1)
            return rows * cos + torch.cat([-b, a], -1) * sin

        q, k, v = rotate(heads("q", c.num_heads)), rotate(heads("k", c.num_kv)), heads("v", c.num_kv)
        if past is not None and past.keys[self.index] is not None:
            k, v = (past.put(old[self.index], new) for old, new in ((past.keys, k), (past.values, v)))
        if past is not None and store:
            past.keys[self.index], past.values[self.index] = k, v
        out = self.attend(q, k, v, mask)
        return F.linear(out.transpose(1, 2).flatten(2), self.o)

    def forward(self, x, cos, sin, past, mask, store):
        x = x + self.attention(rms_norm(x, self.norm1, self.config.eps), cos, sin, past, mask, store)
        y = rms_norm(x, self.norm2, self.config.eps)
        return x + F.linear(F.silu(F.linear(y, self.gate)) * F.linear(y, self.up), self.down)


class Cache:
    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers
        self.start = None  # where new entries replace old ones

    def get_seq_length(self):
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def put(self, old, new):
        if self.start is None:
            return torch.cat([old, new], 2)
        return torch.cat([old[:, :, :self.start], new, old[:, :, self.start + new.shape[2]:]], 2)

    def crop(self, length):
        self.keys = [key[:, :, :length] for key in self.keys]
        self.values = [value[:, :, :length] for value in self.values]


class PlainModel(nn.Module):
    """A checkpoint of models/, computed in float32."""

    def __init__(self, name):
        super().__init__()
        from safetensors.torch import load_file

        config = json.loads((MODELS / name / "config.json").read_text())
        weights = {key: tensor.float() for key, tensor in load_file(MODELS / name / "model.safetensors").items()}
        names = LLADA if config["model_type"] == "llada" else SDAR
        heads = config.get("num_attention_heads") or config["n_heads"]
        hidden = config.get("hidden_size") or config["d_model"]
        self.config = types.SimpleNamespace(
            num_hidden_layers=config.get("num_hidden_layers") or config["n_layers"], num_heads=heads,
            num_kv=config.get("num_key_value_heads") or config["n_kv_heads"], hidden_size=hidden,
            head_dim=config.get("head_dim") or hidden // heads, eps=config["rms_norm_eps"], vocab_size=config["vocab_size"],
            theta=config["rope_theta"], mask_token_id=config["mask_token_id"], model_type=config["model_type"])
        self.config.num_key_value_heads = self.config.num_kv
        self.embed = nn.Embedding.from_pretrained(weights[names["embed"] + ".weight"])
        self.register_buffer("norm", weights[names["norm"] + ".weight"])
        self.layers = nn.ModuleList(Layer(weights, names, i, self.config) for i in range(self.config.num_hidden_layers))

    def forward(self, input_ids, past_key_values=None, mask=None, store=False):
        c = self.config
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        if past_key_values is not None and past_key_values.start is not None:
            start = past_key_values.start
        angle = torch.arange(start, start + input_ids.shape[1])[:, None] * c.theta ** (
            -torch.arange(0, c.head_dim, 2) / c.head_dim)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, past_key_values, mask, store)
        return types.SimpleNamespace(logits=F.linear(rms_norm(x, self.norm, c.eps), self.embed.weight))


def block_causal(length, size):
    block = torch.arange(length) // size
    return block[:, None] >= block[None, :]


def fill(ids, logits, mask, count):
    """Greedy: the `count` most probable masks of ids [1, B] take their best token."""
    best = logits.softmax(-1).max(-1)
    confidence = torch.where(ids == mask, best.values, -torch.inf)[0]
    chosen = confidence.topk(min(count, int((ids == mask).sum()))).indices
    ids = ids.clone()
    ids[0, chosen] = best.indices[0, chosen]
    return ids


@torch.no_grad()
def decode_blocks(model, prompt, gen_length, size, per_step=4, step=None):
    """SDAR's loop with a cache: whole prompt blocks first, then a block at a time, then its commit."""
    mask = model.config.mask_token_id
    cache = Cache(model.config.num_hidden_layers)
    total = -(-(len(prompt) + gen_length) // size) * size
    ids = torch.tensor([prompt + [mask] * (total - len(prompt))])
    whole = len(prompt) // size * size
    if whole:
        model(ids[:, :whole], past_key_values=cache, mask=block_causal(whole, size), store=True)
    for start in range(whole, total, size):
        block = ids[:, start:start + size]
        while (block == mask).any():
            block = fill(block, model(block, past_key_values=cache).logits, mask, per_step)
            if step is not None:
                step()
        model(block, past_key_values=cache, store=True)
        ids[:, start:start + size] = block
    return ids


@torch.no_grad()
def decode_canvas(model, prompt, gen_length, size, per_step=4):
    """LLaDA's loop: the whole canvas at every step, blocks from the prompt's end."""
    mask = model.config.mask_token_id
    ids = torch.tensor([prompt + [mask] * gen_length])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        while (ids[:, start:start + size] == mask).any():
            logits = model(ids).logits[:, start:start + size]
            ids[:, start:start + size] = fill(ids[:, start:start + size], logits, mask, per_step)
    return ids


@torch.no_grad()
def decode_prefix_cache(model, prompt, gen_length, size, per_step=4):
    """Fast-dLLM's loop: a block's first pass goes over all, the others over what the keys before it don't hold."""
    mask = model.config.mask_token_id
    ids = torch.tensor([prompt + [mask] * gen_length])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        block, cache = slice(start, start + size), Cache(model.config.num_hidden_layers)
        ids[:, block] = fill(ids[:, block], model(ids, past_key_values=cache, store=True).logits[:, block], mask, per_step)
        cache.crop(start)
        while (ids[:, block] == mask).any():
            logits = model(ids[:, start:], past_key_values=cache).logits[:, :size]
            ids[:, block] = fill(ids[:, block], logits, mask, per_step)
    return ids


@torch.no_grad()
def decode_dual_cache(model, prompt, gen_length, size, per_step=4, state=lambda start: None):
    """The same with the keys after the block kept too: a pass computes the block alone, in their middle. `state` is
    called with its position before it."""
    mask = model.config.mask_token_id
    ids = torch.tensor([prompt + [mask] * gen_length])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        block, cache = slice(start, start + size), Cache(model.config.num_hidden_layers)
        ids[:, block] = fill(ids[:, block], model(ids, past_key_values=cache, store=True).logits[:, block], mask, per_step)
        cache.start = start
        while (ids[:, block] == mask).any():
            state(start)
            logits = model(ids[:, block], past_key_values=cache, store=True).logits
            ids[:, block] = fill(ids[:, block], logits, mask, per_step)
    return ids


# --- transformers -----------------------------------------------------------------------------------------------------


def qwen3(implementation="sdpa", kv_heads=2, dtype=torch.float32, layers=3):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(7)
    config = Qwen3Config(vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=layers,
                         num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=16, max_position_embeddings=256,
                         initializer_range=0.3, attn_implementation=implementation, tie_word_embeddings=False)
    return Qwen3ForCausalLM(config).to(dtype).eval()


@torch.no_grad()
def decode_qwen_blocks(model, prompt, gen_length, size, mask, per_step=2):
    """Block diffusion over a model that knows nothing of it: masks of four dimensions, the cache cut back."""
    from transformers import DynamicCache

    rows = prompt.shape[0]
    cache = DynamicCache(config=model.config)
    total = prompt.shape[1] + gen_length
    ids = torch.cat([prompt, torch.full((rows, gen_length), mask)], 1)
    positions = torch.arange(total).expand(rows, -1)

    def forward(begin, end, attention_mask):
        return model(ids[:, begin:end], position_ids=positions[:, begin:end], past_key_values=cache,
                     attention_mask=attention_mask.expand(rows, 1, -1, -1), use_cache=True).logits

    def visible(begin, end):
        return torch.zeros(end - begin, end).masked_fill(~block_causal(end, size)[begin:end], -torch.inf)

    forward(0, prompt.shape[1], visible(0, prompt.shape[1]))
    for start in range(prompt.shape[1], total, size):
        while (ids[:, start:start + size] == mask).any():
            logits = forward(start, start + size, visible(start, start + size))
            cache.crop(-size)
            for row in range(rows):
                block = fill(ids[row:row + 1, start:start + size], logits[row:row + 1], mask, per_step)
                ids[row:row + 1, start:start + size] = block
        forward(start, start + size, visible(start, start + size))
    return ids


@torch.no_grad()
def decode_tokens(model, prompt, count):
    """Plain greedy decoding with a cache."""
    out = model(prompt, use_cache=True)
    ids = prompt
    for i in range(count):
        ids = torch.cat([ids, out.logits[:, -1].argmax(-1, keepdim=True)], 1)
        if i + 1 < count:
            out = model(ids[:, -1:], past_key_values=out.past_key_values, use_cache=True)
    return ids


class CallRecorder:
    """Keeps q, k, v of every attention of a transformers model, by its attention interface: float64 copies."""

    def __init__(self, name="judge"):
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

        self.calls = []  # layer, q [S, H, T, D], k, v [S, K, N, D]

        def attend(module, query, key, value, attention_mask, **kwargs):
            self.calls.append((module.layer_idx, *(x.double().clone() for x in (query, key, value))))
            return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
