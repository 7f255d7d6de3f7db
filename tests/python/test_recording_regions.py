"""blockscope.record(regions=...): which token belongs to which part, sums of weights by part, and keys that an
intervention hides by a part's name. The judges are the offsets of the tokenizers package, `blockscope capture
--regions`, and runs that name the same positions."""

import json
import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from recording_checks import BINARY, SIZE, compare_with_capture, rows_of  # noqa: E402

TEXT = ("Text: The old house. Q: who has salmon?\nA: Note: Viola ring salmon. Note: Linda nickel birch. Note: Rita "
        "quiver magnet. Note: Petra velvet stone. Note: Yara ruby ivory.")
RULES = [{"region": "question", "between": ["Q:", "A:"]}, {"region": "names", "text": "Viola ring"},
         {"region": "head", "positions": "0-2"}]
LOOPS = [("needle", models.decode_blocks, "commit"), ("needle-bidirectional", models.decode_canvas, "none"),
         ("needle-bidirectional", models.decode_prefix_cache, "prefix")]


def tokenizer_of(name):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models.MODELS / name)


def ids_of(name, text=TEXT):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(models.MODELS / name / "tokenizer.json")).encode(text, add_special_tokens=False)


def record(path, name, decode, rules, text=TEXT, gen_length=32, **options):
    model = models.PlainModel(name)
    options = {"array_type": "f32", "tokenizer": tokenizer_of(name), **options}
    with blockscope.record(model, path, block_length=SIZE, gen_length=gen_length, regions=rules, **options) as run:
        run.end_sequence(decode(model, ids_of(name, text).ids, gen_length, SIZE))


def names_of(file):
    names = file.attrs["regions"].decode().split(",")
    return [names[i] for i in file["/sequences/prompt_region"][()]]


def capture(name, *arguments):
    done = subprocess.run(
        [BINARY, "capture", models.MODELS / name, "--dtype", "float32", "--block-length", str(SIZE),
         *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name, decode, cache", LOOPS)
def test_is_what_capture_finds_and_sums(tmp_path, name, decode, cache):
    mine, parts, theirs = (tmp_path / f"{one}.h5" for one in ("mine", "parts", "theirs"))
    rules = tmp_path / "regions.json"
    rules.write_text(json.dumps(RULES))
    record(mine, name, decode, rules)
    capture(name, "--prompt", TEXT, "--gen-length", 16, "--regions", rules, "-o", parts)
    found = ids_of(name)
    wanted = ["first" if i < 4 else "prompt" for i in range(len(found.ids))]
    for text, region in ((TEXT[TEXT.index("Q:") + 2:TEXT.index("A:")], "question"), ("Viola ring", "names")):
        begin = TEXT.index(text)
        for i, (first, last) in enumerate(found.offsets):
            if first < begin + len(text) and last > begin:
                wanted[i] = region
    wanted[:3] = ["head"] * 3
    with h5py.File(mine) as one, h5py.File(parts) as other:
        assert one.attrs["regions"] == other.attrs["regions"]
        assert one["/sequences/prompt_token"][()].tolist() == other["/sequences/prompt_token"][()].tolist() == found.ids
        assert names_of(one) == names_of(other) == wanted
    # A replay keeps the parts and sums the weights again.
    capture(name, "--replay", mine, "--predictions", "all", "--cache", cache, "--record", "outputs", "--array-type",
            "f32", "-o", theirs)
    compare_with_capture(mine, theirs)
    with h5py.File(mine) as file:
        last = np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1)[-1]
        sums = dict(zip(file.attrs["regions"].decode().split(","), file["/spread/region"][last].mean((0, 1))))
        assert list(sums) == ["first", "prompt", "question", "names", "head", "answer", "decided", "masks", "after"]
        assert all(sums[part] > 0 for part in ("first", "prompt", "question", "names", "head"))
        np.testing.assert_allclose(file["/spread/region"][last].sum(-1), 1, atol=1e-4)


def test_sums_are_those_of_recorded_weights(tmp_path):
    """/spread/region from /map of the same trace."""
    record(tmp_path / "run.h5", "needle-bidirectional", models.decode_canvas, RULES, level="summary", maps="layers=2")
    compared = 0
    with h5py.File(tmp_path / "run.h5") as file:
        names, of_token = file.attrs["regions"].decode().split(","), file["/sequences/prompt_region"][()]
        for row in np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1):
            mean = file["/map/weight"][row, 0].astype(np.float64).mean(1)  # [H, positions]
            start = int(file["/steps/block_start"][row])
            region = np.full(mean.shape[1], names.index("answer"))
            region[:len(of_token)] = of_token
            region[start + SIZE:] = names.index("after")
            for i, name in enumerate(names):
                outside = (region == i) & ((np.arange(len(region)) < start) | (np.arange(len(region)) >= start + SIZE))
                if name in ("decided", "masks"):
                    continue
                np.testing.assert_allclose(file["/spread/region"][row, 2][:, i], mean[:, outside].sum(-1), atol=2e-3)
                compared += outside.any()
    assert compared > 20


@pytest.mark.parametrize("rules, places", [
    ({"region": "a", "positions": range(5, 9)}, [5, 6, 7, 8]),
    ([{"region": "a", "positions": [6, np.int64(4)]}], [4, 6]),
    ([{"region": "a", "positions": np.array([6, 4])}], [4, 6]),
    ({"region": "a", "positions": torch.tensor([6, 4])}, [4, 6]), ([{"region": "a", "positions": np.array(7)}], [7]),
    ([{"region": "a", "positions": 7}], [7]), ([{"region": "a", "positions": "0,9-10"}], [0, 9, 10])])
def test_positions_need_no_tokenizer(tmp_path, rules, places):
    record(tmp_path / "run.h5", "needle", models.decode_blocks, rules, level="summary", tokenizer=None, gen_length=16)
    with h5py.File(tmp_path / "run.h5") as file:
        assert [i for i, name in enumerate(names_of(file)) if name == "a"] == places


def test_each_sequence_has_its_own(tmp_path):
    model, name = models.PlainModel("needle"), "needle"
    texts = [TEXT, "Note: Yara ruby ivory. " + TEXT]
    with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, gen_length=16, level="summary",
                           tokenizer=tokenizer_of(name), regions=RULES[:2]) as run:
        for text in texts:
            run.end_sequence(models.decode_blocks(model, ids_of(name, text).ids, 16, SIZE))
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.complete
    with h5py.File(tmp_path / "run.h5") as file:
        first = len(ids_of(name, texts[0]).ids)
        found = names_of(file)
        assert len(found) == first + len(ids_of(name, texts[1]).ids)
        shift = found[first:].index("question") - found[:first].index("question")
        assert shift > 0 and found[:first].count("names") == found[first:].count("names") > 0


needs_operators = pytest.mark.skipif(not kernels.loaded(), reason="this build has no operators")


@needs_operators
@pytest.mark.parametrize("name, decode, cache", LOOPS)
def test_parts_are_hidden(tmp_path, name, decode, cache):
    """By its name, by its positions, and by the runtime."""
    paths = {which: tmp_path / f"{which}.h5" for which in ("name", "places", "theirs")}
    record(tmp_path / "plain.h5", name, decode, RULES, level="summary")
    with h5py.File(tmp_path / "plain.h5") as file:
        places = [i for i, found in enumerate(names_of(file)) if found == "names"]
    for which, keys in (("name", "region=names"), ("places", "positions=" + "+".join(map(str, places)))):
        record(paths[which], name, decode, RULES, attention="replace", interventions=f"hide_keys,{keys},layers=1-4")
    capture(name, "--replay", paths["name"], "--predictions", "all", "--cache", cache, "--record", "outputs",
            "--array-type", "f32", "--intervene", "hide_keys,region=names,layers=1-4", "-o", paths["theirs"])
    with h5py.File(paths["name"]) as one, h5py.File(paths["places"]) as other:
        for path in ("/attention/external", "/attention/lse_external", "/spread/region", "/frames/token"):
            assert np.array_equal(one[path][()], other[path][()], equal_nan=one[path].dtype.kind == "f")
    with h5py.File(paths["theirs"]) as file:
        assert (file["/attention/intervened"][()] == 1).any()
    compare_with_capture(paths["name"], paths["theirs"])


@needs_operators
def test_a_part_in_the_first_block_has_two_names(tmp_path):
    text = "Text: The old house.\nQ: Viola\nA:"
    rules = [{"region": "end", "between": ["Q:", "A:"]}]
    found = {}
    for what in ("end", "decided"):
        record(tmp_path / f"{what}.h5", "needle", models.decode_blocks, rules, text=text, attention="replace",
               interventions=f"hide_keys,region={what},layers=0")
        with h5py.File(tmp_path / f"{what}.h5") as file:
            row = np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1)[0]
            assert file["/steps/block_start"][row] == 0 and "end" in names_of(file)
            found[what] = file["/attention/lse_internal"][row, 0]
    assert (found["decided"] < found["end"]).all()  # it hides more


HOLDS_ITSELF = {"region": "a"}
HOLDS_ITSELF["text"] = [HOLDS_ITSELF]


@pytest.mark.parametrize("rules, words", [
    ([], "got 0"), ([1], '"region"'), (7, "regions: expected a list of regions, got 7"),
    ([{"region": "first", "text": "Q"}], "not one of first"), ([{"region": "a"}], "got 0 of them"),
    ([{"region": "a", "text": "Q", "token": 3}], "got 2 of them"), ([{"region": "a", "text": 3}], 'got "text": 3'),
    ([{"region": "a", "token": 1000}], "expected token 1000, got none"),
    ([{"region": "a", "token": 1.5}], 'got "token": 1.5'),
    ([{"region": "a", "token": object()}], "regions: expected texts"),
    ([{"region": "a", "positions": "4-4000"}], "prompt 0: expected positions of the prompt"),
    ([{"region": "a", "positions": [-1]}], "positions"), ([{"region": "a", "positions": []}], "got 1 of them"),
    ([{"region": "a", "text": "Zebra"}], 'regions: region "a": prompt 0: expected the text "Zebra", got none'),
    ([{"region": "a", "text": "Viola"}, {"region": "b", "text": "Viola ring"}], 'which is in "a", too'),
    ("/none/such.json", "regions: /none/such.json: can't be read"),
    ("a\0b.json", "can't be read: embedded null byte"),
    ([{"region": "a", "positions": np.array([1.5])}], "regions: expected texts and numbers: got array([1.5])"),
    ([{"region": "a", "positions": np.array([True])}], "regions: expected texts and numbers"),
    ([{"region": "a", "positions": {"1": 2}}], "regions: expected texts and numbers"),
    (HOLDS_ITSELF, "regions: expected texts and numbers: Circular reference"),
    ([{"region": "a", "token": float("nan")}], "regions: expected texts and numbers: Out of range float"),
    ([{"region": "a", "text": "\ud800"}], "regions: expected texts and numbers: 'utf-8' codec can't encode"),
])
def test_what_is_refused(tmp_path, rules, words):
    with pytest.raises(blockscope.UsageError) as error:
        record(tmp_path / "run.h5", "needle", models.decode_blocks, rules, gen_length=16)
    assert words in str(error.value) and not (tmp_path / "run.h5").exists()


class NoLength:
    def convert_ids_to_tokens(self, ids):
        return ["a"] * len(ids)


def test_regions_that_do_nothing_or_are_unknown(tmp_path):
    file = tmp_path / "regions.json"
    file.write_text("[")
    for index, (options, words) in enumerate((
            (dict(rules=RULES, level="trajectory"), "regions: does nothing without level=\"summary\""),
            (dict(rules=RULES, tokenizer=None), "to find texts, got none"),
            (dict(rules=RULES, tokenizer=object()), "to find texts, got none. HINT: tokenizer= takes one of transform"),
            (dict(rules=RULES, tokenizer=NoLength()), "with convert_ids_to_tokens() and a length, got NoLength"),
            (dict(rules=file), f"{file}: expected a JSON list of 1 to 100 regions, got no JSON"),
            (dict(rules=RULES, attention="replace", interventions="hide_keys,region=tail"),
             "interventions 'hide_keys,region=tail': region: expected one of first, prompt, question, names, head, "
             "answer, decided, masks, after, got \"tail\". HINT: regions= names parts"))):
        with pytest.raises(blockscope.UsageError) as error:
            record(tmp_path / f"{index}.h5", "needle", models.decode_blocks, **options)
        assert words in str(error.value)
