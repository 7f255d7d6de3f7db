"""Continuous video models with small random weights, called as people call them, and the loops around them.

- Here: the call of LongLive and Self-Forcing: model(x, t, context, seq_len, kv_cache=, crossattn_cache=,
  current_start=, cache_start=), a cache dictionary for each layer, sinks and a rolling window. Loop: `causal_loop`.
- wan_like_models.py: the call of diffusers: model(hidden_states, timestep, encoder_hidden_states), an attention
  processor for each attention; `CachingProcessor` makes it causal. Loop: `wan_like_loop`.

x, hidden_states and noise are [S, channels, frames, height, width]. A token is one place of one frame. A loop calls
`tell(start=, timestep=, branch=)` before each pass if it is given: the chunk's first token, the timestep as a float,
and the index of the guidance branch. `watch(model, function)` calls function(layer, q, k, v, out), each [S, H, T, D],
for each self-attention. Nothing here knows Blockscope."""

import dataclasses
import types

import torch
from torch import nn
from torch.nn import functional as F

TIMESTEPS = (1000.0, 937.5, 833.3, 625.0)  # four denoising steps as LongLive warps them
CHUNK = 3  # frames


@dataclasses.dataclass
class Shape:
    layers: int = 3
    heads: int = 4
    head_dim: int = 16
    channels: int = 4
    height: int = 4
    width: int = 3
    text: int = 7  # tokens of the text
    text_dim: int = 20
    sinks: int = 3  # frames
    window: int = 9  # frames, the chunk's own included; 0: everything before the chunk is kept
    in_place: bool = False  # the cache is written before the attention, as in Self-Forcing

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def frame(self):
        """Tokens of one frame."""
        return self.height * self.width


def inputs(shape, frames=21, batch=1, seed=0, dtype=torch.float32):
    """noise [S, C, F, h, w], context [S, text, text_dim] and a second context for guidance."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)

    noise = draw(batch, shape.channels, frames, shape.height, shape.width)
    return noise, draw(batch, shape.text, shape.text_dim), draw(batch, shape.text, shape.text_dim)


def sinusoid(t, size):
    angle = t.flatten()[:, None] * 10000.0 ** (-torch.arange(size // 2, dtype=t.dtype) / (size // 2))
    return torch.cat([angle.cos(), angle.sin()], -1)


def rotation(frames, shape, start_frame, dtype):
    """Angles [T, head_dim / 2]: half of the pairs turn with the frame, the others with row and column."""
    pairs = shape.head_dim // 2
    place = torch.stack(torch.meshgrid(torch.arange(start_frame, start_frame + frames), torch.arange(shape.height),
                                       torch.arange(shape.width), indexing="ij"), -1).reshape(-1, 3).to(dtype)
    sizes = pairs - 2 * (pairs // 4), pairs // 4, pairs // 4
    return torch.cat([place[:, i:i + 1] * 100.0 ** (-torch.arange(n, dtype=dtype) / max(n, 1))
                      for i, n in enumerate(sizes)], -1)


def turn(x, angle):
    """x [S, T, H, D]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def attend(q, k, v):
    """[S, T, H, D] in and out."""
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def seen(module, q, k, v, out):
    """The attention has happened; a watcher gets copies."""
    if module.watch is not None:
        module.watch(module.index, *(x.detach().transpose(1, 2).clone() for x in (q, k, v, out)))


def watch(model, function):
    for module in model.modules():
        if hasattr(module, "watch"):
            module.watch = function


def random_weights(model, seed, query_norms, head_dim, sharp=(0.05, 0.1, 0.4, 2.4)):
    """Normal weights. Head h's queries of the self-attention are `sharp[h]` times as long, so heads differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.05 if p.dim() == 1 or "modulation" in name else p[0].numel() ** -0.5
            scale *= 0.2 if "time_" in name else 1.0
            p.copy_(torch.ones_like(p) if "norm" in name else torch.randn(p.shape, generator=generator) * scale)
        for norm in query_norms:
            factors = torch.tensor([sharp[h % len(sharp)] for h in range(norm.weight.numel() // head_dim)])
            norm.weight.mul_(factors.repeat_interleave(head_dim))
    return model.eval()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(dim), RMSNorm(dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))


class CausalSelfAttention(Attention):
    watch = None

    def __init__(self, shape, index):
        super().__init__(shape.dim, shape.heads)
        self.shape, self.index = shape, index

    def forward(self, x, angle, cache, current_start):
        shape = self.shape
        q, k, v = (self.split(y) for y in (self.norm_q(self.q(x)), self.norm_k(self.k(x)), self.v(x)))
        q, k = turn(q, angle), turn(k, angle)
        keys, values = (cache[name] if shape.in_place else cache[name].clone() for name in ("k", "v"))
        new, end, held = k.shape[1], current_start + k.shape[1], int(cache["local_end_index"])
        sinks = shape.sinks * shape.frame
        over = 0
        if end > int(cache["global_end_index"]):  # the chunk's first pass: the oldest keys after the sinks leave
            over = max(0, held + new - keys.shape[1])
            for stored in (keys, values) if over else ():
                stored[:, sinks:held - over] = stored[:, sinks + over:held].clone()
        held += end - int(cache["global_end_index"]) - over
        keys[:, held - new:held], values[:, held - new:held] = k, v
        first = max(0, held - shape.window * shape.frame) if shape.window else 0
        if first > 0 and sinks:
            first = max(sinks, first)
            read = [torch.cat([y[:, :sinks], y[:, first:held]], 1) for y in (keys, values)]
        else:
            read = [y[:, first:held] for y in (keys, values)]
        out = attend(q, *read)
        seen(self, q, *read, out)
        return self.o(out.flatten(2)), (keys, values, end, held)


class CrossAttention(Attention):
    def forward(self, x, context, cache=None):
        """The text's keys and values are computed once a video."""
        if cache is None or not cache["is_init"]:
            k, v = self.split(self.norm_k(self.k(context))), self.split(self.v(context))
            if cache is not None:
                cache.update(k=k, v=v, is_init=True)
        else:
            k, v = cache["k"], cache["v"]
        return self.o(attend(self.split(self.norm_q(self.q(x))), k, v).flatten(2))


class CausalLayer(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.self_attn = CausalSelfAttention(shape, index)
        self.cross_attn = CrossAttention(shape.dim, shape.heads)
        self.ffn = nn.Sequential(nn.Linear(shape.dim, 2 * shape.dim), nn.GELU(), nn.Linear(2 * shape.dim, shape.dim))
        self.modulation = nn.Parameter(torch.zeros(1, 6, shape.dim))

    def forward(self, x, e, angle, context, cache, crossattn_cache, current_start):
        """e [S, F, 6, dim]: shift, scale and gate of each frame, for attention and feed-forward."""
        e = (self.modulation + e).repeat_interleave(x.shape[1] // e.shape[1], 1).unbind(2)
        y, update = self.self_attn(plain_norm(x) * (1 + e[1]) + e[0], angle, cache, current_start)
        x = x + y * (1 + e[2])
        x = x + self.cross_attn(plain_norm(x), context, crossattn_cache)
        return x + self.ffn(plain_norm(x) * (1 + e[4]) + e[3]) * (1 + e[5]), update


def plain_norm(x):
    return F.layer_norm(x, x.shape[-1:])


class CausalVideoModel(nn.Module):
    def __init__(self, shape=None, seed=1):
        super().__init__()
        self.shape = shape = shape or Shape()
        self.config = types.SimpleNamespace(num_heads=shape.heads, num_layers=shape.layers, dim=shape.dim)
        self.patch_embedding = nn.Conv3d(shape.channels, shape.dim, 1)
        self.text_embedding = nn.Linear(shape.text_dim, shape.dim)
        self.time_embedding = nn.Sequential(nn.Linear(32, shape.dim), nn.SiLU(), nn.Linear(shape.dim, 6 * shape.dim))
        self.blocks = nn.ModuleList(CausalLayer(shape, i) for i in range(shape.layers))
        self.head = nn.Linear(shape.dim, shape.channels)
        random_weights(self, seed, [block.self_attn.norm_q for block in self.blocks], shape.head_dim)

    def forward(self, *args, **kwargs):
        """Names no argument, as LongLive's."""
        return self._forward_inference(*args, **kwargs)

    def _forward_inference(self, x, t, context, seq_len, kv_cache=None, crossattn_cache=None, current_start=0,
                           cache_start=None):
        """x [S, C, F, h, w], t [S, F], context [S, text, text_dim] -> flow like x. seq_len, cache_start: unused."""
        frames = x.shape[2]
        y = self.patch_embedding(x).flatten(2).transpose(1, 2)
        e = self.time_embedding(sinusoid(t.to(x.dtype), 32)).view(*t.shape, 6, -1)
        text = self.text_embedding(context)
        angle = rotation(frames, self.shape, current_start // self.shape.frame, x.dtype)
        updates = []
        for i, block in enumerate(self.blocks):
            y, update = block(y, e, angle, text, kv_cache[i], crossattn_cache and crossattn_cache[i], current_start)
            updates.append(update)
        for cache, (keys, values, end, held) in zip(kv_cache, updates):
            cache["k"].copy_(keys)
            cache["v"].copy_(values)
            cache["global_end_index"].fill_(end)
            cache["local_end_index"].fill_(held)
        return self.head(plain_norm(y)).transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:])


def new_caches(model, frames, batch, dtype=torch.float32):
    """(kv_cache, crossattn_cache) as LongLive's pipeline makes them: one dictionary for each layer."""
    shape = model.shape
    size = (min(frames, shape.sinks + shape.window) if shape.window else frames) * shape.frame
    kv = [dict({name: torch.zeros(batch, size, shape.heads, shape.head_dim, dtype=dtype) for name in "kv"},
               global_end_index=torch.tensor([0]), local_end_index=torch.tensor([0])) for _ in range(shape.layers)]
    return kv, [dict(k=None, v=None, is_init=False) for _ in range(shape.layers)]


@torch.no_grad()
def causal_loop(model, noise, context, negative=None, timesteps=TIMESTEPS, context_noise=0.0, tell=None, seed=3,
                guidance=3.0):
    """Returns the video's latent. Each chunk: the denoising steps, then a clean pass at `context_noise` that writes K
    and V. negative: a second context; each step is then two calls, each with a cache of its own."""
    generator = torch.Generator().manual_seed(seed)
    texts = [context] if negative is None else [context, negative]
    batch, frames = noise.shape[0], noise.shape[2]
    caches = [new_caches(model, frames, batch, noise.dtype) for _ in texts]
    video = torch.zeros_like(noise)
    for frame in range(0, frames, CHUNK):
        start = frame * model.shape.frame

        def call(x, timestep):
            t = torch.full((batch, CHUNK), timestep, dtype=torch.float32)
            flows = []
            for branch, (text, (kv, crossattn)) in enumerate(zip(texts, caches)):
                if tell is not None:
                    tell(start=start, timestep=timestep, branch=branch)
                flows.append(model(x, t=t, context=text, seq_len=32760, kv_cache=kv, crossattn_cache=crossattn,
                                   current_start=start, cache_start=None))
            return flows[0] if negative is None else flows[1] + guidance * (flows[0] - flows[1])

        x = noise[:, :, frame:frame + CHUNK]
        for step, timestep in enumerate(timesteps):
            clean = x - timestep / 1000 * call(x, timestep)
            if step + 1 < len(timesteps):
                level = timesteps[step + 1] / 1000
                fresh = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
                x = (1 - level) * clean + level * fresh
        video[:, :, frame:frame + CHUNK] = clean
        call(clean, context_noise)
    return video
