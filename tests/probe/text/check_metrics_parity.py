"""Our metrics against straightforward Python on random pairs, and against the PyPI packages `rouge`
and `Levenshtein` where they are installed.

Usage: check_metrics_parity.py <text_oracle_client>
"""

import random
import re
import string
import sys
from collections import Counter

from oracle_client import OracleClient

try:
    from rouge import Rouge
except ImportError:
    Rouge = None
try:
    import Levenshtein
except ImportError:
    Levenshtein = None


def normalize(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction, reference):
    return float(normalize(prediction) == normalize(reference))


def contains(prediction, reference):
    prediction, reference = normalize(prediction), normalize(reference)
    return float(reference in prediction) if reference else float(not prediction)


def f1(prediction, reference):
    prediction, reference = normalize(prediction).split(), normalize(reference).split()
    common = sum((Counter(prediction) & Counter(reference)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(prediction), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def lcs_table(x, y):
    table = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table


def lcs_words(x, y):
    table, i, j, found = lcs_table(x, y), len(x), len(y), set()
    while i and j:
        if x[i - 1] == y[j - 1]:
            found.add(x[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def rouge_l(prediction, reference):
    def sentences(text):
        return [" ".join(part.split()).split(" ") for part in text.split(".") if part]

    prediction, reference = sentences(prediction), sentences(reference)
    if not prediction or not reference:
        return 0.0
    union = set().union(*(lcs_words(r, p) for r in reference for p in prediction))
    precision = len(union) / len({word for words in prediction for word in words})
    recall = len(union) / len({word for words in reference for word in words})
    return 2 * (precision * recall / (precision + recall + 1e-8))


def edit_similarity(prediction, reference):
    if not prediction and not reference:
        return 1.0
    length = lcs_table(prediction, reference)[-1][-1]
    return 2 * length / (len(prediction) + len(reference))


def package_rouge_l(prediction, reference):
    try:
        return Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except ValueError:
        return 0.0


def random_text(generator):
    words = ["the", "A", "an", "cat", "Dog", "dog.", "fox,", "naïve", "ÉTÉ", "日本", "x-y", "it's",
             ".", "..", "7", "42", "!?", "fox", "red", "blue", "\u00a0", "\n"]
    count = generator.choice([0, 1, 2, 5, 12, 30, 80])
    return generator.choice([" ", "  ", " "]).join(generator.choice(words) for _ in range(count))


def main():
    generator = random.Random(5)
    pairs = [(random_text(generator), random_text(generator)) for _ in range(1500)]
    judges = [
        ("exact_match", exact_match),
        ("contains", contains),
        ("f1", f1),
        ("rouge_l", rouge_l),
        ("edit_similarity", edit_similarity),
    ]
    if Rouge is not None:
        judges.append(("rouge_l", package_rouge_l))
    if Levenshtein is not None:
        judges.append(("edit_similarity", lambda p, r: Levenshtein.ratio(p, r)))
    client = OracleClient(sys.argv[1])
    failures = 0
    for name, judge in judges:
        answer = client.ask(metric=name, pairs=pairs)
        for (prediction, reference), ours in zip(pairs, answer["scores"], strict=True):
            theirs = judge(prediction, reference)
            if abs(ours - theirs) > 1e-12:
                failures += 1
                print(f"{name} {judge.__name__}: {prediction!r} {reference!r}: {ours} != {theirs}")
    client.close()
    print(f"{len(judges)} judges, {len(pairs)} pairs, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
