"""Writes tests/data/tokenizers: small tokenizers and what the `tokenizers` package does with them.

    pip install tokenizers==0.23.3
    python tests/probe/text/make_tokenizer_fixtures.py
"""

import json
import pathlib

import tokenizers

import tokenizer_samples as samples
from sentencepiece_samples import MAKERS

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "data" / "tokenizers"


def legacy_merges(text):
    """Merges as one string each, as files written before 2024 have them."""
    data = json.loads(text)
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    expected = {"made_with": f"tokenizers {tokenizers.__version__}", "texts": samples.HARD_TEXTS}
    for name, make in MAKERS.items():
        tokenizer = make()
        text = tokenizer.to_str()
        if name == "gpt2":
            text = legacy_merges(text)
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        tokenizer = tokenizers.Tokenizer.from_str(text)
        ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in samples.HARD_TEXTS]
        sequences = samples.random_ids(tokenizer, seed=7)
        expected[name] = {
            "vocab_size": tokenizer.get_vocab_size(),
            "ids": ids,
            "first_with_special": tokenizer.encode("Hello world").ids,
            "decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in ids],
            "decoded_skip": [tokenizer.decode(i, skip_special_tokens=True) for i in ids],
            "random_ids": sequences,
            "random_decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in sequences],
        }
    with open(FOLDER / "expected.json", "w", encoding="utf-8") as file:
        json.dump(expected, file, ensure_ascii=True, separators=(",", ":"))


if __name__ == "__main__":
    main()
