"""Our tokenizer against SentencePiece itself: models that its trainer makes here, as a tokenizer.json (converted as
transformers does), give the ids and texts of the original.

Usage: check_sentencepiece_parity.py <text_oracle_client>; exit 77 if a package is missing.
"""

import io
import pathlib
import sys
import tempfile

try:
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, normalizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import tokenizer_samples as samples
from oracle_client import OracleClient

SPACE = "\u2581"


def trained(kind, prefix):
    """-> SentencePiece's processor. Rare characters have no piece, so they become bytes."""
    lines = [line for text in samples.TRAINING for line in text.split("\n") if line.strip()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type=kind, vocab_size=470, byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=prefix, remove_extra_whitespaces=False,
        hard_vocab_limit=False, character_coverage=0.98, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def merges_of(processor, vocab):
    """The pairs that make each piece, in the order of its score."""
    merges = []
    for piece, index in vocab.items():
        if processor.is_byte(index) or processor.is_control(index) or processor.is_unknown(index):
            continue
        pairs = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += [(-processor.get_score(index), pair)
                   for pair in sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    return [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]


def converted(processor, kind, prefix):
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    if kind == "bpe":
        model = models.BPE(vocab=vocab, merges=merges_of(processor, vocab), unk_token="<unk>", fuse_unk=True,
                           byte_fallback=True)
    else:
        scores = [(piece, processor.get_score(i)) for i, piece in enumerate(pieces)]
        model = models.Unigram(scores, unk_id=processor.unk_id(), byte_fallback=True)
    tokenizer = Tokenizer(model)
    first = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return tokenizer


def main():
    client = OracleClient(sys.argv[1])
    # SentencePiece ends a text at NUL, and spells spaces with a character that a text may have.
    texts = [text for text in samples.HARD_TEXTS + samples.random_texts(seed=5, count=600)
             if "\x00" not in text and SPACE not in text]
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("bpe", "unigram"):
            for prefix in (True, False):
                processor = trained(kind, prefix)
                path = pathlib.Path(folder) / "tokenizer.json"
                path.write_text(converted(processor, kind, prefix).to_str(), encoding="utf-8")
                wanted = [processor.encode(text) for text in texts]
                answer = client.ask(tokenizer=str(path), texts=texts, special=False, ids=wanted)
                if "error" in answer:
                    sys.exit(answer["error"])
                for text, ids, ours, decoded in zip(texts, wanted, answer["ids"], answer["decoded"], strict=True):
                    if ours != ids or decoded != processor.decode(ids):
                        differences += 1
                        print(f"{kind} {prefix}: {text!r}\n  ours   {ours} {decoded!r}\n  theirs {ids}")
    client.close()
    print(f"sentencepiece {sentencepiece.__version__}: 4 models, {len(texts)} texts each, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
