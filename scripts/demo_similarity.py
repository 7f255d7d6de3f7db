"""Prints how similar A_out and A_in stay between adjacent steps, from `analyze --json`.

Usage: demo_similarity.py analysis.json
"""

import json
import sys


def head_means(array):
    """Mean over all axes except layer and head, weighted by the number of terms."""
    layers, heads, steps = array["shape"]
    means = []
    for start in range(0, layers * heads * steps, steps):
        cells = zip(array["values"][start : start + steps], array["terms"][start : start + steps])
        cells = [(value, terms) for value, terms in cells if value is not None and terms > 0]
        terms = sum(n for _, n in cells)
        if terms:
            means.append((sum(value * n for value, n in cells) / terms, terms))
    return means


def overall(means):
    return sum(mean * terms for mean, terms in means) / sum(terms for _, terms in means)


with open(sys.argv[1], encoding="utf-8") as file:
    metrics = {metric["metric"]: metric for metric in json.load(file)["metrics"]}
arrays = {array["name"]: array for array in metrics["similarity"]["arrays"]}
external = head_means(arrays["similarity_external"])
internal = head_means(arrays["similarity_internal"])
steadier = sum(a[0] > b[0] for a, b in zip(external, internal))
print(
    f"Similar: A_out {overall(external):.3f} from one step to the next, A_in {overall(internal):.3f}; "
    f"A_out is steadier in {steadier} of {len(external)} heads"
)
