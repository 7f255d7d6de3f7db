"""blockscope.record() of loops in which a row of the batch isn't one sequence, or a pass isn't a token: beams, batches
put in another order by hand, classifier-free guidance, drafted tokens. Compared with: float64, the loop's own tokens, and
the trace of a sequence alone."""

import itertools

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
transformers = pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import MASK, PROMPT, SIZE, Kept, check_rows, rows_of  # noqa: E402

LEVELS = ["trajectory", "summary", "outputs", "full"]
ORDER = r"sequence \d of the batch goes on where sequence \d stood.*as beam search does.*HINT: .*num_beams=1\)"


def prompts(count, length=9):
    return torch.tensor([[(5 + 2 * s) * i % 90 + 1 for i in range(length)] for s in range(count)])


def tokens_of(path):
    """Prompt and decided tokens of each sequence of an unfinished trace that was recorded token by token."""
    found = {}
    with h5py.File(f"{path}.partial", swmr=True) as file:
        count = rows_of(file)
        ends = file["/frames/insert_end"][:count]
        for row, sequence in enumerate(file["/steps/sequence"][:count]):
            first, length = (file["/sequences/prompt_" + name][sequence] for name in ("start", "length"))
            tokens = found.setdefault(int(sequence), file["/sequences/prompt_token"][first:first + length].tolist())
            tokens += file["/frames/insert_token"][ends[row - 1] if row else 0:ends[row]].tolist()
    return found


# --- another order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("options", [{}, dict(implementation="eager"), dict(do_sample=True), dict(use_cache=False)])
def test_beam_search_is_refused(tmp_path, level, options):
    """Up to there nothing was mixed: a row holds what its beam had decided."""
    options = dict(options)
    model = models.qwen3(options.pop("implementation", "sdpa"))
    if level == "full" and "use_cache" in options:
        return  # refused for another reason
    had = []  # by pass, the beams' tokens
    own = model.prepare_inputs_for_generation

    def look(input_ids, **more):
        had.append(input_ids.tolist())
        return own(input_ids, **more)

    model.prepare_inputs_for_generation = look
    torch.manual_seed(0)
    with pytest.raises(blockscope.UsageError, match=ORDER):
        with blockscope.record(model, tmp_path / "run.h5", level=level):
            model.generate(prompts(1), num_beams=3, max_new_tokens=24, **{"do_sample": False, **options},
                           eos_token_id=None, pad_token_id=0)
    mixed = next((i for i, (a, b) in enumerate(itertools.pairwise(had), 1)
                  if any(x != y[:len(x)] for x, y in zip(a, b))), None)
    assert mixed == len(had) - 1  # at once
    if (tmp_path / "run.h5.partial").exists():
        for sequence, tokens in tokens_of(tmp_path / "run.h5").items():
            assert tokens == had[mixed - 1][sequence][:len(tokens)]


class PlainCache:
    """As a user's own: `lists` of keys and values by layer."""

    def __init__(self):
        self.lists = None

    def reorder(self, order):
        self.lists = [tuple(x[order] for x in pair) for pair in self.lists]

    def get_seq_length(self):
        return 0 if self.lists is None else self.lists[0][0].shape[2]


class Around(torch.nn.Module):
    """A model with such a cache."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.config = model, model.config

    def forward(self, input_ids, cache):
        from transformers import DynamicCache

        past = DynamicCache(config=self.config)
        for layer, (key, value) in enumerate(cache.lists or []):
            past.update(key.clone(), value.clone(), layer)
        out = self.inner(input_ids, past_key_values=past, use_cache=True)
        cache.lists = [(layer.keys, layer.values) for layer in past.layers]
        return out.logits


def by_hand(model, kind, order, at, ids, count=8):
    """Greedy decoding of a batch whose rows are chosen anew before pass `at`."""
    from transformers import DynamicCache, StaticCache

    if kind == "own":
        model, cache = Around(model), PlainCache()
    elif kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=32)
    else:
        cache = DynamicCache(config=model.config)
    step, part = yield model, ids
    for i in range(count):
        if i == at:
            if kind == "own":
                cache.reorder(order)
            elif kind == "select":
                cache.batch_select_indices(order)
            else:
                cache.reorder_cache(order)
            ids, part = ids[order], part[order]
        logits = model(part, cache) if kind == "own" else model(part, past_key_values=cache, use_cache=True).logits
        part = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, part], 1)
    yield ids


@pytest.mark.parametrize("level", ["trajectory", "outputs"])
@pytest.mark.parametrize("kind", ["reorder", "select", "static", "own"])
@pytest.mark.parametrize("order, at", [([1, 0, 2], 1), ([1, 0, 2], 4), ([0, 0, 2], 4), ([0, 1, 2], 4)])
def test_rows_that_are_chosen_by_hand_are_refused(tmp_path, level, kind, order, at):
    loop = by_hand(models.qwen3(), kind, torch.tensor(order), at, prompts(3))
    model, _ = next(loop)

    def run():
        with torch.no_grad(), blockscope.record(model, tmp_path / "run.h5", level=level) as recording:
            ids = loop.send((None, prompts(3)))
            recording.end_sequence(ids)
            return ids

    if order == [0, 1, 2]:
        ids = run()
        trace = blockscope.open(tmp_path / "run.h5")
        for sequence in range(3):
            assert trace.frame(sequence, trace.num_steps(sequence)).tokens.tolist() == ids[sequence, 9:].tolist()
        return
    with pytest.raises(blockscope.UsageError, match=ORDER):
        run()


def test_one_layer_is_enough(tmp_path):
    """Each key depends on one token, so all of them are compared: here the last ones are equal."""
    model = models.qwen3(layers=1)
    ids = torch.cat([prompts(2), torch.tensor([[7], [7]])], 1)
    with torch.no_grad(), pytest.raises(blockscope.UsageError, match=ORDER):
        with blockscope.record(model, tmp_path / "run.h5"):
            out = model(ids, use_cache=True)
            out.past_key_values.reorder_cache(torch.tensor([1, 0]))
            model(torch.tensor([[3], [4]]), past_key_values=out.past_key_values)


def test_a_batch_that_shrinks_or_grows_is_refused(tmp_path):
    model = models.qwen3()
    for before, after in ((3, 2), (1, 3)):
        with torch.no_grad(), pytest.raises(blockscope.UsageError,
                                            match=f"a batch of {before} sequences goes on with {after}"):
            with blockscope.record(model, tmp_path / "run.h5", level="trajectory", force=True):
                past = model(prompts(before), use_cache=True).past_key_values
                past = model(prompts(before, 1), past_key_values=past).past_key_values
                past.batch_select_indices(torch.arange(after) % before)
                model(prompts(after, 1), past_key_values=past)


@pytest.mark.parametrize("alike", [False, True])
def test_a_canvas_whose_rows_are_chosen_by_hand(tmp_path, alike):
    """alike: samples of one prompt; the better one is copied over the other."""
    model = loops.CanvasModel()
    ids = loops.canvas_of([PROMPT[:21], PROMPT[:21] if alike else PROMPT[21:42]], 24, model.config.mask_token_id)
    with torch.no_grad(), pytest.raises(blockscope.UsageError, match=ORDER):
        with blockscope.record(model, tmp_path / "run.h5", block_length=8, level="summary"):
            for i in range(5):
                model(ids)
                ids = ids.clone()
                ids[0, 21 + i], ids[1, 28 - i] = 3 + i, 40 + i
            model(ids[[1, 1]])


def test_rows_that_take_tokens_back_are_not_another_order(tmp_path):
    """Samples of one prompt: one has its tokens masked again while the other has decided nothing."""
    model = loops.CanvasModel()
    mask = model.config.mask_token_id
    ids = loops.canvas_of([PROMPT[:21]] * 2, 24, mask)
    with torch.no_grad(), blockscope.record(model, tmp_path / "run.h5", block_length=24, level="trajectory") as run:
        model(ids)
        ids[0, 21:29] = torch.arange(3, 11)
        model(ids)
        ids[0, 21:27] = mask
        model(ids)
        ids[:, 21:] = torch.arange(3, 27)
        run.end_sequence(ids)
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.frame(0, 2).tokens.tolist() == [mask] * 6 + [9, 10] + [mask] * 16


@pytest.mark.parametrize("level", ["trajectory", "sets"])
def test_a_batch_behind_compiled_code(tmp_path, level):
    """Its keys are those of the cache."""
    torch._dynamo.reset()
    model = models.qwen3()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    loop = by_hand(model, "reorder", torch.tensor([1, 0]), 3, prompts(2))
    next(loop)
    with torch.no_grad(), pytest.raises(blockscope.UsageError,
                                        match=ORDER if level == "trajectory" else "can't be seen"):
        with blockscope.record(model, tmp_path / "run.h5", level=level):
            loop.send((None, prompts(2)))
    torch._dynamo.reset()


# --- classifier-free guidance -----------------------------------------------------------------------------------------


@torch.no_grad()
def decode_guided(model, prompt, gen_length, size, scale=1.5, per_step=4):
    """LLaDA's loop with both branches in one batch: the second has masks for a prompt."""
    mask = model.config.mask_token_id
    ids = torch.tensor([prompt + [mask] * gen_length])
    for start in range(len(prompt), len(prompt) + gen_length, size):
        while (ids[:, start:start + size] == mask).any():
            without = ids.clone()
            without[:, :len(prompt)] = mask
            with_it, other = model(torch.cat([ids, without])).logits[:, start:start + size].chunk(2)
            logits = other + (scale + 1) * (with_it - other)
            ids[:, start:start + size] = models.fill(ids[:, start:start + size], logits, mask, per_step)
    return ids


def test_guidance_in_one_batch(tmp_path):
    """Kept keeps row 0, which is the one that is recorded."""
    model = models.PlainModel("needle-bidirectional")
    kept = Kept(model, model.layers[0].attend)
    plain = decode_guided(model, PROMPT[:40], 32, SIZE)
    with pytest.raises(blockscope.UsageError, match=r"prompts of different lengths.*batch_rows=\[0\]"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
            decode_guided(model, PROMPT[:40], 32, SIZE)
    kept.calls.clear()
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, block_length=SIZE, array_type="f32", set_size=4, batch_rows=[0],
                           force=True) as run:
        ids = decode_guided(model, PROMPT[:40], 32, SIZE)
        run.end_sequence(ids)
    assert torch.equal(ids, plain)
    with h5py.File(path) as file:
        starts = iter(file["/steps/block_start"][:rows_of(file)].repeat(6))
        assert file["/sequences/prompt_length"][:].tolist() == [40]
    check_rows(path, kept.calls, 6, lambda s, h, row, key, rows: s, lambda rows, keys: [next(starts)] * 2)
    trace = blockscope.open(path)
    assert trace.run["batch_rows"] == [0]
    assert trace.frame(0, trace.num_steps(0)).tokens.tolist() == ids[0, 40:].tolist()


def test_guidance_by_a_pass_of_its_own_is_refused(tmp_path):
    """Whose sequence would begin anew with each pass."""
    model = loops.CanvasModel()
    ids = loops.canvas_of(PROMPT[:21], 24, model.config.mask_token_id)
    with torch.no_grad(), pytest.raises(blockscope.UsageError, match=r"runs two in turn.*HINT.*batch_rows=\.\.\."):
        with pytest.warns(UserWarning), blockscope.record(model, tmp_path / "run.h5", block_length=8):
            for i in range(3):
                without = ids.clone()
                without[:, :21] = model.config.mask_token_id
                model(ids), model(without)
                ids[0, 21 + i] = 5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_row_of_a_batch_is_what_it_is_alone(tmp_path, level, implementation):
    model = models.qwen3(implementation)
    both = torch.tensor([[5 * i % 90 for i in range(16)], [7 * i % 90 for i in range(16)]])
    paths = [tmp_path / "alone.h5", tmp_path / "row.h5"]
    for path, ids, rows in zip(paths, (both[1:], both), (None, [1])):
        with blockscope.record(model, path, block_length=8, mask_token_id=MASK, level=level, array_type="f32",
                               set_size=4, batch_rows=rows) as run:
            run.end_sequence(models.decode_qwen_blocks(model, ids, 16, 8, MASK)[-1:])
    assert blockscope.compare(*paths, absolute=1e-4, ignore_timing=True).equal
    with pytest.raises(blockscope.UsageError, match=r"batch_rows: expected 0 to 1 for a batch of 2 sequences, got 2"):
        with blockscope.record(model, paths[0], block_length=8, mask_token_id=MASK, batch_rows=[2], force=True):
            models.decode_qwen_blocks(model, both, 16, 8, MASK)
    with pytest.raises(blockscope.UsageError, match="batch_rows: expected whole numbers"):
        blockscope.record(model, paths[0], batch_rows=[-1])


def test_beams_are_no_rows_to_choose(tmp_path):
    """The one that is chosen may go on from one that isn't."""
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match=ORDER):
        with blockscope.record(model, tmp_path / "run.h5", batch_rows=[0]):
            model.generate(prompts(1), num_beams=3, max_new_tokens=24, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("level", LEVELS)
def test_guidance_in_a_second_pass_is_refused(tmp_path, level):
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match=r"guidance_scale.*run\.paused\(\).*batch_rows"):
        with blockscope.record(model, tmp_path / "run.h5", level=level):
            model.generate(prompts(1), guidance_scale=1.5, max_new_tokens=6, do_sample=False, pad_token_id=0)


# --- drafted tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("recorded", ["model", "assistant"])
@pytest.mark.parametrize("alike", [False, True])
def test_assisted_generation_is_refused(tmp_path, level, recorded, alike):
    """alike: no draft is ever refused, so that nothing is taken back."""
    model, assistant = models.qwen3(), models.qwen3() if alike else models.qwen3(layers=1)
    assistant.generation_config.num_assistant_tokens = 3
    with pytest.raises(blockscope.UsageError, match=r"assisted generation.*HINT: .*assistant_model"):
        with blockscope.record(model if recorded == "model" else assistant, tmp_path / "run.h5", level=level):
            model.generate(prompts(1), assistant_model=assistant, max_new_tokens=12, do_sample=False, pad_token_id=0)


def test_prompt_lookup_is_refused(tmp_path):
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match="assisted generation.*prompt_lookup_num_tokens"):
        with blockscope.record(model, tmp_path / "run.h5"):
            model.generate(torch.tensor([[3, 4, 5, 6] * 4]), prompt_lookup_num_tokens=3, max_new_tokens=12,
                           do_sample=False, pad_token_id=0)
