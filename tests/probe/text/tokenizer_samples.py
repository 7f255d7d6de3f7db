"""Texts and tokenizers that the fixtures and the live parity check share.

The texts are the cases that re-implementations get wrong; the tokenizers are small ones trained here,
in the styles of real checkpoints (Qwen2 / Qwen3 / SDAR, GPT-2, Llama-3) and one that combines the
rarer components. sentencepiece_samples.py adds those of SentencePiece.
"""

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TRAINING = [
    "The quick brown fox jumps over the lazy dog. It's what we've always said, isn't it?",
    "def main(argument):\n    return {'key': [1, 2, 3], \"value\": None}\n",
    "Der Fluß fließt über die Brücke; déjà vu, naïve café, señor, Ångström.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "機械学習モデルは離散拡散で文章を生成します。今天天气很好，我们去公园吧。",
    "הנה משפט בעברית, وهذه جملة عربية.",
    "if (x == 10 && y >= 2048) { printf(\"%d\\n\", x * y); }  // 3.14159",
    "block diffusion models decode tokens inside a block in any order ",
] * 4

HARD_TEXTS = [
    "",
    " ",
    "a",
    "Hello world",
    "  leading and trailing  ",
    "tabs\tand\nnew\r\nlines\n\n\n  indented\r",
    "It's I'LL they'Re we'd 'S 's",
    "12345678901234567890 3.14 1e-9 0x1F ½ ² Ⅻ ٣٤٥ १२३",
    "naïve café — naive cafe, fl ﬁ ﬂ",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "\u1e9b\u0323 \u0344 \u0958 \u2126 \u212b \u00c5 \uac00\u11a8 \u1100\u1161\u11a8",
    "q\u0307\u0323 q\u0323\u0307 a\u0315\u0300\u05ae\u0062",
    "e" + "\u0301\u0316" * 20 + "x",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "שלום עולם مرحبا بالعالم \u202eabc\u202c \u200f",
    "日本語のテキスト、半角ｶﾀｶﾅ。中文字符，标点！한국어 문장입니다。",
    "ไทยไม่มีช่องว่าง देवनागरी नमस्ते தமிழ்",
    "a" * 300,
    " " * 257,
    "\n" * 130,
    "ab" * 200 + " " + "0" * 100,
    "=" * 80 + "\n" + "-" * 33,
    "\u00a0\u2003\u3000\u200b\ufeff x\u00a0y\u2028z",
    "\x00\x01\x02\x07\x1b[31mred\x1b[0m\x7f\x85\x9f",
    "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "text<|endoftext|>text <|endoftext|> <|im_end|><|im_end|>",
    "<|im_start|<|im_start|><|im_start|>>",
    "x <mask> y<mask>z  <mask>\t<mask>",
    "<r>  a <r>\n\nb<r><r>  <mask>  <r>",
    "word words sword word, _word word_ wordé éword word\u0301 word\u200dx (word)",
    "Ångström A\u030angstro\u0308m ångström ÅNGSTRÖM",
    "İstanbul IĞDIR ΟΔΟΣ ǅ ß ẞ Kelvin K",
    "a.b..c...d -- e---f__g",
    "CamelCase snake_case kebab-case SCREAMING_CASE x1y2z3",
    "https://example.org/path?query=1&other=%20#frag user@example.org",
    "\\n \\u0041 \\x41 \"quoted\" 'single' `tick`",
    "Zalgo: t\u0335\u0321\u0322h\u0334\u0327i\u0338\u0328s\u0337",
    "mixed 中文 and English и русский ١٢٣ עברית",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 ℕ ﷺ ㈱ ㌔",
    "end with space ",
    "\tdef f():\n\t\treturn 1\n",
    "foo\u0085bar\u000bbaz\u000cqux",
    "a\u0300" * 50,
    "'" * 9 + "s't're",
]


def train(tokenizer, vocab_size=640, specials=()):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def make_qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tokenizer)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    tokenizer.add_special_tokens([AddedToken("<|MASK|>", normalized=False)])
    return tokenizer


def make_gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    train(tokenizer, specials=["<|endoftext|>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_tokens(
        [
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("Ångström", normalized=True),
            AddedToken("<|im", normalized=False),
            AddedToken("<|im_start|>", normalized=False),
        ]
    )
    return tokenizer


def make_llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]
            ),
        ]
    )
    # A whole word that no merges reach: only ignore_merges finds it.
    data = json.loads(tokenizer.to_str())
    data["model"]["vocab"]["Ġshibboleth"] = len(data["model"]["vocab"])
    for token in data["added_tokens"]:
        token["id"] += 1
    for special in data["post_processor"]["processors"][1]["special_tokens"].values():
        special["ids"] = [i + 1 for i in special["ids"]]
    return Tokenizer.from_str(json.dumps(data))


def make_mixed():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(left=True, right=True),
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace("``", '"'),
            normalizers.Replace(Regex(r"[\u200b\ufeff]+"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"\p{L}+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    train(tokenizer)
    tokenizer.add_tokens([AddedToken("Word", single_word=True), AddedToken("ΟΔΟΣ")])
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")],
    )
    return tokenizer


MAKERS = {"qwen2": make_qwen2, "gpt2": make_gpt2, "llama3": make_llama3, "mixed": make_mixed}


def random_ids(tokenizer, seed, count=24):
    """Id sequences that cut characters apart, with a few ids that no token has."""
    generator = random.Random(seed)
    size = tokenizer.get_vocab_size()
    return [
        [generator.randrange(size + 3) for _ in range(generator.randrange(1, 24))]
        for _ in range(count)
    ]


def random_texts(seed, count):
    """Texts drawn from the alphabets of the hard ones, in random order."""
    generator = random.Random(seed)
    pool = sorted(set("".join(HARD_TEXTS)))
    pieces = [t for t in HARD_TEXTS if 0 < len(t) < 60] + [
        "<|im_start|>", "<|im_end|>", "<mask>", "<r>", "word", "  ", "\n\n", "'s", "123", " the",
        " shibboleth", "Ångström",
    ]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(generator.randrange(1, 30)):
            if generator.random() < 0.5:
                parts.append(generator.choice(pieces)[: generator.randrange(1, 30)])
            else:
                parts.append(generator.choice(pool))
        texts.append("".join(parts))
    return texts
