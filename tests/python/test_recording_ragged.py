"""blockscope.record() of a model whose layers differ in KV heads, head_dim and window, and whose canvases hold noise in
place of masks: transformers' DiffusionGemma. Each layer against float64 of what the model's attention got, and frames
against what its sampler accepted."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
transformers = pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recording_observer as observer  # noqa: E402
import recording_reference as reference  # noqa: E402
from recorded_canvases import CANVAS, Canvases, diffusion_gemma, generate_canvases  # noqa: E402
from recording_checks import rows_of  # noqa: E402
from recording_observer import DENOISE, Largest, step_of  # noqa: E402

KV_HEADS, CHANNELS, WINDOWS = [2, 2, 1], [16, 16, 32], [12, 12, 0]
K = 4


def ragged(implementation="sdpa"):
    return diffusion_gemma(implementation, head_dim=16, global_head_dim=32, num_key_value_heads=2,
                           num_global_key_value_heads=1)


def record(path, model, batch=1, count=3, **options):
    prompt = torch.tensor([[(5 + s) * i % 90 + 3 for i in range(10)] for s in range(batch)])
    plain = generate_canvases(model, prompt, count)
    sees = Canvases(model, model.config._attn_implementation == "eager")
    with sees, blockscope.record(model, path, array_type="f32", set_size=K, **options) as run:
        ids = generate_canvases(model, prompt, count)
        run.end_sequence(ids)
    assert torch.equal(plain, ids)
    return sees, ids.numpy()


def layer_alone(one, layer, slot):
    """reference.Step of one layer."""
    alone = observer.Pass(one.kind, one.tokens, one.block_start, span=one.span,
                          calls={0: one.calls[layer]}, noise=one.noise)
    return step_of(alone, slot, CANVAS, KV_HEADS[layer], 1, False, 1.0)


def check_padding(got, own):
    """got: [K or H, .., C] of a layer in the file; own: the lengths of its own."""
    inside = got[tuple(slice(length) for length in own)]
    rest = (got == -1) if got.dtype.kind == "i" else np.isnan(got)
    assert rest.sum() >= got.size - inside.size
    return inside


def check_layer(file, row, slot, layer, history, changed, inputs, masked, largest):
    now, dim, kv = history[-1], CHANNELS[layer], KV_HEADS[layer]
    for name, expected in (("/attention/external", now.external), ("/attention/internal", now.internal),
                           ("/query/query", now.q)):
        largest.check(name, check_padding(file[name][row, slot], (4, CANVAS, dim)), expected[0], 2e-5)
    for side in ("external", "internal"):
        largest.check(f"/attention/lse_{side}", file[f"/attention/lse_{side}"][row, slot],
                      getattr(now, f"lse_{side}")[0], 2e-5)
    values = reference.summary(history, changed, inputs, None, masked)
    for name in ("similarity_external", "similarity_internal", "external_mass", "query_gap", "query_block_gap"):
        got = file["/summary/" + name][row, slot]
        largest.check("/summary/" + name, got, values[name][0] if name in values else np.full(got.shape, np.nan), 2e-4)
    for name in ("reuse_error", "kept_pair"):
        largest.check("/summary/" + name, file["/summary/" + name][row, :, slot], values[name][:, 0], 2e-4)
    index, probability, union = now.sets(K)
    got = check_padding(file["/sets/probability"][row, slot], (kv, K))
    largest.check("/sets/probability", got, probability[0], 2e-5)
    got = check_padding(file["/sets/topk"][row, slot], (kv, K))
    for a, b, p in zip(got, index[0], probability[0]):
        if not (np.abs(np.diff(p)) < 1e-6).any():
            assert np.array_equal(a, b)
            largest.sets += 1
    context = int(file["/steps/context_length"][row])
    first = max(0, context - (WINDOWS[layer] - 1)) if WINDOWS[layer] else 0
    assert got.min() >= first and got.max() < context
    assert np.abs(check_padding(file["/sets/union_size"][row, slot], (kv,)) - union[0]).max() <= 1
    then = history[0].sets(K)[0][0]
    recall = [len(set(a) & set(b)) / K for a, b in zip(index[0].tolist(), then.tolist())]
    got = check_padding(file["/sets/recall"][row, slot], (kv,))
    if len(history) == 1 or context - first <= K:
        assert np.isnan(got).all()
    else:
        assert np.abs(got - recall).max() <= 1 / K + 1e-6


@pytest.mark.parametrize("implementation, batch", [("sdpa", 1), ("eager", 2)])
def test_layers_of_different_shapes(tmp_path, implementation, batch):
    path = tmp_path / "run.h5"
    sees, ids = record(path, ragged(implementation), batch)
    largest = Largest()
    with h5py.File(path) as file:
        assert file.attrs["format_version"] == 4 and file.attrs["ragged"] == 1 and file.attrs["noise_canvas"] == 1
        for name, expected in (("kv_heads", KV_HEADS), ("head_dim", CHANNELS), ("window", WINDOWS)):
            assert file["/model/layer_" + name][:].tolist() == expected
        for sequence in range(batch):
            rows = np.flatnonzero(file["/steps/sequence"][:rows_of(file)] == sequence)
            history = {}
            for row, one in zip(rows, sees.passes):
                if one.kind != DENOISE:
                    continue
                if file["/steps/step"][row] == 1:
                    history, changed, inputs, before = {layer: [] for layer in range(3)}, [], [], None
                block = one.tokens[sequence][one.block_start:one.block_start + CANVAS].tolist()
                changed.append(0 if before is None else sum(a != b for a, b in zip(block, before)))
                inputs.append(block)
                before = block
                assert file["/steps/changed"][row] == changed[-1]
                assert file["/steps/masks_left"][row] == one.noise[sequence].sum()
                for layer in range(3):
                    history[layer].append(layer_alone(one, layer, sequence))
                    check_layer(file, row, layer, layer, history[layer], changed, inputs, one.noise[sequence], largest)
                largest.rows += 1
    assert largest.rows == 15 * batch and largest.sets > 30 * batch


def test_frames_hold_noise_until_the_sampler_accepts(tmp_path):
    sees, ids = record(tmp_path / "run.h5", ragged(), batch=2)
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.noise_canvas and trace.mask_token_id == -1
    accepted_again = turned_back = 0
    for sequence in range(2):
        passes = [one for one in sees.passes if one.kind == DENOISE]
        prompt, before = 10, None
        for t, one in enumerate(passes):
            frame = trace.frame(sequence, t)
            block = slice(one.block_start - prompt, one.block_start - prompt + CANVAS)
            canvas = one.tokens[sequence][one.block_start:one.block_start + CANVAS]
            assert frame.tokens[block].tolist() == canvas.tolist()
            assert frame.undecided[block].tolist() == one.noise[sequence].tolist()
            assert (frame.confidence[block] == -np.inf).tolist() == one.noise[sequence].tolist()
            assert not frame.undecided[:block.start].any()  # finished canvases
            if before is not None and before.block_start == one.block_start:
                same = ~before.noise[sequence] & ~one.noise[sequence]
                accepted_again += int(same.sum())
                turned_back += int((~before.noise[sequence] & one.noise[sequence]).sum())
            before = one
        last = trace.frame(sequence, len(passes))
        assert last.tokens.tolist() == ids[sequence][prompt:].tolist() and last.masks_left == 0
    assert accepted_again > 0


def test_a_token_that_stays_accepted_keeps_its_step(tmp_path):
    record(tmp_path / "run.h5", ragged())
    trace = blockscope.open(tmp_path / "run.h5")
    kept = 0
    for t in range(1, trace.num_steps(0)):
        before, now = trace.frame(0, t - 1), trace.frame(0, t)
        size = min(before.tokens.size, now.tokens.size)
        same = ~before.undecided[:size] & ~now.undecided[:size] & (before.tokens[:size] == now.tokens[:size])
        assert (before.steps[:size][same] == now.steps[:size][same]).all()
        assert np.array_equal(before.confidence[:size][same], now.confidence[:size][same], equal_nan=True)
        kept += int(same.sum())
    assert kept > 0


def test_another_loop_shows_what_is_most_probable(tmp_path):
    """A loop of the user's own has no sampler that the recorder can ask: the most probable token counts as accepted."""
    model, prompt = ragged(), torch.tensor([[5 * i % 90 + 3 for i in range(10)]])
    torch.manual_seed(2)
    accepted = []
    with torch.no_grad(), blockscope.record(model, tmp_path / "run.h5", level="trajectory") as run:
        cache = model.model.encoder(input_ids=prompt).past_key_values
        canvas = torch.randint(0, 97, (1, CANVAS))
        places = torch.arange(10, 10 + CANVAS).unsqueeze(0)
        for step in range(3):
            logits = model(decoder_input_ids=canvas, past_key_values=cache, decoder_position_ids=places,
                           decoder_attention_mask=torch.ones(1, 10 + CANVAS, dtype=torch.bool)).logits
            best = logits.argmax(-1)
            accept = torch.rand(1, CANVAS) < 0.5
            noise = torch.where(best == 50, 51, 50)  # never the best one
            canvas = torch.where(accept, best, noise)
            accepted.append(accept[0].tolist())
        run.end_sequence(torch.cat([prompt, best], 1))
    trace = blockscope.open(tmp_path / "run.h5")
    for t, expected in enumerate(accepted[:2], 1):
        assert (~trace.frame(0, t).undecided).tolist() == expected
    assert trace.frame(0, 3).masks_left == 0


@pytest.mark.parametrize("heads, kv_heads", [([3], [0, 1]), ([0], [0]), ([0, 2], [0, 1])])
def test_chosen_heads(tmp_path, heads, kv_heads):
    """A KV head is recorded in all layers that have it, if one of them uses it."""
    model = ragged()
    record(tmp_path / "all.h5", model, count=2)
    record(tmp_path / "some.h5", model, count=2, heads=heads)
    with h5py.File(tmp_path / "all.h5") as whole, h5py.File(tmp_path / "some.h5") as part:
        assert part["/kv_head"][:].tolist() == kv_heads
        rows = np.flatnonzero(part["/steps/kind"][:rows_of(part)] == 1)
        for path in ("/attention/external", "/query/query"):
            assert np.allclose(part[path][rows], whole[path][rows][:, :, heads], atol=1e-5, equal_nan=True)
        for path in ("/sets/topk", "/sets/probability"):
            assert np.allclose(part[path][rows], whole[path][rows][:, :, kv_heads], atol=1e-5, equal_nan=True)


def test_full(tmp_path):
    """The encoder's layers store the keys that the decoder's layers read. The reader finds those of a layer's
    window."""
    path = tmp_path / "run.h5"
    sees, _ = record(path, ragged(), level="full")
    trace = blockscope.open(path)
    with h5py.File(path) as file:
        rows, kinds = rows_of(file), file["/steps/kind"][:rows_of(file)]
        ends, positions = file["/prefix/end"][:rows], file["/prefix/position"][:]
        assert positions[:ends[-1]].tolist() == list(range(10 + 2 * CANVAS))
        compared = 0
        for row in np.flatnonzero(kinds == 1):
            one, context = sees.passes[row], int(file["/steps/context_length"][row])
            for layer in range(3):
                first = max(0, context - (WINDOWS[layer] - 1)) if WINDOWS[layer] else 0
                own = (slice(KV_HEADS[layer]), slice(None), slice(CHANNELS[layer]))
                q, k, v = (x[0] for x in one.calls[layer])
                for name, values in (("key", k), ("value", v)):
                    values = values[::len(values) // KV_HEADS[layer]]
                    stored = file["/prefix/" + name][first:context, layer][:, own[0], own[2]]
                    assert np.allclose(stored.transpose(1, 0, 2), values[:, :-CANVAS], atol=1e-5)
                    assert np.allclose(file["/kv/" + name][row, layer][own], values[:, -CANVAS:], atol=1e-5)
                    assert np.isnan(file["/prefix/" + name][first:context, layer][:, KV_HEADS[layer]:]).all()
                compared += 1
        assert compared == 45
        for layer in range(3):  # the C++ reader's own attention, from queries and keys
            for head in range(4):
                weights = trace.attention_map(sequence=0, step=2, layer=layer, head=head, block=1)["attention"]
                row = np.flatnonzero((file["/steps/block"][:rows] == 1) & (file["/steps/step"][:rows] == 2)
                                     & (kinds == 1))[0]
                q, k, _ = (x[0] for x in sees.passes[row].calls[layer])
                scores = q[head] @ k[head * len(k) // 4].T
                expected = np.exp(scores - scores.max(-1, keepdims=True))
                expected /= expected.sum(-1, keepdims=True)
                assert np.allclose(weights.values, expected, atol=1e-5)
                context = int(file["/steps/context_length"][row])
                first = max(0, context - (WINDOWS[layer] - 1)) if WINDOWS[layer] else 0
                assert weights["key"].values.tolist() == list(range(first, context + CANVAS))
    for name in ("drift", "heads", "similarity_states", "sinks"):
        assert trace.analyze(name).arrays()


def test_what_reads_it(tmp_path):
    record(tmp_path / "run.h5", ragged())
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.model["layer_kv_heads"] == KV_HEADS and trace.model["num_kv_heads"] == 2
    assert trace.model["layer_window"] == WINDOWS and trace.model["head_dim"] == 32
    step = next(trace.blocks(layers=[0, 1])).steps[1]
    assert step.external.shape == (2, 4, CANVAS, 16) and step.topk.shape == (2, 2, K)
    step = next(trace.blocks(layers=[2])).steps[1]
    assert step.external.shape == (1, 4, CANVAS, 32) and step.topk.shape == (1, 1, K)
    assert step.array("topk").sizes["kv_head"] == 1 and np.isfinite(step.external).all()
    step = next(trace.blocks()).steps[1]
    assert step.external.shape == (3, 4, CANVAS, 32) and np.isnan(step.external[0, ..., 16:]).all()
    for name in ("similarity", "external_mass", "reuse_error", "recall", "union_size", "query_statistics", "decoding"):
        assert trace.analyze(name).arrays()
    assert np.isfinite(trace.analyze("similarity")["similarity_external"].values).all()
    assert trace.calibrate(gamma=0.5).reuse.shape[-2:] == (3, 4)


def test_gemma_4_token_by_token(tmp_path):
    """The same layers under causal attention: a query sees the newest W - 1 keys before it, and itself."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(3)
    config = Gemma4TextConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], hidden_size_per_layer_input=0,
        num_kv_shared_layers=0, pad_token_id=0, eos_token_id=1, bos_token_id=2, initializer_range=0.3,
        attention_k_eq_v=True)
    model = Gemma4ForCausalLM._from_config(config, attn_implementation="sdpa").float().eval()
    prompt = torch.tensor([[5 * i % 90 + 3 for i in range(10)]])
    seen = []
    own = torch.nn.functional.scaled_dot_product_attention

    def attend(q, k, v, *args, **kwargs):
        seen.append((q.double(), k.double()))
        return own(q, k, v, *args, **kwargs)

    with blockscope.record(model, tmp_path / "run.h5", level="full", array_type="f32", set_size=3) as run:
        torch.nn.functional.scaled_dot_product_attention = attend
        try:
            ids = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
        finally:
            torch.nn.functional.scaled_dot_product_attention = own
        run.end_sequence(ids)
    trace = blockscope.open(tmp_path / "run.h5")
    assert not trace.noise_canvas and trace.model["layer_window"] == [6, 6, 0]
    assert trace.model["layer_kv_heads"] == KV_HEADS and trace.model["layer_head_dim"] == CHANNELS
    position = 13  # the input of the last denoising row but one
    for layer in range(3):
        q, k = seen[3 * (position - 9) + layer]
        k = k[0, ::k.shape[1] // KV_HEADS[layer]]
        found = trace.attention_map(sequence=0, step=1, block=position, layer=layer, head=3)["attention"]
        first = position - 5 if layer < 2 else 0
        assert found["key"].values.tolist() == list(range(first, position + 1))
        scores = q.reshape(4, -1)[3:] @ k[-1].T  # transformers may pass the heads of a group as queries
        assert np.allclose(found.values, scores[:, -(position + 1 - first):].softmax(-1).numpy(), atol=1e-5)
