#!/usr/bin/env python3
"""Makes tests/probe/checkpoint/data: the official packages' view of what probe/checkpoint must read.

Run in an environment with torch==2.11.0 transformers==5.23.0 safetensors==0.8.0:
    python tests/probe/checkpoint/make_fixtures.py
rope.json                inverse frequencies of transformers' Qwen3RotaryEmbedding
dtypes.safetensors       one tensor per dtype, written by the safetensors package
dtypes.json              the bytes of each of them
draft_target_layers.json the target layers that a DFlash draft reads where its file names none, by number of target
                         and draft layers, with Python's round
tiny, tiny_sharded       a random Qwen3 saved by save_pretrained, in one file and in shards
"""
import copy
import json
import pathlib
import shutil

import safetensors.torch
import torch
import transformers
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

DATA = pathlib.Path(__file__).parent / "data"
SHAPE = dict(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=256,
    rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False,
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def make_draft_target_layers():
    """{"36x5": [1, 9, 17, 25, 33], ...}: the middle layer, or evenly from layer 1 to the third from the end."""
    table = {}
    for target in range(6, 41):
        table[f"{target}x1"] = [target // 2]
        for draft in range(2, 9):
            table[f"{target}x{draft}"] = [round(1 + i * (target - 4) / (draft - 1)) for i in range(draft)]
    lines = ",\n".join(f'  "{key}": {json.dumps(layers)}' for key, layers in table.items())
    (DATA / "draft_target_layers.json").write_text("{\n" + lines + "\n}\n")


def rope_cases():
    """(head_dim, max_position_embeddings, seq_len, keys of config.json)"""
    old = lambda scaling, theta=1e6: {"rope_theta": theta, "rope_scaling": scaling}
    new = lambda scaling, theta=1e6: {"rope_parameters": {"rope_theta": theta, **scaling}}
    yield 128, 40960, 100, {"rope_theta": 1e6}
    yield 48, 1024, 100, {"rope_theta": 10000.0, "rope_scaling": None}
    yield 128, 40960, 100, new({"rope_type": "default"})
    yield 64, 4096, 100, old({"type": "linear", "factor": 2.5}, 10000.0)
    yield 64, 4096, 100, new({"rope_type": "linear", "factor": 8})
    for length in (100, 4096, 4097, 20000):
        yield 64, 4096, length, old({"rope_type": "dynamic", "factor": 2.0}, 10000.0)
    yield 64, 4096, 9000, new({"rope_type": "dynamic", "factor": 4.0}, 10000.0)
    yield 128, 131072, 100, old(dict(YARN))
    yield 128, 131072, 100, new(dict(YARN))
    yield 128, 32768, 100, old({"type": "yarn", "factor": 4.0})
    yield 128, 131072, 100, old({**YARN, "attention_factor": 0.75})
    yield 128, 131072, 100, old({**YARN, "beta_fast": 16, "beta_slow": 2})
    yield 128, 131072, 100, old({**YARN, "mscale": 0.707, "mscale_all_dim": 1.0})
    yield 128, 131072, 100, old({**YARN, "mscale": 0.707})
    yield 128, 131072, 100, old({**YARN, "truncate": False})
    yield 128, 131072, 100, old({**YARN, "factor": None})
    yield 8, 256, 100, old({"rope_type": "yarn", "factor": 2.0}, 10000.0)
    yield 128, 131072, 100, old(dict(LLAMA3), 500000.0)
    yield 128, 131072, 100, new(dict(LLAMA3), 500000.0)
    yield 64, 131072, 100, old({**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0}, 1e4)


def make_rope():
    cases = []
    for head_dim, length, seq_len, keys in rope_cases():
        config_json = {**SHAPE, "head_dim": head_dim, "max_position_embeddings": length, **keys}
        config = transformers.Qwen3Config(**copy.deepcopy(config_json))
        rotary = Qwen3RotaryEmbedding(config)
        if config.rope_parameters["rope_type"] == "dynamic":
            rotary(torch.zeros(1), torch.arange(seq_len)[None])
        config_json.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
        cases.append({"config": config_json, "seq_len": seq_len,
                      "inv_freq": rotary.inv_freq.double().tolist(),
                      "attention_factor": float(rotary.attention_scaling)})
    text = ",\n".join(json.dumps(case) for case in cases)
    (DATA / "rope.json").write_text(f"[\n{text}\n]\n")


def make_dtypes():
    dtypes = dict(F64=torch.float64, F32=torch.float32, F16=torch.float16, BF16=torch.bfloat16,
                  I64=torch.int64, I32=torch.int32, I16=torch.int16, I8=torch.int8, U8=torch.uint8,
                  BOOL=torch.bool)
    tensors = {f"t.{name}": (torch.arange(6).reshape(2, 3) - 1).abs().to(dtype)
               for name, dtype in dtypes.items()}
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 7)
    metadata = {"format": "pt", "note": "é"}
    safetensors.torch.save_file(tensors, DATA / "dtypes.safetensors", metadata)
    described = {}
    for name, tensor in tensors.items():
        raw = tensor.reshape(-1).view(torch.uint8)
        described[name] = {"shape": list(tensor.shape), "bytes": raw.tolist()}
    (DATA / "dtypes.json").write_text(json.dumps(described, indent=1) + "\n")


def make_models():
    torch.manual_seed(20)
    config = transformers.Qwen3Config(**SHAPE, rope_parameters={"rope_type": "default",
                                                                "rope_theta": 1e4},
                                      eos_token_id=[3, 4], bos_token_id=2, pad_token_id=3)
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(DATA / "tiny")
    model.save_pretrained(DATA / "tiny_sharded", max_shard_size="3KB")


if __name__ == "__main__":
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    make_rope()
    make_draft_target_layers()
    make_dtypes()
    make_models()
