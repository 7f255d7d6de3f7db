"""Continuous video models of others with small random weights, on the CPU: LongLive (NVlabs/LongLive, branch v1.0),
FlashBlock's video code (Caesarhhh/Flash_Block), which is LongLive with reuse, and diffusers' Wan transformer.

Their code runs as it is: models, wrapper, schedule and loop over chunks. Replacements are described where they are
made. Needs diffusers, einops and ftfy with what these need."""

import contextlib
import dataclasses
import importlib
import io
import sys
import types
from typing import Any

import torch
import video_models as own
from torch.nn import functional as F

LAYERS, HEADS, HEAD_DIM, CHANNELS, TEXT, TEXT_DIM = 3, 4, 32, 4, 9, 20
HEIGHT, WIDTH, PATCH = 8, 6, 2  # of the latent
FRAME = (HEIGHT // PATCH) * (WIDTH // PATCH)  # tokens
SINKS, WINDOW, CHUNK, FRAMES = 3, 9, 3, 21  # frames; the window holds the chunk's own
STEPS = [1000, 750, 500, 250]  # before LongLive warps them


@dataclasses.dataclass
class Loop:
    """model: what the loop calls. run(): the video's latent, with the same noise each time. told: how a pass says its
    chunk and step. look(function): a context in which function(start, timestep) is called before each pass and
    function.see(layer, q, k, v, out), [S, H, T, D], at each self-attention."""

    name: str
    model: Any
    run: Any
    told: str
    look: Any
    chunk: int = CHUNK * FRAME
    sinks: int = SINKS * FRAME
    frame: int = FRAME
    official: Any = None  # the modules of the clone


# --- the modules of a clone -------------------------------------------------------------------------------------------


ROOTS = ("wan", "utils", "pipeline", "vis_tensor")


@contextlib.contextmanager
def imported(folder):
    """The clone's packages by their own names, which LongLive and FlashBlock share. Their __init__ files import
    training and other models, so empty packages replace those. Some files ask for the CUDA device when they are
    imported, and get 0. vis_tensor draws."""
    def of_clone(name):
        return name.split(".")[0] in ROOTS

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if of_clone(name)}
    for name in ("wan", "wan.modules", "utils", "pipeline"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    drawing = types.ModuleType("vis_tensor")
    drawing.visualize_bool_tensor = None
    sys.modules["vis_tensor"] = drawing
    sys.path.insert(0, str(folder))
    device, torch.cuda.current_device = torch.cuda.current_device, lambda: 0
    try:
        yield importlib.import_module
    finally:
        torch.cuda.current_device = device
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if of_clone(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def exact(q, k, v, **_):
    """[S, T, H, D]. In place of flash-attn, whose stand-in in the clones computes in bfloat16."""
    return own.attend(q, k, v)


class Wrapper:
    """Makes the clone's WanDiffusionWrapper around a small model; its constructor loads a checkpoint."""

    def __new__(cls, wrapper, scheduler, model):
        made = wrapper.__new__(wrapper)
        torch.nn.Module.__init__(made)
        made.model, made.uniform_timestep, made.seq_len = model, False, 32760
        made.scheduler = scheduler(shift=5.0, sigma_min=0.0, extra_one_step=True)
        made.scheduler.set_timesteps(1000, training=True)
        made.post_init()
        return made


class Text(torch.nn.Module):
    """A fixed random embedding of each prompt, in place of UMT5."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, text_prompts):
        rows = [torch.randn(TEXT, TEXT_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(len(prompt)))
                for prompt in text_prompts]
        return dict(prompt_embeds=torch.stack(rows).to(self.dtype))


class NoPixels:
    def decode_to_pixel(self, latent, use_cache=False):
        return latent.clone()


def small_pipeline(pipeline):
    """The clone's pipeline fixes the number of layers, heads and tokens of a frame; this one has ours."""

    class Small(pipeline):
        def _initialize_kv_cache(self, batch_size, dtype, device, kv_cache_size_override=None):
            size = [batch_size, kv_cache_size_override, HEADS, HEAD_DIM]
            self.kv_cache1 = [dict(k=torch.zeros(size, dtype=dtype), v=torch.zeros(size, dtype=dtype),
                                   global_end_index=torch.tensor([0]), local_end_index=torch.tensor([0]))
                              for _ in range(LAYERS)]

        def _initialize_crossattn_cache(self, batch_size, dtype, device):
            self.crossattn_cache = [dict(k=None, v=None, is_init=False) for _ in range(LAYERS)]

    return Small


def noise_of(batch, frames, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, CHANNELS, HEIGHT, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def clone_pipeline(folder, dtype, seed, context_noise):
    """(pipeline, the clone's module of the causal model)."""
    with imported(folder) as load:
        causal, base = load("wan.modules.causal_model"), load("wan.modules.model")
        wrapping, loop = load("utils.wan_wrapper"), load("pipeline.causal_inference")
    model = causal.CausalWanModel(
        text_len=TEXT, in_dim=CHANNELS, out_dim=CHANNELS, dim=HEADS * HEAD_DIM, ffn_dim=2 * HEADS * HEAD_DIM,
        freq_dim=32, text_dim=TEXT_DIM, num_heads=HEADS, num_layers=LAYERS, local_attn_size=SINKS + WINDOW,
        sink_size=SINKS)
    own.random_weights(model, seed, [block.self_attn.norm_q for block in model.blocks], HEAD_DIM)
    causal.attention = base.flash_attention = exact
    kwargs = types.SimpleNamespace(local_attn_size=SINKS + WINDOW)
    settings = types.SimpleNamespace(denoising_step_list=STEPS, warp_denoising_step=True, num_frame_per_block=CHUNK,
                                     model_kwargs=kwargs, context_noise=context_noise)
    with contextlib.redirect_stdout(io.StringIO()):
        pipeline = small_pipeline(loop.CausalInferencePipeline)(
            settings, "cpu", generator=Wrapper(wrapping.WanDiffusionWrapper, wrapping.FlowMatchScheduler, model),
            text_encoder=Text(dtype), vae=NoPixels())
    pipeline.num_transformer_blocks, pipeline.frame_seq_length = LAYERS, FRAME
    pipeline.generator.to(dtype)
    return pipeline, causal


def looking(model, causal):
    """Sees passes by a hook of the model, and attention where the clone calls it."""
    @contextlib.contextmanager
    def look(watcher):
        layer, before = [0], causal.attention

        def begin(_, args, kwargs):
            layer[0] = 0
            watcher.tell(start=kwargs["current_start"], timestep=kwargs["t"][0, 0].item())

        def attention(q, k, v, **options):
            out = before(q, k, v, **options)
            watcher.see(layer[0], *(x.transpose(1, 2) for x in (q, k, v, out)))
            layer[0] += 1
            return out

        hook = model.register_forward_pre_hook(begin, with_kwargs=True)
        causal.attention = attention
        try:
            yield
        finally:
            hook.remove()
            causal.attention = before

    return look


@torch.no_grad()
def quietly(pipeline, noise, **options):
    torch.manual_seed(7)  # the loop draws new noise for each step
    prompts = ["a" * (3 + i) for i in range(len(noise))]
    with contextlib.redirect_stdout(io.StringIO()):
        return pipeline.inference(noise=noise, text_prompts=prompts, return_latents=True, **options)[1]


def longlive_loop(clone, dtype=torch.float32, batch=1, seed=1, context_noise=0, frames=FRAMES):
    """clone: work tree of NVlabs/LongLive, branch v1.0."""
    pipeline, causal = clone_pipeline(clone, dtype, seed, context_noise)
    noise, model = noise_of(batch, frames, dtype), pipeline.generator.model
    return Loop("LongLive", model, lambda: quietly(pipeline, noise), "current_start= and t= of the model's call",
                looking(model, causal), official=types.SimpleNamespace(pipeline=pipeline, causal=causal))


# --- diffusers --------------------------------------------------------------------------------------------------------


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


def wan_loop(dtype=torch.float32, batch=1, seed=2, frames=FRAMES, guidance=None):
    """guidance: None, "calls" (two calls each step) or "batch" (a doubled batch)."""
    from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    from wan_like_models import ChunkCache

    model = WanTransformer3DModel(
        patch_size=(1, PATCH, PATCH), num_attention_heads=HEADS, attention_head_dim=HEAD_DIM, in_channels=CHANNELS,
        out_channels=CHANNELS, text_dim=TEXT_DIM, freq_dim=32, ffn_dim=2 * HEADS * HEAD_DIM, num_layers=LAYERS,
        rope_max_seq_len=64)
    own.random_weights(model, seed, [block.attn1.norm_q for block in model.blocks], HEAD_DIM)
    model.to(dtype)
    plain, model.rope, watchers = [b.attn1.processor for b in model.blocks], LaterRope(model.rope), []
    noise = noise_of(batch, frames, dtype).transpose(1, 2)
    text = Text(dtype)(["a" * (3 + i) for i in range(batch)])["prompt_embeds"]
    other = Text(dtype)(["b" * (30 + i) for i in range(batch)])["prompt_embeds"]
    texts = dict(calls=[text, other], batch=[torch.cat([text, other])]).get(guidance, [text])

    @torch.no_grad()
    def run():
        caches = [ChunkCache(LAYERS, SINKS * FRAME, WINDOW * FRAME, CHUNK * FRAME) for _ in texts]
        video = torch.zeros_like(noise)

        def call(x, timestep, frame, write):
            model.rope.start_frame, flows = frame, []
            for branch, (context, cache) in enumerate(zip(texts, caches)):
                cache.write = write
                for layer, block in enumerate(model.blocks):
                    block.attn1.set_processor(KeepingProcessor(layer, cache, dispatch_attention_fn, watchers))
                for watcher in watchers:
                    watcher.tell(start=frame * FRAME, timestep=float(timestep), branch=branch)
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

    return Loop("diffusers Wan", model, run, "told by the caller: the model's call has no place", look)
