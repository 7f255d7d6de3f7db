"""diffusers' Wan transformer with small random weights, decoded chunk by chunk."""

import contextlib

import torch
import video_models as own
from official_video import (CHANNELS, CHUNK, FRAMES, PATCH, SINKS, SMALL, STEPS, TEXT_DIM, WINDOW, Loop, Text,
                            noise_of)


class LaterRope(torch.nn.Module):
    """diffusers' rotary embedding starts at frame 0; this one starts where the loop says."""

    def __init__(self, rope):
        super().__init__()
        self.rope, self.start_frame = rope, 0

    def forward(self, hidden_states):
        s, c, f, h, w = hidden_states.shape
        whole = self.rope(hidden_states.new_empty(s, c, self.start_frame + f, h, w))
        return tuple(x[:, self.start_frame * (h // PATCH) * (w // PATCH):] for x in whole)


class KeepingProcessor:
    """Self-attention over the keys of earlier chunks and the chunk's own, as people write it for diffusers."""

    def __init__(self, layer, cache, dispatch, watch):
        self.layer, self.cache, self.dispatch, self.watch = layer, cache, dispatch, watch

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        q, k, v = (x.unflatten(-1, (attn.heads, -1)) for x in (
            attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states)), attn.to_v(hidden_states)))
        angle = torch.atan2(rotary_emb[1][0, :, 0, 1::2], rotary_emb[0][0, :, 0, 0::2])
        k, v = self.cache.update(self.layer, own.turn(k, angle).to(v.dtype), v)
        q = own.turn(q, angle).to(v.dtype)
        out = self.dispatch(q, k, v)
        for watch in self.watch:
            watch.see(self.layer, *(x.transpose(1, 2) for x in (q, k, v, out)))
        return attn.to_out[1](attn.to_out[0](out.flatten(2)))


def wan_loop(dtype=torch.float32, batch=1, seed=2, frames=FRAMES, guidance=None, size=SMALL, stock=False):
    """guidance: None, "calls" (two calls each step) or "batch" (a doubled batch). stock: with diffusers' own processor,
    which knows no earlier chunk."""
    from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    from wan_like_models import ChunkCache

    model = WanTransformer3DModel(
        patch_size=(1, PATCH, PATCH), num_attention_heads=size.heads, attention_head_dim=size.head_dim,
        in_channels=CHANNELS, out_channels=CHANNELS, text_dim=TEXT_DIM, freq_dim=32,
        ffn_dim=2 * size.heads * size.head_dim, num_layers=size.layers, rope_max_seq_len=64)
    own.random_weights(model, seed, [block.attn1.norm_q for block in model.blocks], size.head_dim)
    model.to(dtype)
    plain, model.rope, watchers = [b.attn1.processor for b in model.blocks], LaterRope(model.rope), []
    noise = noise_of(batch, frames, dtype, size).transpose(1, 2)
    text = Text(dtype)(["a" * (3 + i) for i in range(batch)])["prompt_embeds"]
    other = Text(dtype)(["b" * (30 + i) for i in range(batch)])["prompt_embeds"]
    texts = dict(calls=[text, other], batch=[torch.cat([text, other])]).get(guidance, [text])

    @torch.no_grad()
    def run():
        caches = [ChunkCache(size.layers, *(n * size.frame for n in (SINKS, WINDOW, CHUNK))) for _ in texts]
        video = torch.zeros_like(noise)

        def call(x, timestep, frame, write):
            model.rope.start_frame, flows = frame, []
            for branch, (context, cache) in enumerate(zip(texts, caches)):
                cache.write = write
                for layer, block in enumerate(() if stock else model.blocks):
                    block.attn1.set_processor(KeepingProcessor(layer, cache, dispatch_attention_fn, watchers))
                for watcher in watchers:
                    watcher.tell(start=frame * size.frame, timestep=float(timestep), branch=branch)
                rows = torch.cat([x, x]) if guidance == "batch" else x
                out = model(hidden_states=rows, timestep=timestep.expand(len(rows)), encoder_hidden_states=context)
                flows += out.sample.split(batch)
            return flows[0] if guidance is None else flows[1] + 3.0 * (flows[0] - flows[1])

        for frame in range(0, frames, CHUNK):
            scheduler = FlowMatchEulerDiscreteScheduler(shift=5.0)
            scheduler.set_timesteps(len(STEPS))
            x = noise[:, :, frame:frame + CHUNK]
            for timestep in scheduler.timesteps:
                x = scheduler.step(call(x, timestep, frame, False), timestep, x, return_dict=False)[0]
            video[:, :, frame:frame + CHUNK] = x
            call(x, torch.tensor(0.0), frame, True)
        for block, processor in zip(model.blocks, plain):
            block.attn1.set_processor(processor)
        return video

    @contextlib.contextmanager
    def look(watcher):
        watchers.append(watcher)
        try:
            yield
        finally:
            watchers.remove(watcher)

    return Loop("diffusers Wan", model, run, "told by the caller: the model's call has no place", look, size)
