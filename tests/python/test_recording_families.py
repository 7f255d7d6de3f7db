"""blockscope.record() of what model families do differently: soft caps and sliding windows (Gemma 2), sinks (gpt-oss),
logits that predict the next position (Dream). Compared with: float64, and the logits that the loop itself saw."""

import threading

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import PROMPT, check_array, rows_of, split  # noqa: E402

SMALL = dict(vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=256, initializer_range=0.3)


def gemma(implementation):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(7)
    config = Gemma2Config(**SMALL, attn_implementation=implementation, attn_logit_softcapping=5.0, sliding_window=12,
                          query_pre_attn_scalar=9)
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("implementation", ["eager", "flex_attention"])
def test_soft_caps_and_sliding_windows(tmp_path, implementation):
    """Layers with a window keep the last 12 keys alone, the others all; the scale isn't that of the head."""
    model = gemma(implementation)
    kept = {}  # by layer: queries of the last pass, keys and values of every one

    def keep(name, index):
        def hook(module, args, output):
            kept.setdefault(index, {}).setdefault(name, []).append(output)
        return hook

    hooks = [getattr(layer.self_attn, name).register_forward_hook(keep(name, i))
             for i, layer in enumerate(model.model.layers) for name in ("q_proj", "k_proj", "v_proj")]
    rotary = []
    hooks.append(model.model.rotary_emb.register_forward_hook(lambda module, args, output: rotary.append(output)))
    prompt = torch.tensor([[5 * i % 90 for i in range(20)]])
    path = tmp_path / "run.h5"
    with torch.compiler.set_stance("force_eager"):
        plain = models.decode_tokens(model, prompt, 8)
        kept.clear()
        rotary.clear()
        with blockscope.record(model, path, level="full", array_type="f32", set_size=4) as run:
            recorded = models.decode_tokens(model, prompt, 8)
            run.end_sequence(recorded)
    for hook in hooks:
        hook.remove()
    assert torch.equal(plain, recorded)

    def turned(rows, step):  # [1, T, heads * 16] -> [heads, T, 16]
        cos, sin = (x[0].double() for x in rotary[step])
        rows = rows.double()[0].view(rows.shape[1], -1, 16).transpose(0, 1)
        a, b = rows.chunk(2, -1)
        return (rows * cos + torch.cat([-b, a], -1) * sin).detach().numpy()

    with h5py.File(path) as file:
        assert file.attrs["softmax_scale"] == pytest.approx(1 / 3)
        for row in range(1, rows_of(file)):
            for layer in range(4):
                mine = kept[layer]
                q = turned(mine["q_proj"][row], row)
                k = np.concatenate([turned(x, i) for i, x in enumerate(mine["k_proj"][:row + 1])], 1)
                v = np.concatenate([x.double()[0].view(x.shape[1], -1, 16).transpose(0, 1).detach().numpy()
                                    for x in mine["v_proj"][:row + 1]], 1)
                first = max(0, k.shape[1] - 12) if model.config.layer_types[layer] == "sliding_attention" else 0
                inside = np.arange(k.shape[1] - first) == k.shape[1] - first - 1
                found = split(q * 4 / 3, k[:, first:], v[:, first:], inside, lambda s, head: 5 * np.tanh(s / 5))
                for name, value in zip(("external", "lse_external", "internal", "lse_internal"), found):
                    check_array(name, file["/attention/" + name][row, layer], value, 2e-5)
                topk = file["/sets/topk"][row, layer]
                assert topk.min() >= first  # absolute positions
                assert np.array_equal(file["/sets/topk_token"][row, layer][:, 0], topk)  # of the block's one token
        windows = {kind for kind in model.config.layer_types}
        assert windows == {"sliding_attention", "full_attention"}


def test_sinks_are_refused(tmp_path):
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(7)
    config = GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, attn_implementation="eager")
    model = GptOssForCausalLM(config).eval()
    with pytest.raises(blockscope.UsageError, match="GptOssAttention: attention sinks aren't recorded"):
        with blockscope.record(model, tmp_path / "run.h5"):
            models.decode_tokens(model, torch.tensor([[3, 14, 15, 9]]), 3)
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    assert "eager" not in ALL_ATTENTION_FUNCTIONS


def test_logits_that_predict_the_next_position(tmp_path):
    """Dream's: position p is predicted by the logits of p - 1; the block's first by those before it."""
    model = models.PlainModel("needle-bidirectional")
    mask, size, prompt = model.config.mask_token_id, 16, PROMPT[:40]
    path, seen = tmp_path / "run.h5", []
    ids = torch.tensor([prompt + [mask] * 32])
    with torch.no_grad(), blockscope.record(model, path, block_length=size, logit_shift=1, level="summary") as run:
        for start in (40, 56):
            while (ids[:, start:start + size] == mask).any():
                logits = model(ids).logits
                shifted = torch.cat([logits[:, :1], logits[:, :-1]], 1)[:, start:start + size]
                before = ids[:, start:start + size].clone()
                ids[:, start:start + size] = models.fill(before, shifted, mask, 4)
                seen.append((shifted[0].double(), before[0]))
        run.end_sequence(ids)
    with h5py.File(path) as file:
        count = rows_of(file)
        assert count == len(seen) == 8 and file["/model"].attrs["logit_shift"] == 1
        for row, (logits, before) in enumerate(seen):
            probability = logits.softmax(-1)
            assert file["/prediction/token"][row].tolist() == logits.argmax(-1).tolist()
            check_array("confidence", file["/prediction/confidence"][row], probability.max(-1).values, 1e-5)
            first = seen[row // 4 * 4][0]
            kl = (first.softmax(-1) * (first.log_softmax(-1) - logits.log_softmax(-1))).sum(-1)
            kl = np.where(before == mask, kl, np.nan) if row % 4 else np.full(size, np.nan)
            check_array("kl", file["/prediction/kl_step1"][row], kl, 1e-4)
        tokens = file["/frames/token"][:]
        confidence = file["/frames/confidence"][:]
        position = file["/frames/position"][:]
        assert len(tokens) == 32
        for token, value, at, row in zip(tokens, confidence, position, np.arange(32) // 4):
            assert token == ids[0, 40 + at]
            assert value == pytest.approx(float(seen[row][0][at % size].softmax(-1)[token]), rel=1e-4)


def test_one_model_in_two_threads_is_refused(tmp_path):
    model = models.PlainModel("needle")
    entered, go = threading.Event(), threading.Event()

    def wait(*ignored):
        entered.set()
        go.wait(60)

    hook = model.layers[2].register_forward_hook(wait)
    ids = torch.full((1, 16), model.config.mask_token_id)
    with blockscope.record(model, tmp_path / "run.h5", block_length=16) as run:
        other = threading.Thread(target=lambda: model(ids))
        other.start()
        entered.wait(60)
        with pytest.raises(blockscope.UsageError, match="two threads run the recorded model"):
            model(ids)
        go.set()
        other.join()
        hook.remove()
        run.end_sequence(torch.zeros(1, 16, dtype=torch.long))
    assert blockscope.open(tmp_path / "run.h5").num_rows == 1


OLDER = {  # what each does between its products, in transformers' own code
    "Bloom": dict(hidden_size=48, n_layer=2, n_head=4, attn_implementation="eager"),  # baddbmm of ALiBi
    "CodeGen": dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64),  # divided after the mask
    "GPTNeo": dict(hidden_size=48, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8,
                   max_position_embeddings=64, attn_implementation="eager"),  # torch.where
    "XGLM": dict(d_model=48, num_layers=2, attention_heads=4, ffn_dim=64, max_position_embeddings=64)}  # bmm, max


@pytest.mark.parametrize("name", OLDER)
@torch.no_grad()
def test_attention_of_older_models(tmp_path, name):
    """The judge: the attention weights that the model itself hands out."""
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, name + "Config")(vocab_size=97, bos_token_id=1, eos_token_id=2, **OLDER[name])
    model = getattr(transformers, name + "ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.2)
    prompt, path = torch.tensor([[5 * i % 90 for i in range(12)], [7 * i % 90 for i in range(12)]]), tmp_path / "run.h5"
    plain = models.decode_tokens(model, prompt, 5)
    with blockscope.record(model, path, array_type="f32", set_size=4) as run:
        assert torch.equal(models.decode_tokens(model, prompt, 5), plain)
        run.end_sequence(plain)
    weights = torch.stack(model(plain, output_attentions=True).attentions).double().numpy()  # [L, S, H, T, N]
    with h5py.File(path) as file:
        count = rows_of(file)
        judged = np.flatnonzero(file["/steps/kind"][:count] == 1)
        assert len(judged) == 8
        for row in judged:
            at = file["/steps/context_length"][row]  # the position of the query, whose own key is internal
            own = weights[:, file["/steps/sequence"][row], :, at, :at + 1]
            difference = file["/attention/lse_external"][row] - file["/attention/lse_internal"][row]
            outside = own[..., :-1].sum(-1, keepdims=True)
            check_array("share", 1 / (1 + np.exp(-difference.astype(float))), outside, 1e-5)
            best = np.sort(own[..., :-1] / outside)[..., :-5:-1]
            check_array("probability", file["/sets/probability"][row], best, 1e-5)
