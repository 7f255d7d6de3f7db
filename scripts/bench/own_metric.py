"""What a metric in Python costs: own_metric.py TRACE [--blocks N] [--turns N]

Compares `trace.analyze` of a metric (cosine of A_out from step to step) with the same function over NumPy arrays that
are in memory already, with one thread and with all, in turns. The file should be in the page cache."""

import argparse
import time

import blockscope
import numpy as np


def cosine(a, b):
    dot = np.einsum("lhpc,lhpc->lhp", a, b)
    return (dot / np.sqrt(np.einsum("lhpc,lhpc->lhp", a, a) * np.einsum("lhpc,lhpc->lhp", b, b))).mean(-1)


@blockscope.metric("own_cosine", level="outputs", dims=["layer", "head"])
def own_cosine(before, after):
    """Cosine of A_out from step to step."""
    return cosine(before.external, after.external)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    flags = parser.parse_args()
    trace = blockscope.open(flags.trace)
    chosen = range(flags.blocks)
    arrays = [block["external"] for block in trace.blocks(blocks=chosen)]
    size = sum(array.nbytes for array in arrays)
    trace.analyze("own_cosine", blocks=chosen, progress=False)

    def seconds(work):
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def plain():
        for array in arrays:
            for a, b in zip(array, array[1:]):
                cosine(a, b)

    turns = np.array([[seconds(plain), seconds(lambda: trace.analyze("own_cosine", blocks=chosen, threads=1, progress=False)),
                       seconds(lambda: trace.analyze("own_cosine", blocks=chosen, progress=False))]
                      for _ in range(flags.turns)])
    print(f"{sum(map(len, arrays))} steps, {size / 1e9:.2f} GB as float32")
    for name, values in (("NumPy in memory", turns[:, 0]), ("analyze, one thread", turns[:, 1]), ("analyze", turns[:, 2])):
        ratios = turns[:, 0] / values
        print(f"{name}: {np.median(values):.3f} s, speed {100 * np.median(ratios):.0f} % "
              f"[{100 * ratios.min():.0f}, {100 * ratios.max():.0f}]")


if __name__ == "__main__":
    main()
