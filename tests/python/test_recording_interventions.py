"""blockscope.record(interventions=...): what layers get and what the trace holds, against float64 attention with the
same keys left out, models whose weights or masks do the same, `blockscope capture --intervene`, and a recording without
interventions."""

import json
import math
import subprocess
import warnings

import attention_math as am
import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

from torch.nn import functional as F  # noqa: E402

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, SIZE, check_array, compare_with_capture, rows_of  # noqa: E402

if not kernels.loaded():
    pytest.skip("this build has no operators", allow_module_level=True)

SHORT = PROMPT[:37]
REPLACE = dict(block_length=SIZE, attention="replace", array_type="f32")
EXACT_ONLY = ("/sets/", "/summary/external_mass", "/summary/similarity", "/summary/reuse_error",
              "/summary/kept_pair")


class Watched:
    """In place of a PlainModel's attention: plain attention whose queries, keys, values and result stay here."""

    def __init__(self, model):
        self.calls, self.ids = [], []  # by pass, then by layer; by pass
        model.register_forward_pre_hook(lambda _, args: self.ids.append(args[0][0].tolist()))
        for layer in model.layers:
            layer.attend = self

    def __call__(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        self.calls.append(tuple(x.double().numpy().copy() for x in (q, k, v, out)))
        return out


def datasets(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.update({"/" + name: item[()]}) if isinstance(item, h5py.Dataset)
                        else None)
        return found, rows_of(file)


def equal_traces(one, other, *ignored):
    """Every dataset bit for bit, but what says how the trace was made."""
    (a, rows), (b, _) = datasets(one), datasets(other)
    assert a.keys() == b.keys() - {"/attention/intervened"}
    assert "/attention/intervened" not in b or not (b["/attention/intervened"] == 1).any()
    compared = 0
    for name, values in a.items():
        if name in ("/run/json", "/run_byte", "/steps/pass_time_ns") or name.startswith(ignored):
            continue
        assert np.array_equal(values, b[name], equal_nan=values.dtype.kind == "f"), name
        compared += 1
    assert compared > 20 and rows > 5


# --- against float64 --------------------------------------------------------------------------------------------------


def regions(keys, start, prompt, masked):
    """The region of each key of a row, from the definitions in docs/trace_format.md."""
    return np.array(["after" if p >= start + SIZE else ("masks" if masked[p - start] else "decided") if p >= start
                     else "first" if p < 4 else "prompt" if p < prompt else "answer" for p in range(keys)])


def mean_weights(q, k):
    scores = am.scores_of(q, k, q.shape[-1] ** -0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).mean(1)  # [H, N]


def seen_by(text, q, k, inside, region, prompt):
    """[H, N]: keys that the heads see."""
    name, *options = text.split(",")
    heads, keys = len(q), k.shape[1]
    seen = np.ones((heads, keys), bool)
    if name in ("drop_external", "drop_head"):
        seen &= inside
    if name in ("drop_internal", "drop_head"):
        seen &= ~inside
    option, _, value = (options[0] if options else "").partition("=")
    if option == "positions":
        low, high = map(int, value.split("-"))
        seen[:, low:high + 1] = False
    elif option == "region":
        seen &= region != value
    elif option == "token":
        at = [p for p in range(len(prompt)) if prompt[p] == int(value)]
        seen[:, at] = False
    elif option == "top":
        weights = mean_weights(q, k)
        np.put_along_axis(seen, np.argsort(-weights, -1)[:, :int(value)], False, -1)
    elif option == "sinks":
        seen &= ~((mean_weights(q, k) > float(value) / keys) & ~inside)
    return seen


TOKEN = SHORT[9]
TEXTS = ["drop_external", "drop_internal", "drop_head", "hide_keys,positions=2-5", "hide_keys,positions=0-400",
         "hide_keys,region=first", "hide_keys,region=prompt", "hide_keys,region=answer", "hide_keys,region=decided",
         "hide_keys,region=masks", f"hide_keys,token={TOKEN}", "hide_keys,top=3", "hide_keys,sinks=1.5"]
LOOPS = {"blocks": ("needle", models.decode_blocks, TEXTS),
         "canvas": ("needle-bidirectional", models.decode_canvas, [*TEXTS, "hide_keys,region=after"]),
         "prefix": ("needle-bidirectional", models.decode_prefix_cache, ["drop_external", "hide_keys,region=after"]),
         "dual": ("needle-bidirectional", models.decode_dual_cache, ["drop_head", "hide_keys,region=after"])}


@pytest.mark.parametrize("loop, text", [(loop, text) for loop, (_, _, texts) in LOOPS.items() for text in texts])
def test_parts_and_results_are_those_of_the_remaining_keys(tmp_path, loop, text):
    name, decode, _ = LOOPS[loop]
    model, layer, heads = models.PlainModel(name), 2, [0, 3, 4]
    watched, path = Watched(model), tmp_path / "run.h5"
    with blockscope.record(model, path, gen_length=32, interventions=f"{text},layers={layer},heads=0+3-4",
                           **REPLACE) as run:
        more = {"state": lambda start: run.step(start=start)} if loop == "dual" else {}
        run.end_sequence(decode(model, SHORT, 32, SIZE, **more))
    mask, layers, hidden = model.config.mask_token_id, len(model.layers), 0
    trace = blockscope.open(path)
    with h5py.File(path) as file:
        count, prompt = rows_of(file), int(file["/sequences/prompt_length"][0])
        denoising = np.flatnonzero(file["/steps/kind"][:count] == 1)
        assert len(denoising) >= 8
        for row, index in ((row, index) for row in denoising for index in range(layers)):
            number, start = int(file["/steps/pass"][row]), int(file["/steps/block_start"][row])
            q, k, v, out = (x[0] for x in watched.calls[number * layers + index])
            keys = k.shape[1]
            block = slice(start, start + SIZE) if q.shape[1] == keys else slice(0, SIZE)
            masked = [token == mask for token in watched.ids[number][block]]
            inside = (np.arange(keys) >= start) & (np.arange(keys) < start + SIZE)
            seen = np.ones((len(q), keys), bool)
            if index == layer:
                seen[heads] = seen_by(text, q[:, block], k, inside, regions(keys, start, prompt, masked),
                                      SHORT[:prompt])[heads]
                hidden += int((~seen).sum())
            scores = np.where(seen[:, None], am.scores_of(q[:, block], k, q.shape[-1] ** -0.5), -np.inf)
            check_array("result", out[:, block], am.attention(scores, v)[0], 3e-5)
            for part, chosen in (("external", ~inside), ("internal", inside)):
                output, lse = am.attention(scores[..., chosen], v[:, chosen])
                check_array(part, file[f"/attention/{part}"][row, index], output, 3e-5)
                check_array(part, file[f"/attention/lse_{part}"][row, index], lse, 3e-5)
            if q.shape[1] > SIZE:  # rows outside the block
                outside = np.delete(np.arange(q.shape[1]), block)
                check_array("outside", out[:, outside],
                            am.attend(q[:, outside], k, v, q.shape[-1] ** -0.5)[0], 3e-5)
            unknown = np.isnan(file["/spread/region"][row, index]).all(-1)
            assert unknown.tolist() == [head in heads and not seen.all() for head in range(len(q))]
        assert hidden > 0
        assert np.isnan(file["/summary/external_mass"][:count]).all() and (file["/sets/topk"][:count] == -1).all()
    assert trace.run["interventions"][0].startswith(text.split(",")[0] + f",layers={layer},heads=0+3+4")


# --- against models and masks that do the same ------------------------------------------------------------------------


def qwen_prompt():
    return torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])


@pytest.mark.parametrize("text, factor", [("drop_head", 0.0), ("scale,by=2", 2.0), ("scale,by=-0.5", -0.5)])
def test_weights_that_do_the_same(tmp_path, text, factor):
    """Columns of the last layer's output projection. Keys don't depend on them, so commit passes don't matter."""
    decoded = {}
    for way in ("ours", "theirs", "plain"):
        model = models.qwen3()
        if way == "theirs":
            with torch.no_grad():
                model.model.layers[-1].self_attn.o_proj.weight[:, 16:48] *= factor
        with blockscope.record(model, tmp_path / f"{way}.h5", block_length=8, mask_token_id=MASK, gen_length=16,
                               attention="replace", level="trajectory",
                               interventions=[{"what": text.split(",")[0], "layers": [2], "heads": (1, 2), **(
                                   {"by": factor} if "scale" in text else {})}] if way == "ours" else None):
            decoded[way] = models.decode_qwen_blocks(model, qwen_prompt(), 16, 8, MASK)
    assert torch.equal(decoded["ours"], decoded["theirs"]) and not torch.equal(decoded["ours"], decoded["plain"])
    ours, theirs = (datasets(tmp_path / f"{way}.h5")[0] for way in ("ours", "theirs"))
    rows = ours["/steps/kind"] == 1
    np.testing.assert_allclose(ours["/prediction/confidence"][rows], theirs["/prediction/confidence"][rows], rtol=1e-4)


def decode_with_hidden(model, prompt, gen_length, hidden, mask):
    """One block of 8 at a time; denoising passes don't see the keys at `hidden`."""
    from transformers import DynamicCache

    ids, cache, logits = prompt, DynamicCache(config=model.config), []
    with torch.no_grad():
        model(prompt, past_key_values=cache, attention_mask=torch.zeros(1, 1, prompt.shape[1], prompt.shape[1]))
        for _ in range(gen_length // 8):
            block, keys = torch.full((1, 8), mask), ids.shape[1] + 8
            seen = torch.zeros(1, 1, 8, keys)
            seen[..., [p for p in hidden if p < keys]] = -math.inf
            for _ in range(4):
                logits.append(model(block, past_key_values=cache, attention_mask=seen).logits)
                cache.crop(-8)
                block = models.fill(block, logits[-1], mask, 2)
            model(block, past_key_values=cache, attention_mask=torch.zeros(1, 1, 8, keys))
            ids = torch.cat([ids, block], 1)
    return ids, torch.cat(logits)


def test_hidden_keys_are_masked_keys(tmp_path):
    model, prompt, hidden = models.qwen3(), qwen_prompt()[:1], [0, 3, 4, 17, 26, 39]
    theirs, wanted = decode_with_hidden(model, prompt, 24, hidden, MASK)
    plain, other = decode_with_hidden(model, prompt, 24, [], MASK)
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK, attention="replace",
                           level="trajectory",
                           interventions=["hide_keys,positions=0+3-4",
                                          {"what": "hide_keys", "positions": [17, 26, 39]}]):
        ours, found = decode_with_hidden(model, prompt, 24, [], MASK)
    assert torch.equal(ours, theirs) and not torch.equal(ours, plain)
    assert (found - wanted).abs().max() < 1e-4 < (wanted - other).abs().max()


def test_a_mask_of_the_loop_stays(tmp_path):
    """Keys that the loop hides from the heads and keys that the intervention hides."""
    model, prompt = models.qwen3(), qwen_prompt()[:1]
    _, wanted = decode_with_hidden(model, prompt, 16, [1, 2, 5, 9, 30], MASK)
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK, attention="replace",
                           level="full", interventions="hide_keys,positions=2+5+30"):
        _, found = decode_with_hidden(model, prompt, 16, [1, 5, 9], MASK)
    assert (found - wanted).abs().max() < 1e-4


# --- against the runtime ----------------------------------------------------------------------------------------------


MANY = ["scale,by=0.5,layers=1,heads=0+2", "hide_keys,region=first,layers=2,steps=2-3",
        "drop_head,mean,layers=3,heads=5", "freeze_external,from=2,layers=4,heads=1-3",
        "noise,by=0.25,seed=7,layers=0,heads=1+4", "hide_keys,top=2,layers=2+5,heads=0-3",
        "drop_internal,layers=5,heads=4,blocks=3", "hide_keys,sinks=2,layers=3"]


@pytest.mark.parametrize("name, decode, cache", [
    ("needle", models.decode_blocks, "commit"), ("needle-bidirectional", models.decode_canvas, "none"),
    ("needle-bidirectional", models.decode_prefix_cache, "prefix"),
    ("needle-bidirectional", models.decode_dual_cache, "dual")])
@pytest.mark.parametrize("given", [MANY, ["drop_external,layers=1,heads=0-2"], ["hide_keys,top=3"]])
def test_is_the_trace_that_capture_writes(tmp_path, name, decode, cache, given):
    from transformers import AutoTokenizer

    model, mine, theirs = models.PlainModel(name), tmp_path / "mine.h5", tmp_path / "theirs.h5"
    with blockscope.record(model, mine, gen_length=48, interventions=given, **REPLACE,
                           tokenizer=AutoTokenizer.from_pretrained(models.MODELS / name)) as run:
        state = {"state": lambda start: run.step(start=start)} if cache == "dual" else {}
        run.end_sequence(decode(model, PROMPT, 48, SIZE, **state))
    done = subprocess.run(
        [BINARY, "capture", models.MODELS / name, "--replay", mine, "--predictions", "all", "--dtype", "float32",
         "--block-length", str(SIZE), "--cache", cache, "--record", "outputs", "--array-type", "f32", "-o", theirs,
         *(word for text in given for word in ("--intervene", text))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare_with_capture(mine, theirs)
    ours, count = datasets(mine)
    denoising = ours["/steps/kind"][:count] == 1
    unknown = np.isnan(ours["/spread/entropy"][:count]).all(-1)
    marked = ours["/attention/intervened"][:count]
    assert np.array_equal(unknown[denoising], marked[denoising] == 1) and unknown[denoising].any()
    changes = [json.loads(datasets(path)[0]["/run/json"].tobytes())["interventions"] for path in (mine, theirs)]
    assert changes[0] == changes[1] == blockscope.open(mine).run["interventions"]


# --- against a recording without --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, decode", [("needle", models.decode_blocks),
                                          ("needle-bidirectional", models.decode_canvas)])
def test_no_change_is_no_change(tmp_path, name, decode):
    model, tokens = models.PlainModel(name), []
    for path, given in (("plain", None), ("none", []), ("far", "hide_keys,positions=4000"), ("one", "scale,by=1"),
                        ("never", ["drop_head,steps=900", "freeze_external,from=500"])):
        with blockscope.record(model, tmp_path / f"{path}.h5", gen_length=32, interventions=given, **REPLACE) as run:
            tokens.append(decode(model, SHORT, 32, SIZE))
            run.end_sequence(tokens[-1])
        if path != "plain":
            equal_traces(tmp_path / "plain.h5", tmp_path / f"{path}.h5", *(EXACT_ONLY if given else ()))
    assert all(torch.equal(tokens[0], one) for one in tokens)
    assert "interventions" not in blockscope.open(tmp_path / "none.h5").run


def test_only_named_heads_steps_and_blocks(tmp_path):
    model = models.PlainModel("needle")
    watched = Watched(model)
    for path, given in (("plain", None), ("changed", "drop_external,layers=3,heads=1,steps=2,blocks=3")):
        with blockscope.record(model, tmp_path / f"{path}.h5", gen_length=32, interventions=given, **REPLACE) as run:
            run.end_sequence(models.decode_blocks(model, SHORT, 32, SIZE))
    (plain, count), (changed, _) = (datasets(tmp_path / f"{path}.h5") for path in ("plain", "changed"))
    hit = (changed["/steps/step"] == 2) & (changed["/steps/block"] == 3) & (changed["/steps/kind"] == 1)
    dropped = (changed["/attention/lse_external"][:count] == -np.inf).all(-1)  # [R, L, H]
    assert np.argwhere(dropped).tolist() == [[np.flatnonzero(hit)[0], 3, 1]]
    row = np.flatnonzero(hit)[0]
    others = np.delete(np.arange(6), 1)
    for name in ("/attention/external", "/attention/internal", "/query/query"):
        assert np.array_equal(plain[name][:row], changed[name][:row], equal_nan=True)
        assert np.array_equal(plain[name][row, 3, others], changed[name][row, 3, others])
    number = int(changed["/steps/pass"][row]) * 6 + 3
    half = len(watched.calls) // 2
    for one, other in ((number - 1, half + number - 1), (number, half + number)):
        for head in range(6):
            same = np.array_equal(watched.calls[one][3][0, head], watched.calls[other][3][0, head])
            assert same == (one != number or head != 1)


def test_frozen_pairs_and_batches(tmp_path):
    """A batch of two, over two blocks: each sequence keeps its own pair, and each block its own."""
    model, found = models.qwen3(), {}
    given = ["freeze_external,from=2,layers=1,heads=3"]
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK, gen_length=16,
                           array_type="f32", attention="replace", interventions=given):
        together = models.decode_qwen_blocks(model, qwen_prompt(), 16, 8, MASK)
    trace, count = datasets(tmp_path / "run.h5")
    compared = 0
    for row in np.flatnonzero(trace["/steps/kind"][:count] == 1):
        key, step = (trace["/steps/sequence"][row], trace["/steps/block"][row]), trace["/steps/step"][row]
        pair = [trace[f"/attention/{name}"][row, 1, 3] for name in ("external", "lse_external")]
        if step == 2:
            found[key] = pair
        elif step > 2:
            assert all(np.array_equal(one, other) for one, other in zip(pair, found[key]))
            compared += 1
    assert compared == 8 and len(found) == 4
    for sequence in range(2):
        with blockscope.record(model, tmp_path / f"{sequence}.h5", block_length=8, mask_token_id=MASK, gen_length=16,
                               attention="replace", level="summary", interventions=given):
            alone = models.decode_qwen_blocks(model, qwen_prompt()[sequence:sequence + 1], 16, 8, MASK)
        assert torch.equal(alone[0], together[sequence])


def test_noise_has_its_size_and_seed(tmp_path):
    model, watched = models.PlainModel("needle"), []
    for index, seed in enumerate((None, 1, 1, 2)):
        calls = Watched(model)
        with blockscope.record(model, tmp_path / f"{index}.h5", gen_length=16, level="summary", **{
                **REPLACE, "interventions": seed and f"noise,by=0.5,seed={seed},layers=5,heads=2"}):
            models.decode_blocks(model, SHORT, 16, SIZE)
        watched.append(calls.calls[11][3][0])  # layer 5 of the first denoising pass
    plain, one, again, other = watched
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    error = one - plain
    assert np.abs(np.delete(error, 2, 0)).max() == 0
    assert 0.4 < math.sqrt((error[2] ** 2).mean() / (plain[2] ** 2).mean()) < 0.6


def test_what_is_changed_does_not_depend_on_what_is_kept(tmp_path):
    tokens = []
    for path, options in (("all", {}), ("some", {"layers": [0, 3], "level": "summary"}),
                          ("none", {"level": "trajectory"}), ("full", {"level": "full"})):
        model = models.PlainModel("needle")
        with blockscope.record(model, tmp_path / f"{path}.h5", gen_length=32, **{**REPLACE, **options},
                               interventions=["drop_head,layers=5", "hide_keys,region=prompt,layers=1-2"]) as run:
            tokens.append(models.decode_blocks(model, SHORT, 32, SIZE))
            run.end_sequence(tokens[-1])
    plain = models.decode_blocks(models.PlainModel("needle"), SHORT, 32, SIZE)
    assert all(torch.equal(tokens[0], one) for one in tokens) and not torch.equal(tokens[0], plain)
    assert "/attention/lse_external" not in datasets(tmp_path / "none.h5")[0]
    told = subprocess.run([BINARY, "info", tmp_path / "none.h5", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["run"]["interventions"] == ["drop_head,layers=5",
                                                               "hide_keys,layers=1+2,region=prompt"]


def test_token_by_token(tmp_path):
    """The last layer's heads without the prefix see one key, so they get its value."""
    recorder = models.CallRecorder("interventions")
    model = models.qwen3("interventions")
    with blockscope.record(model, tmp_path / "run.h5", array_type="f32", attention="replace",
                           interventions="drop_external,layers=2,heads=0+3") as run:
        run.end_sequence(models.decode_tokens(model, torch.tensor([[3, 14, 15, 9, 2, 6]]), 7))
    trace, count = datasets(tmp_path / "run.h5")
    assert count == 7
    for row in range(1, count):
        _, q, k, v = recorder.calls[row * 3 + 2]
        assert np.array_equal(trace["/attention/lse_external"][row, 2] == -np.inf, np.array([[1], [0], [0], [1]], bool))
        check_array("value", trace["/attention/internal"][row, 2][:, 0], v[0, [0, 0, 1, 1], -1].numpy(), 1e-6)


def test_scattered_positions(tmp_path):
    """Passes over the block and three other positions: only the block's rows change."""
    model = loops.CanvasModel()
    watched, prompt, extra = Watched(model), PROMPT[:21], [3, 17, 44]
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, array_type="f32", attention="replace",
                           interventions="drop_head,layers=1,heads=2") as run:
        run.end_sequence(loops.replaced(model, prompt, 24, 8, extra=extra))
    trace, count = datasets(tmp_path / "run.h5")
    scattered = 0
    for row in range(count):
        q, k, v, out = (x[0] for x in watched.calls[int(trace["/steps/pass"][row]) * 3 + 1])
        start = int(trace["/steps/block_start"][row])
        there = np.arange(45) if q.shape[1] == 45 else np.array(sorted({*extra, *range(start, start + 8)}))
        expected, _ = am.attend(q, k, v, q.shape[-1] ** -0.5)
        expected[2, (there >= start) & (there < start + 8)] = 0
        check_array("result", out, expected, 3e-5)
        scattered += q.shape[1] < 45
    assert scattered > 3


# --- what is refused --------------------------------------------------------------------------------------------------


def record_blocks(path, model, given, **options):
    with blockscope.record(model, path, block_length=8, mask_token_id=MASK, gen_length=16,
                           **{"attention": "replace", "interventions": given, **options}):
        models.decode_qwen_blocks(model, qwen_prompt()[:1], 16, 8, MASK)


@pytest.mark.parametrize("given, words", [
    ("drop_heads", "interventions 'drop_heads': expected drop_external, drop_internal, drop_head, hide_keys, "
                   "freeze_external, scale, noise, patch_external, patch_head or patch_hidden, got 'drop_heads'"),
    ("drop_head,from=2", "expected layers, heads, steps, blocks, commits or mean, got 'from'"),
    ("drop_head,layers=9", "layers: expected 0 to 2, got 9"), ("drop_head,heads=1+4", "heads: expected 0 to 3, got 4"),
    ("drop_head,steps=0", "steps: expected whole numbers from 1, such as 1-3.6, got '0'"),
    ("drop_head,layers=2-1", "layers: expected whole numbers"), ("drop_head,layers=", "layers: .*, got nothing"),
    ("drop_head,layers=1,layers=2", "expected layers once, got it twice"),
    ("drop_head,mean=1", "mean: expected no value, got '1'"),
    ("hide_keys", "expected one of positions, region, token, top and sinks, got none"),
    ("hide_keys,region=first,top=2", "got region and top"),
    ("hide_keys,region=tail", "region: expected one of first, prompt, .*, got \"tail\""),
    ("hide_keys,top=0", "top: expected a whole number from 1, got '0'"),
    ("hide_keys,sinks=0", "sinks: expected a number above 0, up to 1e.06, got '0'"),
    ("hide_keys,token=96", "token: expected a token of the prompt, got 96"),
    ("scale", "by: expected a number, got none"), ("noise,seed=1", "by: expected a number, got none"),
    ("scale,by=x", "by: expected a number from -1e.06 to 1e.06, got 'x'"), ("scale,by=nan", "got 'nan'"),
    *((f"scale,by={text}", "by: expected a number from") for text in (
        " 2", "2 ", "+2", "1_0", "\u0663", "inf", "1e999", "1e-999", "0x1", ".", "1e", "--1", "2e+6")),
    *((f"drop_head,layers={text}", "layers: expected whole numbers from 0") for text in (
        " 1", "+1", "1_0", "1_0-1_1", "\u0661", "1 ", "1++2", "1.0", "1-", "-1", "\udc80", "1\0")),
    ("drop_head,steps=1-16000000", "steps: expected whole numbers from 1"),
    *((f"hide_keys,top={text}", "top: expected a whole number from 1") for text in (
        "+1", "1_0", " 1", "\u0663", "9" * 30)),
    *(([{"what": "drop_head", name: value}], words) for value in (False, True) for name, words in (
        ("layers", "layers: expected whole numbers from 0, .*, got nothing"), ("other", "or mean, got 'other'"))),
    ([{"what": "drop_head,mean"}], "or patch_hidden, got 'drop_head,mean'"),
    ([{"what": "drop_head", "mean": 1}], "mean: expected no value, got '1'"),
    ([{"what": "hide_keys", "region": "first,layers=2"}], "region: expected one of .*, got \"first,layers=2\""),
    ([{"what": "patch_head", "trace": "a\0b.h5"}], "trace: expected a file, got 'a.x00b.h5'"),
    ("patch_head,trace=a\0b.h5", "trace: expected a file, got 'a.x00b.h5'"),
    ([{"what": "patch_head", "trace": "\ud800"}], "trace: expected a file, got '.ud800'"),
    ("a\0b.json", "'a.x00b.json': can't be read"),
    ([{"what": "drop_head", "layers": np.array([1.5])}], "layers: expected a number"),
    ([{"what": "drop_head", "layers": np.array([True, False])}], "layers: expected a number"),
    ([{"what": "drop_head", "layers": torch.tensor([True, False])}], "layers: expected a number"),
    ([{"what": "drop_head", "layers": np.array([[1, 2]])}], "layers: expected a number"),
    ([{"what": "scale", "by": math.inf}], "by: expected a number from .*, got 'inf'"),
    ([7], "entry 0: expected a text, or an object with the member \"what\", got 7"), (7, "expected a list of texts"),
    ([{"layers": [1]}], "with the member \"what\""),
    ([{"what": "scale", "by": {}}], "by: expected a number, a text, true, or a list of whole numbers, got {}"),
    ([{"what": "drop_head", "layers": []}], "entry 0: layers: expected"), ("/none/such.json", "can't be read"),
])
def test_wrong_texts(tmp_path, given, words):
    with pytest.raises(blockscope.UsageError, match=words):
        record_blocks(tmp_path / "run.h5", models.qwen3(), given)
    assert not (tmp_path / "run.h5").exists()


def test_files(tmp_path):
    file = tmp_path / "changes.json"
    file.write_text(json.dumps([{"what": "drop_head", "layers": [1], "heads": 2, "mean": True, "steps": "1-3"},
                                "scale,by=0.5,layers=0"]))
    record_blocks(tmp_path / "run.h5", models.qwen3(), [file, str(file), {"what": "scale", "by": np.float32(2)}])
    texts = ["drop_head,layers=1,heads=2,steps=1+2+3,mean", "scale,layers=0,by=0.5"]
    assert blockscope.open(tmp_path / "run.h5").run["interventions"] == [*texts, *texts, "scale,by=2"]
    for content, words in (("{}", "expected a JSON list of interventions, got dict"), ("[]", "got an empty one"),
                           ("[", "got no JSON"), ("[1]", "entry 0: expected a text")):
        file.write_text(content)
        with pytest.raises(blockscope.UsageError, match=words):
            record_blocks(tmp_path / "a.h5", models.qwen3(), file)


def text_of(given):
    from blockscope.recording.intervention_texts import read_interventions

    return [one.text for one in read_interventions(given)]


def test_values_of_objects_are_not_split(tmp_path):
    entry = {"what": "patch_head", "trace": "a,b=c.h5", "layers": "1-2+0,3", "heads": 2}
    assert text_of(entry) == ["patch_head,layers=0+1+2+3,heads=2,trace=a,b=c.h5"]
    file = tmp_path / "changes.json"
    file.write_text(json.dumps([entry]))
    assert text_of(file) == text_of(entry)


@pytest.mark.parametrize("values", [[1, 2], (2, 1), range(1, 3), np.array([2, 1]), np.array([1, 2], np.uint8),
                                    torch.tensor([1, 2]), [np.int64(1), torch.tensor(2)], {1, 2}])
def test_lists_of_any_kind(values):
    assert text_of({"what": "drop_head", "layers": values}) == ["drop_head,layers=1+2"]


def test_one_index_and_switches():
    for one in (1, np.int64(1), np.array(1), np.array([1]), torch.tensor(1), torch.tensor([1]), "1"):
        assert text_of({"what": "drop_head", "layers": one}) == ["drop_head,layers=1"]
    assert text_of([{"what": "drop_head", "mean": False, "commits": True}]) == ["drop_head,commits"]


@pytest.mark.parametrize("by", ["0.5", ".5", "5e-1", "0.5e0", "0.50", "5E-1"])
def test_numbers_as_the_runtime_reads_them(by):
    assert text_of(f"scale,by={by}") == ["scale,by=0.5"]


@pytest.mark.parametrize("given, shared", [
    ("hide_keys,region=first,heads=0", "KV head 0 (changes 0, leaves 1)"),
    ("drop_external,heads=1+3", "KV head 0 (changes 1, leaves 0), KV head 1 (changes 3, leaves 2)"),
    ("drop_internal,layers=1,heads=0-2", "KV head 1 (changes 2, leaves 3)"),
    ("drop_external,heads=2-3", ""), ("drop_internal", ""), ("drop_head,heads=0", ""), ("scale,by=2,heads=1", "")])
def test_heads_that_share_keys_are_named(tmp_path, given, shared):
    """In the words of `blockscope capture`."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        record_blocks(tmp_path / "run.h5", models.qwen3(), given)
    told = [str(one.message) for one in found if "share keys" in str(one.message)]
    text = text_of(given)[0]
    assert told == ([f"interventions '{text}': changes some of the heads that share keys and values: {shared}"]
                    if shared else [])


@pytest.mark.parametrize("options, words", [
    ({"attention": "observe"}, "interventions: expected attention=\"replace\", .* HINT: record"),
    ({"heads": [0]}, "expected a recording of all heads, got heads="), ({"batch_rows": [0]}, "got batch_rows=")])
def test_recordings_that_cannot_change_attention(tmp_path, options, words):
    with pytest.raises(blockscope.UsageError, match=words):
        record_blocks(tmp_path / "run.h5", models.qwen3(), "drop_head", **options)


def test_layers_that_cannot_be_replaced(tmp_path):
    """Eager attention, attention that isn't seen, stated attention."""
    with pytest.raises(blockscope.UsageError, match=r"model\.layers\.1: .*replaces: scaled_dot_product_attention"):
        record_blocks(tmp_path / "a.h5", models.qwen3("eager"), "drop_head,layers=1")
    record_blocks(tmp_path / "other.h5", models.qwen3(), "drop_head,layers=1", layers=[0])
    model = models.PlainModel("needle")
    model.layers[2].attend = lambda q, k, v, mask: (q @ k.repeat_interleave(3, 1).mT).cumsum(-1).softmax(-1) @ \
        v.repeat_interleave(3, 1)
    for level in ("summary", "trajectory"):
        with pytest.raises(blockscope.UsageError, match=r"the attention of layers\.2 can't be seen"):
            with blockscope.record(model, tmp_path / f"{level}.h5", level=level, layers=[0, 1], block_length=SIZE,
                                   attention="replace", interventions="drop_head"):
                models.decode_blocks(model, SHORT, 32, SIZE)
    model = models.PlainModel("needle")
    plain = model.layers[3].attend

    def stated(q, k, v, mask):
        run.attention(3, q, k, v, mask=mask)
        return plain(q, k, v, mask)

    model.layers[3].attend = stated
    with pytest.raises(blockscope.UsageError, match=r"layers\.3: run\.attention: an intervention needs attention"):
        with blockscope.record(model, tmp_path / "stated.h5", interventions="drop_head,layers=3", **REPLACE) as run:
            models.decode_blocks(model, SHORT, 32, SIZE)


def test_gradients_and_passes_over_some_rows(tmp_path):
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match=r"interventions have no gradients. HINT: decode within torch"):
        with blockscope.record(model, tmp_path / "a.h5", block_length=8, mask_token_id=MASK, attention="replace",
                               interventions="drop_head"):
            model(torch.tensor([[MASK] * 8]))
    for loop, model in ((loops.left_out, loops.CanvasModel()), (loops.choosy, loops.ChoosyModel())):
        with pytest.raises(blockscope.UsageError, match="an intervention changes whole blocks, and"):
            with blockscope.record(model, tmp_path / f"{loop.__name__}.h5", block_length=8, attention="replace",
                                   interventions="drop_head,layers=1"):
                loop(model, PROMPT[:21], 24, 8)
