"""Times one attention map of a trace against torch on the same arrays, in turns.

A trace of level full with a long prompt, such as:
    python scripts/bench/make_random_checkpoint.py /tmp/model --block-length 32
    blockscope capture /tmp/model --input-ids $(seq -s, 1 8192) --gen-length 32 --layers 0 --record full -o run.h5
    python scripts/bench/attention_map.py run.h5 build/release/tests/bench_attention_map
"""

import argparse
import json
import subprocess
import time

import h5py
import numpy as np
import torch


def arrays(path, row):
    """Queries [B, D] and keys [N, D] of the row's first layer and head, float32."""
    with h5py.File(path) as file:
        end = int(file["/prefix/end"][row - 1])
        outside, inside = file["/prefix/key"][:end, 0, 0], file["/kv/key"][row, 0, 0]
        keys = np.concatenate([outside, inside[~np.isnan(inside).any(-1)]])
        return (torch.from_numpy(file["/query/query"][row, 0, 0].astype(np.float32)),
                torch.from_numpy(keys.astype(np.float32)), float(file.attrs["softmax_scale"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("tool", help="build/release/tests/bench_attention_map")
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    ours, theirs = [], []
    for _ in range(chosen.turns):
        found = json.loads(subprocess.run([chosen.tool, chosen.trace], capture_output=True, text=True, check=True).stdout)
        ours.append(found)
        query, keys, scale = arrays(chosen.trace, found["row"])
        assert len(keys) == found["num_keys"], (len(keys), found)
        least = float("inf")
        for _ in range(50):
            begin = time.perf_counter()
            torch.softmax(query @ keys.T * scale, -1)
            least = min(least, 1e3 * (time.perf_counter() - begin))
        theirs.append(least)
    print(f"{found['num_keys']} keys, {len(query)} queries, {torch.get_num_threads()} threads of torch; ms, median of "
          f"{chosen.turns} turns (each the least of 50)")
    print(f"map from keys in memory: {np.median([x['map'] for x in ours]):.3f}; torch: {np.median(theirs):.3f}; "
          f"reading the keys of one KV head: {np.median([x['keys'] for x in ours]):.3f}")


if __name__ == "__main__":
    main()
