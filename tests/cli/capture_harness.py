"""A tiny random checkpoint and the `blockscope` binary for the tests of `blockscope capture`.

The checkpoint is written byte by byte (safetensors is a length, a JSON header and the data), so
that a test can damage any part of it.
"""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import h5py
import numpy as np

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")
VOCAB, MASK, BLOCK = 260, 259, 4
CONFIG = {
    "architectures": ["SDARForCausalLM"], "model_type": "sdar", "hidden_act": "silu",
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False,
    "torch_dtype": "float32", "mask_token_id": MASK, "block_size": BLOCK, "eos_token_id": 256,
}


def run_tests(tests, only=""):
    """The functions test_* of a file (its globals()) whose names hold `only`, each in a folder of its own."""
    for name, test in list(tests.items()):
        if name.startswith("test_") and only in name:
            with temporary_folder() as folder:
                begin = time.monotonic()
                test(pathlib.Path(folder))
            print(f"{name}: ok, {time.monotonic() - begin:.1f} s", flush=True)


def require_binary():
    """Without the binary the tests are skipped, as ctest understands it."""
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)


def tensor_shapes(config):
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden),
              "model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + "input_layernorm.weight": (hidden,),
                   prefix + "post_attention_layernorm.weight": (hidden,),
                   prefix + "self_attn.q_proj.weight": (heads * dim, hidden),
                   prefix + "self_attn.k_proj.weight": (kv_heads * dim, hidden),
                   prefix + "self_attn.v_proj.weight": (kv_heads * dim, hidden),
                   prefix + "self_attn.o_proj.weight": (hidden, heads * dim),
                   prefix + "self_attn.q_norm.weight": (dim,),
                   prefix + "self_attn.k_norm.weight": (dim,),
                   prefix + "mlp.gate_proj.weight": (inner, hidden),
                   prefix + "mlp.up_proj.weight": (inner, hidden),
                   prefix + "mlp.down_proj.weight": (hidden, inner)}
    return shapes


def safetensors_bytes(tensors):
    header, data = {}, b""
    for name, values in sorted(tensors.items()):
        raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_parts(path):
    """-> the header as a dict, the data after it."""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + length]), raw[8 + length:]


def write_sharded(folder, whole, shards):
    """A copy of a checkpoint with its tensors spread over several files and an index."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((whole / name).read_bytes())
    header, data = safetensors_parts(whole / "model.safetensors")
    names, weight_map = sorted(header), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {}
        for name in names[shard::shards]:
            begin, end = header[name]["data_offsets"]
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(header[name]["shape"])
            weight_map[name] = file
        (folder / file).write_bytes(safetensors_bytes(tensors))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def byte_tokenizer():
    """GPT-2's byte alphabet without merges: token i is byte alphabet[i]; 256 and up are special."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in letters)}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
    added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True}
             for i, text in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False,
                      "vocab": {letters[b]: b for b in range(256)}, "merges": []}}


def write_checkpoint(folder, seed=0, **changes):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(tensor_shapes(config).items()):
        noise = random.standard_normal(shape)
        tensors[name] = 1 + 0.2 * noise if "norm" in name else 0.4 * noise
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def write_prompts(path, count, seed=0, shortest=3, longest=40, gen_length=12):
    random = np.random.default_rng(seed)
    with open(path, "w") as file:
        for i in range(count):
            ids = random.integers(0, 256, random.integers(shortest, longest + 1)).tolist()
            file.write(json.dumps({"id": f"p{i}", "input_ids": ids, "gen_length": gen_length}) + "\n")
    return path


def sparse_trace(folder):
    """A full trace under a sparse policy, with its shadow; None where this build can't decode."""
    path = pathlib.Path(folder) / "sparse.h5"
    code, _, err = run("capture", write_checkpoint(pathlib.Path(folder) / "sparse-model"), "--input-ids",
                       ",".join(str(i) for i in range(1, 40)), "--gen-length", 8, "--policy", "mage,k=4",
                       "--shadow", "--record", "full", "--set-size", 4, "-q", "-o", path)
    assert code == 0 or "LibTorch" in err, err
    return path if code == 0 else None


def cached_trace(folder):
    """A trace of a bidirectional model under a cache, with its shadow; None where this build can't decode."""
    path = pathlib.Path(folder) / "cached.h5"
    code, _, err = run("capture", MODELS / "needle-bidirectional", "--input-ids", "1,2,3", "--block-length", 4,
                       "--gen-length", 8, "--cache", "dual", "--shadow", "--record", "summary", "-q", "-o", path)
    assert code == 0 or "LibTorch" in err, err
    return path if code == 0 else None


def start(*arguments, environment=None, before=None):
    """The running command, with pipes on stdout and stderr."""
    return subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, preexec_fn=before,
                            env=os.environ | (environment or {}))


def wait_for_handlers(process):
    """Until the command has its signal handlers: before main the kernel's rules hold."""
    mask = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        if int(status.split("SigCgt:")[1].split()[0], 16) & mask:
            return
        time.sleep(0.0005)


def run(*arguments, **options):
    """-> exit code, stdout, stderr."""
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def capture(*arguments, **options):
    return run("capture", *arguments, "--quiet", "--threads", "1", **options)


def trajectories(path):
    """By name: everything that was decided, and when, about each sequence that was not aborted."""
    found = {}
    with h5py.File(path, "r", swmr=str(path).endswith(".partial")) as file:
        sequences = int(file["/sequences/committed"][0])
        rows = int(file["/steps/committed"][0])
        text = file["/sequences/bytes"][:].tobytes()
        owner = file["/steps/sequence"][:rows]
        columns = {name: file[name][:rows]
                   for name in ("/steps/kind", "/steps/block", "/steps/step",
                                "/steps/context_length", "/steps/changed", "/steps/masks_left",
                                "/prediction/token", "/prediction/confidence")}
        end = file["/frames/delta_end"][:rows]
        begin = np.concatenate([[0], end[:-1]]) if rows else end
        deltas = {name: file[f"/frames/{name}"][:] for name in ("position", "token", "confidence")}
        for index in range(sequences):
            if file["/sequences/aborted"][index] or not file["/sequences/finish_reason"][index]:
                continue
            first = file["/sequences/name_start"][index]
            name = text[first:first + file["/sequences/name_length"][index]].decode()
            mine = np.flatnonzero(owner == index)
            assert name not in found, f"{name} was decoded twice"
            found[name] = {key: values[mine] for key, values in columns.items()}
            found[name]["reason"] = file["/sequences/finish_reason"][index]
            for key, values in deltas.items():
                parts = [values[begin[row]:end[row]] for row in mine]
                found[name][key] = np.concatenate(parts) if parts else np.empty(0)
                found[name]["counts"] = np.array([len(part) for part in parts])
    return found


def assert_same_trajectories(got, expected):
    assert sorted(got) == sorted(expected), (sorted(got), sorted(expected))
    for name, values in expected.items():
        for key, array in values.items():
            assert np.array_equal(got[name][key], array, equal_nan=array.dtype.kind == "f"), \
                f"{name}: {key} differs"


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="blockscope-capture-")


class CheckpointCase(unittest.TestCase):
    """A folder for the whole class, with a checkpoint in it."""

    @classmethod
    def setUpClass(cls):
        cls.holder = temporary_folder()
        cls.root = pathlib.Path(cls.holder.name)
        cls.model = write_checkpoint(cls.root / "model")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()
