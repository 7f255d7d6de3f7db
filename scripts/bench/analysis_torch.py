"""Adjacent-step cosines of A_out, and token x token matrices, over a trace with torch and with
h5py + numpy: what a researcher would write without Blockscope. Prints one JSON object with GB/s of
A_out in the file's type (median of --repeat runs); bench_analysis runs it after our own code.

    python scripts/bench/analysis_torch.py trace.h5 --repeat 3 [--threads 2] [--rows 96]

torch reads raw chunks (h5py's read_direct_chunk, one layer of a step each, no conversion) and works
in bfloat16 -> float32; numpy reads through h5py's own conversion to float32."""

import argparse
import json
import statistics
import time
import warnings

import h5py
import numpy as np


def pairs(trace, rows):
    """Rows of adjacent denoising steps, in file order: (row, is the row before its step before)."""
    steps = trace["steps"]
    key = [steps[name][:rows] for name in ("sequence", "block", "step", "kind")]
    for row in range(rows):
        if key[3][row] != 1:
            continue
        same = row > 0 and key[3][row - 1] == 1 and all(
            key[i][row] == key[i][row - 1] for i in (0, 1)) and key[2][row] == key[2][row - 1] + 1
        yield row, same


def torch_cosine(data, rows, layers, torch, matrix):
    shape, previous, total = data.shape[2:], {}, 0.0
    for row, same in rows:
        for layer in range(layers):
            _, raw = data.id.read_direct_chunk((row, layer, 0, 0, 0))
            now = torch.frombuffer(raw, dtype=torch.bfloat16).view(*shape)
            if same:
                if matrix:  # heads concatenated: [B, H * D]
                    a, b = (x.float().permute(1, 0, 2).reshape(shape[1], -1)
                            for x in (previous[layer], now))
                    a, b = (torch.nn.functional.normalize(x, dim=-1) for x in (a, b))
                    total += float((a @ b.T).sum())
                else:
                    total += float(torch.nn.functional.cosine_similarity(
                        previous[layer].float(), now.float(), dim=-1).sum())
            previous[layer] = now
    return total


def numpy_cosine(data, rows, layers, matrix):
    previous, total = {}, 0.0
    for row, same in rows:
        for layer in range(layers):
            now = data[row, layer]
            if same:
                a, b = previous[layer], now
                if matrix:
                    a, b = (x.transpose(1, 0, 2).reshape(x.shape[1], -1) for x in (a, b))
                    a, b = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
                    total += float((a @ b.T).sum())
                else:
                    total += float((np.einsum("hbd,hbd->hb", a, b) / np.sqrt(
                        np.einsum("hbd,hbd->hb", a, a) * np.einsum("hbd,hbd->hb", b, b))).sum())
            previous[layer] = now
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10**9, help="of the trace, at most")
    parser.add_argument("--no-numpy", action="store_true")
    arguments = parser.parse_args()
    import torch
    warnings.simplefilter("ignore")  # chunks are read-only buffers, and are only read
    torch.set_num_threads(arguments.threads)
    trace = h5py.File(arguments.trace, "r")
    data = trace["/attention/external"]
    rows = list(pairs(trace, min(int(trace["/steps/committed"][0]), arguments.rows)))
    layers = data.shape[1]
    size = len(rows) * data.id.get_storage_size() / data.shape[0] / 1e9

    def measure(run):
        seconds, total = [], None
        for _ in range(arguments.repeat):
            start = time.perf_counter()
            total = run()
            seconds.append(time.perf_counter() - start)
        return {"gb_per_s": size / statistics.median(seconds), "sum": total}

    results = {"gb": size,
               "torch_cosine": measure(lambda: torch_cosine(data, rows, layers, torch, False)),
               "torch_matrix": measure(lambda: torch_cosine(data, rows, layers, torch, True))}
    if not arguments.no_numpy:
        results["numpy_cosine"] = measure(lambda: numpy_cosine(data, rows, layers, False))
        results["numpy_matrix"] = measure(lambda: numpy_cosine(data, rows, layers, True))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
