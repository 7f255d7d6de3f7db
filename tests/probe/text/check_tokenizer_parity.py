"""Our tokenizer against the `tokenizers` package, live: the fixture styles and a grid of
pre-tokenizer, normalizer and decoder settings, on the hard texts and on random mixtures of them.

Usage: check_tokenizer_parity.py <text_oracle_client>; exit 77 if the package is missing.
"""

import json
import pathlib
import sys
import tempfile

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
except ImportError:
    print("skipped: the Python package `tokenizers` is not installed")
    sys.exit(77)

import sentencepiece_samples
import tokenizer_samples as samples
from oracle_client import OracleClient

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def with_metaspace(scheme, split, decoder=None, steps=(), normalizer=None):
    """The Unigram sample's pieces after other steps."""
    tokenizer = sentencepiece_samples.make_unigram()
    tokenizer.normalizer = normalizer or normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split), *steps]
    )
    tokenizer.decoder = decoder or decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_tokens([tokenizers.AddedToken("<r>", normalized=True)])
    data = json.loads(tokenizer.to_str())
    if normalizer is None:
        data["normalizer"] = None
    return Tokenizer.from_str(json.dumps(data))


def metaspace_variants():
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            yield f"metaspace {scheme} {split}", with_metaspace(scheme, split)
    digits = pre_tokenizers.Digits(individual_digits=True)
    yield "metaspace, digits", with_metaspace("first", True, steps=[digits])
    yield "metaspace, strip", with_metaspace(
        "always", True, normalizer=normalizers.Strip(left=True, right=False)
    )
    for name, decoder in (
        ("fuse first", [decoders.Fuse(), decoders.Replace("\u2581", " ")]),
        ("strip each", [decoders.Strip("\u2581", 0, 1), decoders.ByteFallback()]),
        ("regex", [decoders.Replace(Regex(r"[\u2581a-c]+"), "<>"), decoders.Strip("<", 1, 0)]),
    ):
        yield f"decoder, {name}", with_metaspace("always", True, decoders.Sequence(decoder))
    data = json.loads(sentencepiece_samples.make_llama2().to_str())
    for key, value in (("fuse_unk", False), ("byte_fallback", False), ("unk_token", None)):
        data["model"][key] = value
        yield f"llama2, {key} {value}", Tokenizer.from_str(json.dumps(data))


def with_pre_tokenizer(*steps, normalizer=None):
    """The GPT-2 sample's vocabulary after other steps."""
    data = json.loads(samples.make_gpt2().to_str())
    tokenizer = Tokenizer.from_str(json.dumps(data))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # Through the file, as a user's tokenizer comes: added tokens are normalised on loading.
    return Tokenizer.from_str(tokenizer.to_str())


def variants():
    yield from ((name, make()) for name, make in sentencepiece_samples.MAKERS.items())
    yield from metaspace_variants()
    for behavior in BEHAVIORS:
        for invert in (False, True):
            split = pre_tokenizers.Split(Regex(r"\s+|[a-e]+|\p{N}"), behavior, invert=invert)
            yield f"regex {behavior} {invert}", with_pre_tokenizer(split)
            split = pre_tokenizers.Split("a.", behavior, invert=invert)
            yield f"string {behavior} {invert}", with_pre_tokenizer(split)
    empty = pre_tokenizers.Split(Regex(r"x*"), "isolated")
    yield "empty matches", with_pre_tokenizer(empty)
    yield "look-behind", with_pre_tokenizer(
        pre_tokenizers.Split(Regex(r"(?<=[a-z])(?=[A-Z])|^ |_$"), "isolated")
    )
    for individual in (False, True):
        yield f"digits {individual}", with_pre_tokenizer(pre_tokenizers.Digits(individual))
    yield "prefix space", with_pre_tokenizer(
        pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)
    )
    for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD):
        yield form.__name__, with_pre_tokenizer(normalizer=form())
    yield "lowercase", with_pre_tokenizer(normalizer=normalizers.Lowercase())
    for left, right in ((True, False), (False, True), (True, True), (False, False)):
        yield f"strip {left} {right}", with_pre_tokenizer(
            normalizer=normalizers.Strip(left=left, right=right)
        )
    yield "prepend, replace", with_pre_tokenizer(
        normalizer=normalizers.Sequence(
            [
                normalizers.Prepend("_"),
                normalizers.Replace(" ", "_"),
                normalizers.Replace(Regex(r"\d+"), "#"),
            ]
        )
    )


def compare(client, folder, name, tokenizer, texts):
    path = pathlib.Path(folder) / "tokenizer_under_test.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    sequences = samples.random_ids(tokenizer, seed=11, count=40)
    failures = 0
    for special in (False, True):
        wanted = [tokenizer.encode(t, add_special_tokens=special).ids for t in texts]
        answer = client.ask(
            tokenizer=str(path), texts=texts, special=special, ids=wanted + sequences
        )
        if "error" in answer:
            print(f"{name}: {answer['error']}")
            return 1
        for text, ours, theirs in zip(texts, answer["ids"], wanted):
            if ours != theirs:
                failures += 1
                print(f"{name}: {text!r}\n  ours {ours}\n  theirs {theirs}")
        for skip, key in ((False, "decoded"), (True, "decoded_skip")):
            for ids, ours in zip(wanted + sequences, answer[key]):
                theirs = tokenizer.decode(ids, skip_special_tokens=skip)
                if ours != theirs:
                    failures += 1
                    print(f"{name}: decode {ids} skip={skip}\n  {ours!r}\n  {theirs!r}")
    return failures


def main():
    client = OracleClient(sys.argv[1])
    texts = samples.HARD_TEXTS + samples.random_texts(seed=3, count=400)
    failures = 0
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in variants():
            failures += compare(client, folder, name, tokenizer, texts)
            count += 1
    client.close()
    print(f"tokenizers {tokenizers.__version__}: {count} tokenizers, {len(texts)} texts each, "
          f"{failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
