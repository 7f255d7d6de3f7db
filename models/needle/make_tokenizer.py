#!/usr/bin/env python3
"""Writes the tokenizer of the needle models: byte-level BPE, Qwen2's normaliser and regex.

Every word of probe/tasks/task_words.cpp becomes one token: BPE is trained on the word list until no
word is left in pieces. Needs the PyPI package `tokenizers` (0.22 or later). Run it from anywhere:

    python3 models/needle/make_tokenizer.py

Each model folder gets the same three files, so that it still loads after it is copied alone.
"""

import json
import pathlib
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

MODELS = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = [MODELS / name for name in ("needle", "needle/backbone", "needle-2k", "needle-bidirectional")]
WORDS = MODELS.parent / "probe" / "tasks" / "task_words.cpp"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
# The regex of Qwen2's tokenizer.json.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def words() -> list[str]:
    """Every multi-character word as it stands in the text, with its leading space if it has one."""
    source = WORDS.read_text()
    lists = dict(re.findall(r'constexpr const char\* (k\w+) = R?"\(?(.*?)\)?";', source, re.S))
    bare = lists.pop("kLineStarts").split()
    lists.pop("kMarks")
    return [" " + word for text in lists.values() for word in text.split()] + bare


def make() -> Tokenizer:
    tokenizer = Tokenizer(BPE(byte_fallback=False, ignore_merges=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=4000, min_frequency=1, initial_alphabet=alphabet,
                         show_progress=False)
    tokenizer.train_from_iterator(words(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    return tokenizer


def compact(tokenizer: Tokenizer) -> str:
    """tokenizer.json with a line for each of its parts; the vocabulary and the merges are one line."""
    parts = json.loads(tokenizer.to_str())
    lines = [f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False, separators=(',', ':'))}"
             for name, part in parts.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def files() -> dict[str, str]:
    """The text of each file that a model folder gets."""
    tokenizer = make()
    for word in words():
        pieces = tokenizer.encode(word).tokens
        if len(pieces) != 1:
            raise SystemExit(f"{word!r} is {len(pieces)} tokens: {pieces}")
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL}
    decoder = {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                        "single_word": False, "special": True} for text, i in ids.items()}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder,
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|MASK|>"],
              "bos_token": None, "clean_up_tokenization_spaces": False,
              "eos_token": "<|endoftext|>", "errors": "replace", "mask_token": "<|MASK|>",
              "model_max_length": 2048, "pad_token": "<|endoftext|>", "split_special_tokens": False,
              "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    special = {"additional_special_tokens": config["additional_special_tokens"],
               "eos_token": "<|endoftext|>", "mask_token": "<|MASK|>", "pad_token": "<|endoftext|>"}
    texts = {"tokenizer.json": compact(tokenizer)}
    for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        texts[name] = json.dumps(value, indent=2) + "\n"
    return texts


def main() -> None:
    for name, text in files().items():
        for folder in FOLDERS:
            (folder / name).write_text(text)
        print(f"{name}: {len(text.encode())} bytes, in {len(FOLDERS)} folders")


if __name__ == "__main__":
    main()
