"""The official SDAR code on a CPU, for sdar_pair.py: generate.py and modeling_sdar.py of a work tree of JetAstra/SDAR,
imported and not changed. Functions that it lacks on a CPU are replaced by torch's fastest: flash-attn's attention by
torch's with the query heads of a KV head folded into rows (keys and values are not repeated), its RMSNorm by torch's.
Its prefill passes torch a mask of three dimensions, for which torch has no fast kernel. Here the mask gets a fourth
dimension, unless `as_published`.

Needs transformers 4.52.4, torch, einops and safetensors.
"""

import contextlib
import importlib
import importlib.machinery
import io
import json
import pathlib
import sys
import time
import types

import torch
import transformers
from torch.nn import functional as F


def _folded_attention(query, key, value, causal=False, softmax_scale=None):
    """flash_attn_func: [batch, rows, heads, head_dim] each."""
    batch, rows, heads, head_dim = query.shape
    kv_heads = key.shape[2]
    folded = query.view(batch, rows, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(folded, key.transpose(1, 2), value.transpose(1, 2), scale=softmax_scale)
    return out.view(batch, kv_heads, -1, rows, head_dim).permute(0, 3, 1, 2, 4).reshape(batch, rows, heads, head_dim)


def _masked_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    """The prefill's call of scaled_dot_product_attention, [batch, heads, rows, head_dim] each."""
    groups = query.shape[1] // key.shape[1]
    return F.scaled_dot_product_attention(query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1),
                                          attn_mask.unsqueeze(1), scale=scale)


def _rms_norm(x, weight, bias=None, eps=1e-6):
    return F.rms_norm(x, weight.shape, weight, eps)


def _stand_in(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # transformers checks that flash-attn has one
    vars(module).update(members)


def _import_code(repository):
    _stand_in("flash_attn", flash_attn_func=_folded_attention, flash_attn_varlen_func=None)
    _stand_in("flash_attn.bert_padding", index_first_axis=None, pad_input=None, unpad_input=None)
    _stand_in("flash_attn.ops")
    _stand_in("flash_attn.ops.triton")
    _stand_in("flash_attn.ops.triton.layer_norm", rms_norm_fn=_rms_norm)
    # Importing its loss needs a GPU; decoding does not use the loss.
    _stand_in("sdar_code")
    sys.modules["sdar_code"].__path__ = [str(repository / "training/model/SDAR-4B-Chat")]
    _stand_in("sdar_code.fused_linear_diffusion_cross_entropy", FusedLinearDiffusionCrossEntropyLoss=None)
    sys.path.insert(0, str(repository))
    transformers.utils.logging.set_verbosity_error()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints notes on undocumented arguments
        return importlib.import_module("generate"), importlib.import_module("sdar_code.modeling_sdar")


class Official:
    def __init__(self, repository: pathlib.Path, folder: pathlib.Path, dtype: torch.dtype, as_published=False):
        from safetensors.torch import load_file
        self.generate, modeling = _import_code(repository)
        if not as_published:
            modeling.F = types.SimpleNamespace(scaled_dot_product_attention=_masked_attention)
        self.config = json.loads((folder / "config.json").read_text())
        known = dict(sliding_window=None)
        known |= {k: v for k, v in self.config.items() if k not in ("architectures", "model_type", "torch_dtype")}
        torch.set_default_dtype(dtype)
        model = modeling.SDARForCausalLM(modeling.SDARConfig(**known, fuse_cross_entropy=False))
        torch.set_default_dtype(torch.float32)
        missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        self.model = model.eval()
        self._sample = self.generate.sample_with_temperature_topk_topp
        self.generate.sample_with_temperature_topk_topp = self._timed_sampler
        model.register_forward_pre_hook(lambda *_: setattr(self, "_begin", time.perf_counter()))
        model.register_forward_hook(lambda *_: self.forwards.append((self._begin, time.perf_counter())))

    def _timed_sampler(self, logits, **options):
        """The published sampler, timed. The best token and its probability then replace its result, so both sides decide
        the same. That greedy choice is timed separately and is not part of a step."""
        begin = time.perf_counter()
        self._sample(logits, **options)
        drawn = time.perf_counter()
        probability, token = F.softmax(logits, dim=-1).max(-1)
        self.sampling += drawn - begin
        self.greedy += time.perf_counter() - drawn
        return token, probability

    def prefill(self, prompt, block):
        """-> seconds of the pass over the whole blocks of the prompt, with logits as in the published code."""
        self.forwards, length = [], len(prompt) // block * block
        ids = torch.arange(length) // block
        with torch.no_grad():
            self.model(torch.tensor([prompt[:length]]), attention_mask=(ids[:, None] >= ids[None]).float()[None],
                       position_ids=torch.arange(length)[None], use_cache=True, store_kv=True,
                       past_key_values=self.generate.DynamicCache())
        return self.forwards[0][1] - self.forwards[0][0]

    def decode(self, prompt, gen_length, block):
        """One token a step. -> seconds of each part, counts and the tokens."""
        self.forwards, self.sampling, self.greedy = [], 0.0, 0.0
        tokens = self.generate.block_diffusion_generate(
            self.model, dict(input_ids=torch.tensor([prompt])), self.config["mask_token_id"], gen_length=gen_length,
            block_length=block, denoising_steps=block, remasking_strategy="low_confidence_static")
        end = time.perf_counter()
        passes = self.forwards
        result = dict(prefill_s=0.0)
        if len(prompt) >= block:
            (begin, start), passes = passes[0], passes[1:]
            result["prefill_s"] = start - begin
        else:
            start = passes[0][0]
        blocks = -(-(len(prompt) + gen_length) // block) - len(prompt) // block
        return result | dict(
            blocks_s=end - start - self.greedy, forward_s=sum(b - a for a, b in passes), sampling_s=self.sampling,
            greedy_s=self.greedy, block_passes=len(passes), denoising_passes=len(passes) - blocks,
            tokens=tokens[0].tolist())
