"""What llama_cpp_pair.py and llama_block_pair.py share: the driver's process, and its logits compared with ours."""

import pathlib
import subprocess
import sys
import tempfile

import pairs


def add_options(parser, gen_length, dtype):
    parser.add_argument("driver", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    pairs.add_run_options(parser, gen_length, dtype)
    parser.add_argument("--block-length", type=int, default=32)


def run(a, prompt, *arguments):
    """-> what the driver prints."""
    command = list(map(str, [a.driver, a.gguf, a.threads, *arguments]))
    result = subprocess.run(command, input=" ".join(map(str, prompt)), capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{command}: exit code {result.returncode}\n{result.stderr}")
    return result.stdout


def compare_logits(a, write_logits, ids, **metadata) -> str:
    """`blockscope check` on the logits that write_logits(path) leaves for the positions of `ids`."""
    import numpy as np
    import torch
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        raw, reference = pathlib.Path(folder) / "logits", pathlib.Path(folder) / "reference.safetensors"
        write_logits(raw)
        logits = torch.from_numpy(np.fromfile(raw, np.float32).reshape(len(ids), -1))
        save_file({"input_ids": torch.tensor([ids]), "logits": logits}, reference, metadata=metadata)
        result = subprocess.run([pairs.BINARY, "check", a.model, "--reference", reference, "--dtype", a.dtype],
                                capture_output=True, text=True)
    return " ".join((result.stdout + result.stderr).split())
