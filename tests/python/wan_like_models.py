"""A video transformer with small random weights in the call of diffusers' WanTransformer3DModel. Its loop decodes chunk
by chunk with an attention processor that keeps keys and values. video_models.py says what a loop tells."""

import types

import torch
from torch import nn

from video_models import (CHUNK, TIMESTEPS, RMSNorm, Shape, attend, plain_norm, random_weights, rotation, seen,
                          sinusoid, turn)


class ChunkCache:
    """Keys and values of the chunks before this one, [S, T, H, D] for each layer. `write`: this pass appends its own.
    With `window` tokens, sinks and the last ones stay, the pass's own (`chunk` tokens) included in the window."""

    def __init__(self, layers, sinks=0, window=0, chunk=0):
        self.past, self.write = [None] * layers, False
        self.sinks, self.window, self.chunk = sinks, window, chunk

    def update(self, layer, k, v):
        past = self.past[layer]
        keys, values = (k, v) if past is None else (torch.cat([a, b], 1) for a, b in zip(past, (k, v)))
        if self.write:
            self.past[layer] = tuple(self.kept(x) for x in (keys, values))
        return keys, values

    def kept(self, x):
        last = self.window - self.chunk
        if not self.window or x.shape[1] <= self.sinks + last:
            return x
        return torch.cat([x[:, :self.sinks], x[:, x.shape[1] - last:]], 1)


class PlainProcessor:
    cache = None

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, rotary_emb=None):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = (x.unflatten(-1, (attn.heads, -1)) for x in (
            attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(source)), attn.to_v(source)))
        if rotary_emb is not None:
            q, k = turn(q, rotary_emb), turn(k, rotary_emb)
        if self.cache is not None:
            k, v = self.cache.update(attn.index, k, v)
        out = attend(q, k, v)
        if encoder_hidden_states is None:
            seen(attn, q, k, v, out)
        return attn.to_out[0](out.flatten(2))


class CachingProcessor(PlainProcessor):
    """The keys of the chunks before this one come first."""

    def __init__(self, cache):
        self.cache = cache


class WanLikeAttention(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.heads, self.index, self.processor = shape.heads, index, PlainProcessor()
        self.to_q, self.to_k, self.to_v = (nn.Linear(shape.dim, shape.dim) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(shape.dim, shape.dim), nn.Dropout(0.0)])
        self.norm_q, self.norm_k = RMSNorm(shape.dim), RMSNorm(shape.dim)

    def set_processor(self, processor):
        self.processor = processor

    def forward(self, hidden_states, encoder_hidden_states=None, rotary_emb=None):
        return self.processor(self, hidden_states, encoder_hidden_states, rotary_emb)


class WatchedAttention(WanLikeAttention):
    watch = None


class WanLikeBlock(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        self.attn1, self.attn2 = WatchedAttention(shape, index), WanLikeAttention(shape, index)
        self.ffn = nn.Sequential(nn.Linear(shape.dim, 2 * shape.dim), nn.GELU(), nn.Linear(2 * shape.dim, shape.dim))
        self.modulation = nn.Parameter(torch.zeros(1, 6, shape.dim))

    def forward(self, hidden_states, encoder_hidden_states, temb, rotary_emb):
        e = (self.modulation + temb).chunk(6, 1)
        x = hidden_states
        x = x + self.attn1(plain_norm(x) * (1 + e[1]) + e[0], None, rotary_emb) * (1 + e[2])
        x = x + self.attn2(plain_norm(x), encoder_hidden_states)
        return x + self.ffn(plain_norm(x) * (1 + e[4]) + e[3]) * (1 + e[5])


class WanLikeModel(nn.Module):
    def __init__(self, shape=None, seed=2):
        super().__init__()
        self.shape = shape = shape or Shape()
        self.config = types.SimpleNamespace(num_attention_heads=shape.heads, attention_head_dim=shape.head_dim,
                                            num_layers=shape.layers, patch_size=(1, 1, 1))
        self.patch_embedding = nn.Conv3d(shape.channels, shape.dim, 1)
        self.text_embedding = nn.Linear(shape.text_dim, shape.dim)
        self.time_embedding = nn.Sequential(nn.Linear(32, shape.dim), nn.SiLU(), nn.Linear(shape.dim, 6 * shape.dim))
        self.blocks = nn.ModuleList(WanLikeBlock(shape, i) for i in range(shape.layers))
        self.proj_out = nn.Linear(shape.dim, shape.channels)
        self.start_frame = 0  # a loop over chunks sets it before each pass
        random_weights(self, seed, [block.attn1.norm_q for block in self.blocks], shape.head_dim)

    def forward(self, hidden_states, timestep, encoder_hidden_states, return_dict=True):
        """timestep [S] -> an object with `sample` like hidden_states, or (sample,)."""
        x = self.patch_embedding(hidden_states).flatten(2).transpose(1, 2)
        temb = self.time_embedding(sinusoid(timestep.to(x.dtype), 32)).unflatten(1, (6, -1))
        angle = rotation(hidden_states.shape[2], self.shape, self.start_frame, x.dtype)
        text = self.text_embedding(encoder_hidden_states)
        for block in self.blocks:
            x = block(x, text, temb, angle)
        sample = self.proj_out(plain_norm(x)).transpose(1, 2).reshape(hidden_states.shape)
        return types.SimpleNamespace(sample=sample) if return_dict else (sample,)


@torch.no_grad()
def wan_like_loop(model, noise, context, negative=None, doubled=False, timesteps=TIMESTEPS, tell=None, guidance=3.0):
    """Returns the video's latent: Euler steps chunk by chunk, then a pass at timestep 0 that appends K and V.
    negative: a second context for guidance, as a second call each step, or (`doubled`) as the batch's second half."""
    shape, (batch, _, frames) = model.shape, noise.shape[:3]
    calls = [context] if negative is None else [torch.cat([context, negative])] if doubled else [context, negative]
    size = CHUNK * shape.frame
    caches = [ChunkCache(shape.layers, shape.sinks * shape.frame, shape.window * shape.frame, size) for _ in calls]
    video = torch.zeros_like(noise)

    def call(x, timestep, frame, write):
        model.start_frame = frame
        flows = []
        for branch, (text, cache) in enumerate(zip(calls, caches)):
            cache.write = write
            for block in model.blocks:
                block.attn1.set_processor(CachingProcessor(cache))
            if tell is not None:
                tell(start=frame * shape.frame, timestep=timestep, branch=branch)
            rows = torch.cat([x, x]) if doubled else x
            out = model(hidden_states=rows, timestep=torch.full((len(rows),), timestep), encoder_hidden_states=text)
            flows += out.sample.split(batch)
        return flows[0] if negative is None else flows[1] + guidance * (flows[0] - flows[1])

    for frame in range(0, frames, CHUNK):
        x = noise[:, :, frame:frame + CHUNK]
        for timestep, following in zip(timesteps, (*timesteps[1:], 0.0)):
            x = x + (following - timestep) / 1000 * call(x, timestep, frame, False)
        video[:, :, frame:frame + CHUNK] = x
        call(x, 0.0, frame, True)
    for block in model.blocks:
        block.attn1.set_processor(PlainProcessor())
    return video
