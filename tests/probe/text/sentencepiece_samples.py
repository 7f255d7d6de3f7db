"""Small tokenizers in the styles that come from SentencePiece: Gemma, Llama 2, Mistral, T5. MAKERS holds them and
those of tokenizer_samples.py."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

import tokenizer_samples as samples

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\u2581"


def with_byte_fallback(tokenizer, **model_keys):
    """Byte tokens as SentencePiece's converters write them: in the vocabulary, not added tokens."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in BYTE_TOKENS]
    data["model"] |= model_keys
    return Tokenizer.from_str(json.dumps(data))


def train_sentencepiece(tokenizer, specials, vocab_size=620):
    """On words that already have SentencePiece's spelling of spaces, some alphabets left out."""
    tokenizer.train_from_iterator(samples.TRAINING, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[*specials, *BYTE_TOKENS], limit_alphabet=90,
        show_progress=False))
    return tokenizer


def replace_decoder(*more):
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *more])


def starting_with(token, tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))])


def make_gemma():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = replace_decoder()
    tokenizer = train_sentencepiece(tokenizer, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    tokenizer = with_byte_fallback(tokenizer, byte_fallback=True)
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken(SPACE * 3, normalized=False)])
    starting_with("<bos>", tokenizer)
    return Tokenizer.from_str(tokenizer.to_str())


def make_llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = replace_decoder(decoders.Strip(" ", 1, 0))
    tokenizer = train_sentencepiece(tokenizer, ["<unk>", "<s>", "</s>"])
    tokenizer = with_byte_fallback(tokenizer, byte_fallback=True)
    starting_with("<s>", tokenizer)
    return Tokenizer.from_str(tokenizer.to_str())


def make_mistral():
    """Some bytes have no token, so some characters are unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = replace_decoder(decoders.Strip(" ", 1, 0))
    tokenizer = train_sentencepiece(tokenizer, ["<unk>", "<s>", "</s>"])
    data = json.loads(with_byte_fallback(tokenizer, byte_fallback=True).to_str())
    for byte in (0x81, 0xF0, 0x9F, 0x0A):
        data["model"]["vocab"][f"lost {byte}"] = data["model"]["vocab"].pop(f"<0x{byte:02X}>")
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    starting_with("<s>", tokenizer)
    return Tokenizer.from_str(tokenizer.to_str())


def make_unigram(byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(samples.TRAINING, trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    if byte_fallback:
        data = json.loads(tokenizer.to_str())
        pieces = data["model"]["vocab"]
        pieces += [[token, -20.0] for token in BYTE_TOKENS]
        data["model"]["byte_fallback"] = True
        tokenizer = Tokenizer.from_str(json.dumps(data))
        tokenizer.decoder = replace_decoder(decoders.Strip(" ", 1, 0))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    return Tokenizer.from_str(tokenizer.to_str())


def make_unigram_bytes():
    return make_unigram(byte_fallback=True)


MAKERS = samples.MAKERS | {
    "gemma": make_gemma, "llama2": make_llama2, "mistral": make_mistral, "unigram": make_unigram,
    "unigram_bytes": make_unigram_bytes}
