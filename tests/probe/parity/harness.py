"""Runs the `blockscope` binary for the parity tests and counts what was compared."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")


def run(*arguments, expect=0):
    """Runs blockscope; the exit code must be `expect`. Returns its stdout. Captures record every prediction: the
    oracles know those of decided positions, too."""
    command = [BINARY, *[str(a) for a in arguments]]
    if arguments[0] == "capture" and not {"--predictions", "--draft"} & set(command):
        command += ["--predictions", "all"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode != expect:
        sys.exit(f"{' '.join(command)}\nexit code {result.returncode}, expected {expect}\n"
                 f"{result.stdout}{result.stderr}")
    return result.stdout


def write_tokenizer(checkpoint):
    """A tokenizer of one token. Returns its text."""
    tokenizer = json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None,
                            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                                              "trim_offsets": True, "use_regex": True},
                            "post_processor": None, "decoder": {"type": "ByteLevel"},
                            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
    (pathlib.Path(checkpoint) / "tokenizer.json").write_text(tokenizer)
    return tokenizer


def write_frequencies(checkpoint, counts):
    """A table for pc_sampler of how often each token occurs, bound to a tokenizer that this checkpoint then has."""
    tokenizer = write_tokenizer(checkpoint)
    path = pathlib.Path(checkpoint) / "table.json"
    path.write_text(json.dumps({
        "format": "blockscope-frequencies", "format_version": 1, "vocab_size": len(counts),
        "tokenizer": hashlib.sha256(tokenizer.encode()).hexdigest(), "tokens": sum(counts),
        "texts": 1, "counts": [[i, count] for i, count in enumerate(counts) if count]}))
    return str(path)


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="blockscope-parity-")


def require(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def start():
    """Call first: without the binary the test is skipped, as ctest understands it."""
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
