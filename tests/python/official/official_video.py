"""Continuous video models of others with small random weights, on the CPU. Here: LongLive (NVlabs/LongLive, branch
v1.0). official_flashblock.py: FlashBlock's video code, which is LongLive with reuse. official_wan.py: diffusers' Wan.

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

CHANNELS, TEXT, TEXT_DIM, PATCH = 4, 9, 20, 2
SINKS, WINDOW, CHUNK, FRAMES = 3, 9, 3, 21  # frames; the window holds the chunk's own
STEPS = [1000, 750, 500, 250]  # before LongLive warps them


@dataclasses.dataclass
class Size:
    layers: int = 3
    heads: int = 4
    head_dim: int = 32
    height: int = 8  # of the latent
    width: int = 6
    sharp: tuple = (0.05, 0.1, 0.4, 2.4)  # how peaked each head is

    @property
    def frame(self):
        """Tokens of one frame."""
        return (self.height // PATCH) * (self.width // PATCH)


SMALL = Size()


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
    size: Size


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


def small_pipeline(pipeline, size):
    """The clone's pipeline fixes the shapes of the caches; this one has ours."""

    class Small(pipeline):
        def _initialize_kv_cache(self, batch_size, dtype, device, kv_cache_size_override=None):
            shape = [batch_size, kv_cache_size_override, size.heads, size.head_dim]
            self.kv_cache1 = [dict(k=torch.zeros(shape, dtype=dtype), v=torch.zeros(shape, dtype=dtype),
                                   global_end_index=torch.tensor([0]), local_end_index=torch.tensor([0]))
                              for _ in range(size.layers)]

        def _initialize_crossattn_cache(self, batch_size, dtype, device):
            self.crossattn_cache = [dict(k=None, v=None, is_init=False) for _ in range(size.layers)]

    return Small


def noise_of(batch, frames, dtype, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = batch, frames, CHANNELS, size.height, size.width
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def clone_pipeline(folder, dtype, seed, context_noise, size, module="causal_model"):
    """(pipeline, the clone's module of the causal model)."""
    with imported(folder) as load:
        causal, base = load(f"wan.modules.{module}"), load("wan.modules.model")
        wrapping, loop = load("utils.wan_wrapper"), load("pipeline.causal_inference")
    model = causal.CausalWanModel(
        text_len=TEXT, in_dim=CHANNELS, out_dim=CHANNELS, dim=size.heads * size.head_dim,
        ffn_dim=2 * size.heads * size.head_dim, freq_dim=32, text_dim=TEXT_DIM, num_heads=size.heads,
        num_layers=size.layers, local_attn_size=SINKS + WINDOW, sink_size=SINKS)
    own.random_weights(model, seed, [block.self_attn.norm_q for block in model.blocks], size.head_dim,
                       size.sharp)
    causal.attention = base.flash_attention = exact
    kwargs = types.SimpleNamespace(local_attn_size=SINKS + WINDOW)
    settings = types.SimpleNamespace(denoising_step_list=STEPS, warp_denoising_step=True, num_frame_per_block=CHUNK,
                                     model_kwargs=kwargs, context_noise=context_noise)
    with contextlib.redirect_stdout(io.StringIO()):
        pipeline = small_pipeline(loop.CausalInferencePipeline, size)(
            settings, "cpu", generator=Wrapper(wrapping.WanDiffusionWrapper, wrapping.FlowMatchScheduler, model),
            text_encoder=Text(dtype), vae=NoPixels())
    pipeline.num_transformer_blocks, pipeline.frame_seq_length = size.layers, size.frame
    pipeline.generator.to(dtype)
    return pipeline, causal


def looking(model, causal):
    """Sees passes by a hook of the model, and the first attention that each self-attention module asks for."""
    @contextlib.contextmanager
    def look(watcher):
        waiting, before = [], causal.attention

        def begin(_, args, kwargs):
            watcher.tell(start=kwargs["current_start"], timestep=kwargs["t"][0, 0].item())

        def attention(q, k, v, **options):
            out = before(q, k, v, **options)
            if waiting:
                first = out[0] if isinstance(out, tuple) else out
                watcher.see(waiting.pop(), *(x.transpose(1, 2) for x in (q, k, v, first)))
            return out

        hooks = [model.register_forward_pre_hook(begin, with_kwargs=True)]
        hooks += [block.self_attn.register_forward_pre_hook(lambda *_, i=i: waiting.append(i))
                  for i, block in enumerate(model.blocks)]
        causal.attention = attention
        try:
            yield
        finally:
            causal.attention = before
            for hook in hooks:
                hook.remove()

    return look


@torch.no_grad()
def quietly(pipeline, noise, **options):
    torch.manual_seed(7)  # the loop draws new noise for each step
    prompts = options.pop("text_prompts", ["a" * (3 + i) for i in range(len(noise))])
    synchronize, torch.cuda.synchronize = torch.cuda.synchronize, lambda: None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return pipeline.inference(noise=noise, text_prompts=prompts, **{**options, "return_latents": True})
    finally:
        torch.cuda.synchronize = synchronize


def longlive_loop(clone, dtype=torch.float32, batch=1, seed=1, context_noise=0, frames=FRAMES, size=SMALL,
                  infinite=False):
    """clone: work tree of NVlabs/LongLive, branch v1.0. infinite: its use_infinite_attention, which turns all keys anew
    at each pass; its code takes a batch of one."""
    module = "causal_model_infinity" if infinite else "causal_model"
    pipeline, causal = clone_pipeline(clone, dtype, seed, context_noise, size, module)
    noise, model = noise_of(batch, frames, dtype, size), pipeline.generator.model
    return Loop("LongLive", model, lambda: quietly(pipeline, noise)[1], "current_start= and t= of the model's call",
                looking(model, causal), size)
