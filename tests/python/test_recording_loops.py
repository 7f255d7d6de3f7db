"""blockscope.record() over loops of other shapes: caches whose entries are replaced, rows left out, canvases without
masks. Judged by the observer of recording_observer.py, which sees queries, keys and values on its own way and takes
tokens and blocks from the loop's local variables."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
transformers = pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recording_observer as observer  # noqa: E402
from attention_math import attention  # noqa: E402
from recorded_canvases import CANVAS, Canvases, diffusion_gemma, generate_canvases  # noqa: E402
from recording_observer import COMMIT, DENOISE, PREFILL, Pass  # noqa: E402


# --- transformers' DiffusionGemma -------------------------------------------------------------------------------------

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
    steps = [DENOISE] * 5
    assert [one.kind for one in sees.passes] == [PREFILL, *steps, COMMIT, *steps, COMMIT, *steps]
    largest = observer.compare(path, sees, ids.numpy(), size=CANVAS, mask=None, kv_heads=2, layers=3,
                              bidirectional=False, scale=1.0)
    assert largest.rows == 18 * batch and largest.sets > 80 * batch
    assert "forward" not in model.__dict__  # all is as it was


# --- transformers' own generate() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, dict(do_sample=True, temperature=1.5), dict(batch=3)])
def test_qwen3_generates(tmp_path, implementation, options):
    model = models.qwen3(implementation)
    options = dict(options)
    prompt = torch.tensor([[(5 + 2 * s) * i % 90 + 1 for i in range(11)] for s in range(options.pop("batch", 1))])
    options = dict(dict(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0), **options)

    def look(module, args, kwargs, variables):
        ids = variables["_sample"]["input_ids"].numpy()
        count = kwargs["input_ids"].shape[1]
        span = ids.shape[1] - count, ids.shape[1]
        return Pass(PREFILL, ids, span=span) if count > 1 else Pass(DENOISE, ids, span[0], span=span)

    torch.manual_seed(1)
    plain = model.generate(prompt, **options)
    torch.manual_seed(1)
    sees = observer.Observer(model, model.model.layers, ["_sample"], look, eager=implementation == "eager")
    with sees, blockscope.record(model, tmp_path / "run.h5", array_type="f32", set_size=8) as run:
        ids = model.generate(prompt, **options)
        run.end_sequence(ids)
    assert torch.equal(plain, ids)
    # A row's prediction is that of the token after it, in the only column.
    largest = observer.compare(tmp_path / "run.h5", sees, ids.numpy(), size=1, mask=None, kv_heads=2, layers=3,
                              bidirectional=False, shift=0)
    assert largest.rows == 12 * len(prompt)


# --- loops over a canvas ----------------------------------------------------------------------------------------------

PROMPT = [int(x) for x in np.random.default_rng(4).integers(0, 900, 21)]
SIZE, GEN = 8, 24


def sees_loop(model, loop):
    """The states of recorded_loops.py."""
    def look(module, args, kwargs, variables):
        mine = variables[loop.__name__]
        rows = mine["rows"] or None
        ids = mine["ids"].numpy().copy()
        return Pass(DENOISE, ids, mine["start"], span=mine["span"], computed=rows and [rows] * len(ids))

    def each(one, layer, variables):
        index = getattr(variables[loop.__name__].get("cache"), "_refresh_index", None)
        if index is not None:
            one.rows[layer] = index.tolist()

    def late(one, variables):
        if one.rows:  # a layer that chose none doesn't attend
            one.rows |= {layer: [[]] for layer in range(len(model.layers)) if layer not in one.rows}

    return observer.Observer(model, model.layers, [loop.__name__], look, each=each, late=late)


def judged(tmp_path, loop, prompt=PROMPT, shift=0, **more):
    model = loops.ChoosyModel() if loop is loops.choosy else loops.CanvasModel()
    if loop is loops.left_out:
        more["shift"] = shift
    plain = loop(model, prompt, GEN, SIZE, **more)
    sees = sees_loop(model, loop)
    path = tmp_path / "run.h5"
    with sees, blockscope.record(model, path, block_length=SIZE, logit_shift=shift, array_type="f32",
                                 set_size=8) as run:
        if loop is loops.left_out and not more.get("told", True):
            more["state"] = lambda rows: run.step(positions=rows)
        ids = loop(model, prompt, GEN, SIZE, **more)
        run.end_sequence(ids)
    assert torch.equal(plain, ids)
    config = model.config
    largest = observer.compare(path, sees, ids.numpy(), size=SIZE, mask=config.mask_token_id, kv_heads=config.num_kv,
                              layers=config.num_hidden_layers, bidirectional=True, shift=shift)
    assert largest.rows == len(sees.passes) * len(ids) and largest.sets > 20
    return sees.passes


def test_replaced_entries_are_told_by_the_inputs(tmp_path):
    passes = judged(tmp_path, loops.replaced)
    assert {one.span for one in passes} == {(0, 45), (21, 29), (29, 37), (37, 45)}


def test_what_stands_before_a_block_is_kept(tmp_path):
    passes = judged(tmp_path, loops.prefixed)
    assert {one.span for one in passes} == {(0, 45), (21, 45), (29, 45), (37, 45)}


@pytest.mark.parametrize("loop", [loops.replaced, loops.prefixed])
def test_a_step_without_masks_decides_nothing(tmp_path, loop):
    """The first pass fills the block, and the loop goes on before it looks: about the same block, though the first
    mask that the pass sees is the next one's."""
    passes = judged(tmp_path, loop, per_step=SIZE)
    assert len(passes) == 6


def test_scattered_entries_are_told_by_the_inputs(tmp_path):
    passes = judged(tmp_path, loops.replaced, extra=(3, 17, 44))
    assert passes[1].computed == [[3, 17, *range(21, 29), 44]]


@pytest.mark.parametrize("told, shift", [(True, 0), (False, 0), (True, 1)])
def test_rows_left_out(tmp_path, told, shift):
    passes = judged(tmp_path, loops.left_out, told=told, shift=shift)
    assert len(passes) == 9 and all(len(one.computed[0]) < 20 for one in passes[1:] if one.computed)


def test_layers_choose_rows(tmp_path):
    passes = judged(tmp_path, loops.choosy)
    assert [len(passes[1].rows[layer][0]) for layer in range(4)] == [45, 23, 0, 23]
    model = loops.ChoosyModel()
    with pytest.raises(blockscope.UsageError, match=r"each layer of the loop's cache chooses.*level=\"summary\""):
        with blockscope.record(model, tmp_path / "other.h5", block_length=SIZE, level="trajectory"):
            loops.choosy(model, PROMPT, GEN, SIZE)


def test_rows_left_out_are_asked_for(tmp_path):
    model = loops.CanvasModel()
    with pytest.raises(blockscope.UsageError, match=r"attends with \d+ queries in a pass over 45.*step\(positions"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
            loops.left_out(model, PROMPT, GEN, SIZE, told=False)


def test_shifted_logits(tmp_path):
    judged(tmp_path, loops.shifted, shift=1)
    model = loops.CanvasModel()
    with pytest.raises(blockscope.UsageError, match=r"logit_shift: 0, but all .*logit_shift=1"):
        with blockscope.record(model, tmp_path / "other.h5", block_length=SIZE, level="trajectory"):
            loops.shifted(model, PROMPT, GEN, SIZE)
    with pytest.raises(blockscope.UsageError, match=r"logit_shift: 1, but all .*logit_shift=0"):
        with blockscope.record(model, tmp_path / "third.h5", block_length=SIZE, level="trajectory", logit_shift=1):
            loops.replaced(model, PROMPT, GEN, SIZE)


def test_a_batch_stands_at_one_block(tmp_path):
    """Where one sequence's block is full before the other's, its rows are of that block still."""
    prompts = [PROMPT, PROMPT[::-1], [7 * i % 900 for i in range(21)]]
    passes = judged(tmp_path, loops.batches, prompts)
    mask = loops.CanvasModel().config.mask_token_id
    full = [[mask not in tokens[one.block_start:one.block_start + SIZE] for tokens in one.tokens] for one in passes]
    assert any(any(one) for one in full)  # it happened


def test_a_canvas_grows(tmp_path):
    passes = judged(tmp_path, loops.growing)
    assert {one.span[1] for one in passes} == {29, 37, 45}


def test_what_would_be_a_wrong_trace(tmp_path):
    model = loops.CanvasModel()
    mask = model.config.mask_token_id

    def run(loop, message, **options):
        with pytest.raises(blockscope.UsageError, match=message), torch.no_grad():
            with blockscope.record(model, tmp_path / "run.h5", force=True,
                                   **{"block_length": SIZE, "level": "trajectory", **options}) as recording:
                loop(recording)

    canvas = loops.canvas_of(PROMPT, GEN, mask)
    two = canvas.repeat(2, 1)

    def part_of_a_batch(recording):
        model(two)
        model(two[:1])

    def past_the_hooks(recording):
        model(canvas)
        model.forward(canvas)

    def suffix(recording):
        out = model(canvas)
        model(canvas[:, 11:], past_key_values=out.past_key_values.before(11))

    def unequal(recording):
        ids = two.clone()
        ids[1, 21] = 5
        model(ids)

    def marks(recording):
        out = model(canvas)
        model(canvas[:, 21:29], past_key_values=out.past_key_values, replace_position=torch.ones_like(canvas))

    run(part_of_a_batch, "a batch of 2 sequences goes on with 1 of them.*one at a time")
    for level in ("trajectory", "summary"):
        run(past_the_hooks, r"layers\.0 ran outside a call of the recorded CanvasModel", level=level)
    run(suffix, "begins neither with a block.*first mask stands at 21")
    run(unequal, "prompts of different lengths")
    run(marks, "replace_position: marks 45 positions for 8 tokens")
    run(lambda recording: recording.step(positions=[3, 2]), "expected ascending positions")
    run(lambda recording: recording.step(start=1, positions=[3]), "either start or positions")

    def outside(recording):
        recording.step(positions=[3, 70])
        model(canvas)

    run(outside, "positions 3 to 70.*45 tokens")


# --- attention that is spelled out ------------------------------------------------------------------------------------


class SpelledOut(torch.nn.Module):
    """One layer of attention in so many words; `twist` changes one of them."""

    def __init__(self, twist=""):
        super().__init__()
        torch.manual_seed(2)
        self.config = type("Config", (), dict(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, vocab_size=60,
                                              num_key_value_heads=1))()
        self.embed = torch.nn.Embedding(60, 32)
        self.place = torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 64)])
        self.layers[0].register_forward_hook(lambda module, args, projected: self.attention(projected))
        self.twist = twist

    def attention(self, x):
        q = x[..., :32].unflatten(-1, (2, 16)).transpose(1, 2)
        k, v = (x[..., at:at + 16].unsqueeze(1).repeat(1, 2, 1, 1) for at in (32, 48))
        scores = torch.matmul(q, k.transpose(2, 3)) / 4
        if self.twist == "cap":
            scores = torch.tanh(scores / 5) * 5
        if self.twist == "mask":
            scores = scores + torch.zeros(scores.shape[-2:]).masked_fill(torch.eye(scores.shape[-1]) > 0, -torch.inf)
        if self.twist == "late":
            scores = (scores + torch.ones(scores.shape[-2:]).tril()) * 2
        if self.twist == "power":
            scores = scores ** 3
        if self.twist == "written":
            scores[..., 0] = 1
        weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32)
        return torch.matmul(torch.nn.functional.dropout(weights, p=0.1, training=self.training), v)

    def forward(self, input_ids):
        x = self.layers[0](self.embed(input_ids) + self.place.weight[:input_ids.shape[1]])
        return x.transpose(1, 2).flatten(2) @ self.embed.weight.T


@pytest.mark.parametrize("twist", ["", "cap", "mask", "late", "power", "written"])
def test_attention_in_so_many_words(tmp_path, twist):
    model = SpelledOut(twist).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, *[59] * 8]])
    if twist in ("power", "written"):
        with pytest.raises(blockscope.UsageError, match=r"layers\.0 can't be seen.*matmul, softmax"):
            with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=59):
                model(ids)
        return
    with torch.no_grad(), blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=59,
                                            array_type="f32", set_size=3) as run:
        model(ids)
        run.end_sequence(torch.tensor([[1, 2, 3, 4, 5, *[6] * 8]]))
        projected = torch.nn.functional.linear(model.embed(ids) + model.place.weight[:13], model.layers[0].weight,
                                               model.layers[0].bias).double().numpy()[0]
    q, k = projected[5:, :32].reshape(8, 2, 16), projected[:, 32:48]
    scores = np.einsum("bhd,nd->hbn", q, k) / 4
    if twist == "cap":
        scores = 5 * np.tanh(scores / 5)
    if twist == "late":
        scores = (scores + np.tri(13)[5:]) * 2
    if twist == "mask":
        scores[:, np.arange(8), np.arange(5, 13)] = -np.inf
    with h5py.File(tmp_path / "run.h5") as file:
        for name, part in (("external", slice(0, 5)), ("internal", slice(5, 13))):
            out, lse = attention(scores[..., part], projected[None, part, 48:])
            assert np.abs(file["/attention/" + name][0, 0] - out).max() < 1e-5
            assert np.abs(file["/attention/lse_" + name][0, 0] - lse).max() < 1e-5
