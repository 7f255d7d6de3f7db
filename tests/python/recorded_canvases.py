"""transformers' DiffusionGemma with random weights: an encoder and a decoder that share a cache."""

import torch

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
