"""The harness of the scripts that time `blockscope` and another implementation: the same prompt, the same number of
threads, and the two sides in turns, so both meet the same load. A script defines its two sides:

    a = parser.parse_args()                  # with add_run_options
    config, prompt = pairs.begin(a)
    ...
    equal = pairs.equal_tokens(a, tokens, expected)
    pairs.compare(a, "Fast-dLLM", run_ours, run_theirs)    # prints the table and writes --json
    pairs.finish(a, equal == a.gen_length)

BLOCKSCOPE_BINARY names the binary. A run of ours is one process: `bench --runs 1`, which warms up with a whole run.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "build/release/bin/blockscope")
_MASK64 = (1 << 64) - 1


def _mix(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def bench_prompt(context, vocab, mask_id, seed=0):
    """The token ids that `blockscope bench --context --seed` draws for its first sequence."""
    ids = []
    for position in range(context):
        state = _mix(seed)
        for part in (0, 0, 0, position):
            state = _mix(state ^ part)
        token = int((state >> 11) * 2.0 ** -53 * vocab)
        ids.append(token if token != mask_id else max(token - 1, 0) or 1)
    return ids


def add_run_options(parser, gen_length=256, dtype="float32"):
    """The options of a run that both sides share."""
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=dtype, help="a GGUF has its own")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--gen-length", type=int, default=gen_length)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write every run of both sides here")


def add_block_options(parser):
    """Options of a run block by block with a threshold."""
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)


def _run(*arguments):
    result = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{BINARY} {' '.join(map(str, arguments))}: exit code {result.returncode}\n{result.stderr}")
    return result.stdout


def time_ours(model, flags):
    """-> the JSON of one timed run without a recorder."""
    return json.loads(_run("bench", model, "--levels", "off", "--runs", 1, "--json", *flags))[0]


def decode_ours(model, prompt, flags):
    """-> every denoising step as {"decided": {position: token}, "block_rows": computed positions of the block},
    and the tokens at the end; positions count from the prompt's first."""
    import h5py
    import numpy as np
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run.h5"
        _run("capture", model, "--input-ids", ",".join(map(str, prompt)), "--record", "trajectory", "--no-stop", "--quiet",
             "-o", path, *flags)
        with h5py.File(path) as file:
            count = int(file["/steps/committed"][0])
            ends = file["/frames/delta_end"][:count]
            starts = np.concatenate([[0], ends[:-1]])
            position, token = file["/frames/position"][:], file["/frames/token"][:]
            kind, block_start = file["/steps/kind"][:count], file["/steps/block_start"][:count]
            predicted = file["/prediction/token"][:count]
    steps, tokens = [], {}
    for row in range(count):
        decided = {len(prompt) + int(p): int(t) for p, t in
                   zip(position[starts[row]:ends[row]], token[starts[row]:ends[row]])}
        tokens |= decided
        if kind[row] == 1:
            rows = [int(block_start[row]) + i for i, t in enumerate(predicted[row]) if t >= 0]
            steps.append(dict(decided=decided, block_rows=rows))
    return steps, tokens


def rows_ours(model, prompt, cache, strategy, flags):
    """-> forward passes and the positions that they computed in all (mean over the layers)."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "caches"
        _run("study", "caches", model, "--input-ids", ",".join(map(str, prompt)), "--caches", cache, "--strategies",
             strategy, "--no-stop", "--no-figures", "--quiet", "-o", out, *flags)
        cells = next(out.glob("*.cells.jsonl")).read_text().splitlines()
        run = next(value for value in map(_find_run, map(json.loads, cells)) if value)
    return run["passes"], run["rows"]


def _find_run(value):
    """The first object with passes and rows inside a line of the study's store."""
    if isinstance(value, dict):
        if "passes" in value and "rows" in value:
            return value
        value = list(value.values())
    return next((found for found in map(_find_run, value) if found), None) if isinstance(value, list) else None


def begin(a):
    """Prints facts about the machine. -> config.json of the model, and the prompt."""
    print(machine(a.threads))
    config = json.loads((a.model / "config.json").read_text())
    return config, bench_prompt(a.context, config["vocab_size"], config["mask_token_id"], getattr(a, "seed", 0))


def equal_tokens(a, tokens, expected):
    """How many generated tokens of decode_ours are those of the other side's sequence, the prompt included."""
    return sum(tokens.get(i) == expected[i] for i in range(a.context, a.context + a.gen_length))


def compare(a, name, ours, theirs, ratio=True):
    """Runs ours, theirs, ours, theirs ...; each returns its measurements by name, the one to compare first. Prints both
    sides and, if `ratio`, the ratios of measurements that both have. -> the runs as {name: values}."""
    turns = [(ours(), theirs()) for _ in range(a.rounds)]
    sides = [{key: [run[key] for run in runs] for key in runs[0]} for runs in zip(*turns)]
    for label, side in zip(("blockscope", name), sides):
        print(f"  {label}, least / median / most: " + "; ".join(f"{key} {spread(values)}" for key, values in side.items()))
    for key in sides[0]:
        if ratio and key in sides[1]:
            print(f"  {key}, ours over theirs: {ratios(sides[0][key], sides[1][key])}")
    if a.json:
        a.json.write_text(json.dumps(dict(machine=machine(a.threads), options={k: str(v) for k, v in vars(a).items()},
                                          ours=sides[0], theirs=sides[1], their_name=name), indent=1) + "\n")
    return sides


def finish(a, same):
    """In float32 both sides must have decided the same."""
    if a.dtype == "float32" and not same:
        sys.exit("the runs differ")


def spread(values):
    """least / median / most, for a line of text."""
    return f"{min(values):.4g} / {statistics.median(values):.4g} / {max(values):.4g}"


def ratios(ours, theirs):
    """ours over theirs: of the medians, of the least, and pair by pair."""
    pairs = sorted(a / b for a, b in zip(ours, theirs))
    return (f"{statistics.median(ours) / statistics.median(theirs):.3f} (least {min(ours) / min(theirs):.3f}, "
            f"pairs {pairs[0]:.3f} to {pairs[-1]:.3f})")


def machine(threads):
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    settings = [f"{name}={os.environ[name]}" for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ]
    idle = " ".join(settings) or "each side's own setting"
    return f"{model}, {os.cpu_count()} cores, {threads} threads, load before {load}, idle threads: {idle}"
