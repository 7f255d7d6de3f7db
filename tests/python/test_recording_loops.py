"""blockscope.record() over loops of other shapes: caches whose entries are replaced, rows left out, canvases without
masks. Judged by the witness of recording_witness.py, which sees queries, keys and values on its own way and takes
tokens and blocks from the loop's local variables."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
transformers = pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recording_witness as witness  # noqa: E402
from recording_witness import COMMIT, DENOISE, PREFILL, Pass  # noqa: E402


# --- transformers' DiffusionGemma -------------------------------------------------------------------------------------

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


class Canvases(witness.Witness):
    """Of DiffusionGemma's generate(): calls of the encoder and of the decoder; the capped logits are worked out here."""

    def __init__(self, model, eager):
        inner = model.model
        super().__init__(model, inner.decoder.layers, ["generate", "_denoising_step"], self.look,
                         eager=eager, entrances=[inner.encoder, inner.decoder])
        self._decoder = inner.decoder
        self._hooks.append(model.lm_head.register_forward_hook(self.keep_logits))

    def look(self, module, args, kwargs, variables):
        known = variables["generate"]["input_ids"].numpy()
        if module is self._decoder:
            canvas = variables["_denoising_step"]["current_canvas"].numpy()
            length = known.shape[1]
            return Pass(DENOISE, np.concatenate([known, canvas], 1), length, span=(length, length + CANVAS))
        begin = known.shape[1] - kwargs["input_ids"].shape[1]
        if begin == 0:
            return Pass(PREFILL, known.copy(), span=(0, known.shape[1]))
        return Pass(COMMIT, known.copy(), begin, span=(begin, known.shape[1]))

    def keep_logits(self, module, args, output):
        self.passes[-1].logits = 30 * np.tanh(output.detach().double().numpy() / 30)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("batch, gen_length", [(1, None), (2, 3 * CANVAS)])
def test_diffusion_gemma(tmp_path, implementation, batch, gen_length):
    """A causal encoder with a cache and a canvas that sees itself and the cache, without masks; a window of 12 keys in
    two of the layers. Its generate() calls model.forward itself, past all hooks."""
    model = diffusion_gemma(implementation)
    prompt = torch.tensor([[(5 + s) * i % 90 + 3 for i in range(10)] for s in range(batch)])
    plain = generate_canvases(model, prompt)
    path = tmp_path / "run.h5"
    sees = Canvases(model, implementation == "eager")
    with sees, blockscope.record(model, path, array_type="f32", set_size=8, gen_length=gen_length) as run:
        ids = generate_canvases(model, prompt)
        run.end_sequence(ids)
    assert torch.equal(plain, ids)
    assert [one.kind for one in sees.passes] == [PREFILL, *[DENOISE] * 5, COMMIT, *[DENOISE] * 5, COMMIT, *[DENOISE] * 5]
    largest = witness.compare(path, sees, ids.numpy(), size=CANVAS, mask=None, kv_heads=2, layers=3,
                              bidirectional=False, scale=1.0)
    assert largest.rows == 18 * batch and largest.sets == 15 * 3 * 2 * batch
    assert "forward" not in model.__dict__  # all is as it was
