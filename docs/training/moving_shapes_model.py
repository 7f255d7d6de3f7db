"""A small causal video diffusion model with the calls of LongLive (Wan), for docs/training/moving_shapes.py.

A chunk of frames is denoised over K and V of the frames before it: sink frames and a rolling window. The cache of a
layer holds them, and counts tokens of the video (global_end_index) and of the cache (local_end_index).
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass
class Config:
    model_type: str = "moving_shapes"
    frame_size: int = 24
    num_words: int = 21
    num_hidden_layers: int = 6
    hidden_size: int = 128
    num_attention_heads: int = 4
    intermediate_size: int = 512
    patch_size: int = 6
    num_frames: int = 21
    chunk_frames: int = 3
    sink_frames: int = 3
    window_frames: int = 9  # keys of a chunk: the sinks, the newest frames before it, and the chunk itself
    denoising_steps: tuple = (1000, 750, 500, 250)

    @property
    def frame_tokens(self):
        return (self.frame_size // self.patch_size) ** 2


def rotary(config, start, frames):
    """Cosines and sines [tokens, head_dim / 2] of the tokens of `frames` frames from frame `start`."""
    half, side = config.hidden_size // config.num_attention_heads // 2, config.frame_size // config.patch_size
    places = torch.cartesian_prod(torch.arange(start, start + frames), torch.arange(side), torch.arange(side))
    sizes = (half - 2 * (half // 3), half // 3, half // 3)  # time, y, x
    angles = torch.cat([places[:, i, None] * 100.0 ** (-torch.arange(n) / n) for i, n in enumerate(sizes)], 1)
    return angles.cos(), angles.sin()


def rotate(x, angles):
    """x [S, T, H, d]"""
    cos, sin = (part.unsqueeze(1) for part in angles)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attend(q, k, v):
    """[S, T, H, d] each -> [S, T, H * d]"""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.q, self.k, self.v, self.o = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4))
        self.norm_q, self.norm_k = (nn.RMSNorm(config.hidden_size // self.heads, eps=1e-6) for _ in range(2))

    def project(self, x, source):
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in (self.q(x), self.k(source), self.v(source)))
        return self.norm_q(q), self.norm_k(k), v


class CrossAttention(Attention):
    def forward(self, x, context):
        return self.o(attend(*self.project(x, context)))


class SelfAttention(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.config = config

    def forward(self, x, angles, kv_cache=None, current_start=0):
        q, k, v = self.project(x, x)
        q, k = rotate(q, angles), rotate(k, angles)
        if kv_cache is None:
            return self.o(self.teacher_forced(q, k, v))
        end = self.write(kv_cache, k, v, current_start)
        return self.o(attend(q, kv_cache["k"][:, :end], kv_cache["v"][:, :end]))

    def write(self, cache, k, v, start):
        """Puts a chunk's K and V into the cache -> the number of keys in it, the chunk's own last."""
        sink, new = self.config.sink_frames * self.config.frame_tokens, k.shape[1]
        known, local = int(cache["global_end_index"]), int(cache["local_end_index"])
        if start not in (known, known - new):
            raise ValueError(f"current_start: expected {known} (the next chunk) or {known - new} (the newest chunk "
                             f"again), found {start}.\nHINT: Denoise the chunks in order, with one cache a video.")
        local += start + new - known
        evicted = max(0, local - cache["k"].shape[1])  # the oldest tokens after the sinks
        for name, part in (("k", k), ("v", v)):
            if evicted:
                cache[name][:, sink:local - new - evicted] = cache[name][:, sink + evicted:local - new].clone()
            cache[name][:, local - evicted - new:local - evicted] = part
        cache["global_end_index"].fill_(start + new)
        cache["local_end_index"].fill_(local - evicted)
        return local - evicted

    def teacher_forced(self, q, k, v):
        """Attention of whole videos: each true frame, then each noisy frame.

        Either copy of a chunk reads what the cache would hold: the true sinks, the true window, and itself.
        """
        size = self.config.chunk_frames * self.config.frame_tokens
        q, k, v = (part.unflatten(1, (2, -1, size)).unbind(2) for part in (q, k, v))  # a chunk: [S, copy, token, H, d]
        sinks, window = (n // self.config.chunk_frames for n in (self.config.sink_frames, self.config.window_frames))
        results = []
        for chunk in range(len(q)):
            seen = [c for c in range(chunk) if c < sinks or c > chunk - window + sinks]
            keys, values = (torch.cat([part[c][:, :1].expand(-1, 2, -1, -1, -1) for c in seen] + [part[chunk]], 2)
                            for part in (k, v))
            results.append(attend(*(part.flatten(0, 1) for part in (q[chunk], keys, values))))
        return torch.stack(results, 1).unflatten(0, (-1, 2)).flatten(1, 3)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.norm1, self.norm2 = (nn.LayerNorm(size, elementwise_affine=False) for _ in range(2))
        self.norm3 = nn.LayerNorm(size)
        self.self_attn, self.cross_attn = SelfAttention(config), CrossAttention(config)
        self.ffn = nn.Sequential(nn.Linear(size, config.intermediate_size), nn.GELU(approximate="tanh"),
                                 nn.Linear(config.intermediate_size, size))
        self.modulation = nn.Parameter(torch.randn(6, size) / size**0.5)

    def forward(self, x, times, angles, context, kv_cache, current_start):
        """x [S, tokens, C]; times [S, frames, 6, C]"""
        frames = times.shape[1]
        shift1, scale1, gate1, shift2, scale2, gate2 = (times + self.modulation).unsqueeze(3).unbind(2)

        def scaled(x, scale, shift=0.0):
            return (x.unflatten(1, (frames, -1)) * scale + shift).flatten(1, 2)

        own = self.self_attn(scaled(self.norm1(x), 1 + scale1, shift1), angles, kv_cache, current_start)
        x = x + scaled(own, gate1)
        x = x + self.cross_attn(self.norm3(x), context)
        return x + scaled(self.ffn(scaled(self.norm2(x), 1 + scale2, shift2)), gate2)


class VideoModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        size, patch = config.hidden_size, 3 * config.patch_size**2
        self.patch_embedding = nn.Linear(patch, size)
        self.place_embedding = nn.Parameter(torch.randn(config.chunk_frames * config.frame_tokens, size))
        self.text_embedding = nn.Embedding(config.num_words, size)
        self.time_embedding = nn.Sequential(nn.Linear(64, size), nn.SiLU(), nn.Linear(size, size), nn.SiLU())
        self.time_projection = nn.Linear(size, 6 * size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.head_norm, self.head = nn.LayerNorm(size), nn.Linear(size, patch)

    def encode(self, words):
        """Words [S, W] of captions -> the context that cross-attention reads [S, W, C]."""
        return self.text_embedding(words)

    def new_cache(self, videos):
        config = self.config
        shape = (videos, config.window_frames * config.frame_tokens, config.num_attention_heads,
                 config.hidden_size // config.num_attention_heads)
        return [{"k": torch.zeros(shape), "v": torch.zeros(shape), "global_end_index": torch.tensor([0]),
                 "local_end_index": torch.tensor([0])} for _ in self.blocks]

    def forward(self, x, timestep, context, kv_cache=None, current_start=0):
        """Noisy frames x [S, F, 3, frame_size, frame_size] at timestep [S, F], 0 to 1000 -> frames without noise.

        With a cache, x is one chunk, and current_start is the index of its first token in the video. Without one
        (training), x is true frames of whole videos and then noisy frames of the same videos.
        """
        frames, patch = x.shape[1], self.config.patch_size
        copies = 1 if kv_cache else 2
        angles = rotary(self.config, current_start // self.config.frame_tokens, frames // copies)
        angles = [part.repeat(copies, 1) for part in angles]
        waves = timestep.unsqueeze(-1) * 10000.0 ** (-torch.arange(32) / 32)
        times = self.time_projection(self.time_embedding(torch.cat([waves.cos(), waves.sin()], -1)))
        times = times.unflatten(-1, (6, -1))
        x = functional.pixel_unshuffle(x.flatten(0, 1), patch).flatten(2).transpose(1, 2)  # [S F, frame_tokens, patch]
        x = self.patch_embedding(x).unflatten(0, (-1, frames)).flatten(1, 2)
        x = x + self.place_embedding.repeat(frames // self.config.chunk_frames, 1)
        for i, block in enumerate(self.blocks):
            x = block(x, times, angles, context, kv_cache[i] if kv_cache else None, current_start)
        x = self.head(self.head_norm(x)).unflatten(1, (frames, -1)).flatten(0, 1).transpose(1, 2)
        x = functional.pixel_shuffle(x.unflatten(2, (self.config.frame_size // patch, -1)), patch)
        return x.unflatten(0, (-1, frames))
