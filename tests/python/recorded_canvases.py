"""transformers' DiffusionGemma with random weights: an encoder and a decoder that share a cache. And an observer of its
loop."""

import numpy as np
import torch

import recording_observer as observer
from recording_observer import COMMIT, DENOISE, PREFILL, Pass

CANVAS = 8


def diffusion_gemma(implementation="sdpa", **more):
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig

    torch.manual_seed(3)
    options = dict(head_dim=16, global_head_dim=16, num_key_value_heads=2, num_global_key_value_heads=2) | more
    text = DiffusionGemmaTextConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        sliding_window=12, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        initializer_range=0.3, num_experts=4, top_k_experts=2, moe_intermediate_size=16, pad_token_id=0, eos_token_id=1,
        bos_token_id=2, **options)
    config = DiffusionGemmaConfig(text_config=text, vision_config=None, canvas_length=CANVAS)
    config._attn_implementation = implementation
    return DiffusionGemmaForBlockDiffusion._from_config(config, attn_implementation=implementation).float().eval()


def generate_canvases(model, prompt, count=3):
    from transformers import DiffusionGemmaGenerationConfig

    torch.manual_seed(11)
    config = DiffusionGemmaGenerationConfig(max_new_tokens=count * CANVAS, max_denoising_steps=5, eos_token_id=None,
                                            pad_token_id=0)
    return model.generate(prompt, generation_config=config).sequences


class Canvases(observer.Observer):
    """Of DiffusionGemma's generate(): calls of the encoder and of the decoder; capped logits are worked out here."""

    def __init__(self, model, eager):
        inner = model.model
        super().__init__(model, inner.decoder.layers, ["generate", "_denoising_step"], self.look,
                         eager=eager, entrances=[inner.encoder, inner.decoder])
        self._decoder = inner.decoder
        self._hooks.append(model.lm_head.register_forward_hook(self.keep_logits))

    def look(self, module, args, kwargs, variables):
        known = variables["generate"]["input_ids"].numpy()
        if module is self._decoder:
            step = variables["_denoising_step"]
            canvas, length = step["current_canvas"].numpy(), known.shape[1]
            if step["self_conditioning_logits"] is None:
                self._noise = np.ones(canvas.shape, bool)
            else:
                there = ~step["sampler"].accepted_token_mask.numpy()
                self._noise = np.where(step["finished_denoising"].numpy()[:, None], self._noise, there)
            return Pass(DENOISE, np.concatenate([known, canvas], 1), length, span=(length, length + CANVAS),
                        noise=self._noise)
        begin = known.shape[1] - kwargs["input_ids"].shape[1]
        if begin == 0:
            return Pass(PREFILL, known.copy(), span=(0, known.shape[1]))
        return Pass(COMMIT, known.copy(), begin, span=(begin, known.shape[1]))

    def keep_logits(self, module, args, output):
        self.passes[-1].logits = 30 * np.tanh(output.detach().double().numpy() / 30)
