"""FlashBlock's video code (Caesarhhh/Flash_Block at a322fb8, video/) on the CPU: calibration, and a run with reuse."""

import ast
import contextlib
import functools
import io
import types

import torch
from official_video import FRAMES, SMALL, clone_pipeline, looking, noise_of, quietly


def with_lse(q, k, v):
    """[S, T, H, D] -> the same and L as the kernels lay it out, [H, S * T]."""
    scores = torch.einsum("sthd,snhd->hstn", q, k) * q.shape[-1] ** -0.5
    if k.shape[1] == 0:
        return torch.zeros_like(q), scores.new_full(scores.shape[:3], -torch.inf).flatten(1)
    return torch.einsum("hstn,snhd->sthd", scores.softmax(-1), v), scores.logsumexp(-1).flatten(1)


def kernel(late):
    """Exact torch with the contract of FlashBlock's `attention`. late(keys, chunk): as the released kernel's border."""
    def attention(q, k, v, block_size=0, head_mask=None, return_hist=False, attn_output_past=None, logsumexp=None):
        out, lse = with_lse(q, k, v)
        if not return_hist:
            return out
        if block_size == 0:
            return out, lse
        border = k.shape[1] - block_size + late(k.shape[1], block_size)
        past, past_lse = with_lse(q, k[:, :border], v[:, :border])
        if attn_output_past is None:
            return out, lse, past, past_lse
        kept, kept_lse = attn_output_past.clone(), logsumexp.clone()
        kept[:, :, head_mask], kept_lse[head_mask] = past[:, :, head_mask], past_lse[head_mask]
        inside, inside_lse = with_lse(q, k[:, border:], v[:, border:])
        share = torch.sigmoid(kept_lse - inside_lse).view(len(lse), *q.shape[:2]).permute(1, 2, 0)[..., None]
        merged = kept * share + inside * (1 - share)
        return torch.where(head_mask[:, None], out, merged), lse, kept, kept_lse

    return attention


class Drawing:
    """torch, except that the script's noise has our size."""

    def __init__(self, noise):
        self.noise = noise

    def __getattr__(self, name):
        return getattr(torch, name)

    def randn(self, *_, **__):
        return self.noise


class FlashBlock:
    """The official calibration, the lines of inference.py themselves, and runs with and without reuse. clone: work tree
    of the repository. late: the border between history and chunk, as `kernel` takes it."""

    def __init__(self, clone, dtype=torch.float64, batch=2, seed=1, frames=FRAMES, size=SMALL, late=lambda *_: 0):
        self.pipeline, causal = clone_pipeline(clone / "video", dtype, seed, 0, size)
        causal.attention = kernel(late)
        self.model, self.noise = self.pipeline.generator.model, noise_of(batch, frames, dtype, size)
        self.look, self.settings = looking(self.model, causal), None
        tree = ast.parse((clone / "video/inference.py").read_text())
        names = [getattr(node, "name", None) or ast.unparse(node).split(" = ")[0] for node in tree.body]
        first, last = names.index("parse_int_list"), names.index("print('calibration done.')")
        self.script = compile(ast.Module(tree.body[first:last], []), "inference.py", "exec")

    def run(self, **options):
        return quietly(self.pipeline, self.noise, **options)

    def dense(self):
        return self.run()[1]

    def calibrate(self, gamma, bound, steps="1,2,3,4"):
        """[(chunk's start, step, layer, cos, |dL|, mask)] of each provisional decision. The modules keep the result."""
        found, hooks = [], []

        def inference(noise, text_prompts, sparsity_params, **_):
            self.settings = sparsity_params
            return self.run(sparsity_params=sparsity_params)

        def after(module, args, *_, layer):
            step = self.settings["denoising_step"]
            if step in module.coses and module.coses[step] is not module.seen:
                module.seen = module.coses[step]
                found.append((args[6], step, layer, *(x[step].double().numpy() for x in (
                    module.coses, module.lse_deltas)), module.head_mask[step].numpy()))

        for layer, block in enumerate(self.model.blocks):
            block.self_attn.seen = None
            hooks.append(block.self_attn.register_forward_hook(functools.partial(after, layer=layer)))
        args = types.SimpleNamespace(reuse_a=True, sparsity_steps=steps, head_sim_th=gamma, head_sim_th_by_step="",
                                     head_lse_th=bound, calibration_samples=len(self.noise), use_cache=False,
                                     profile_attention_core=False)
        shell = types.SimpleNamespace(inference=inference, generator=self.pipeline.generator)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(self.script, dict(args=args, pipeline=shell, torch=Drawing(self.noise), device="cpu",
                                   low_memory=False))
        for hook in hooks:
            hook.remove()
        return found

    def final(self):
        """(layer, step) -> means cos, lse, cos_in and the final mask, as the modules hold them."""
        return {(layer, step): dict(cos=m.coses[step].double().numpy(), lse=m.lse_deltas[step].double().numpy(),
                                    cos_in=m.coses_in[step].double().numpy(), mask=m.head_mask[step].numpy())
                for layer, m in enumerate(block.self_attn for block in self.model.blocks) for step in m.cos_sums}

    def reuse(self):
        """The video's latent with the masks that the modules hold."""
        self.settings.update(is_calibrate=False, is_sparsity=True)
        return self.run(sparsity_params=self.settings)[1]
