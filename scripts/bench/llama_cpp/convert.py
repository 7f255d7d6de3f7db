#!/usr/bin/env python3
"""Writes a random checkpoint without a tokenizer as GGUF, with llama.cpp's own conversion of LLaDA, Dream or (for SDAR)
Qwen3.

    python scripts/bench/llama_cpp/convert.py LLAMA_CPP build/llada-150m build/llada-150m-f32.gguf --type f32
"""

import argparse
import json
import pathlib
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=pathlib.Path, help="its source, with conversion/ and gguf-py/")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", choices=("f32", "bf16", "f16"), default="f32")
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase

    config = json.loads((args.model / "config.json").read_text())
    # SDAR's weights are named and used as Qwen3's; only the mask of its attention differs.
    kind = get_model_class({"SDARForCausalLM": "Qwen3ForCausalLM"}.get(config["architectures"][0], config["architectures"][0]))

    class WithoutTokenizer(kind):
        model_arch = kind.model_arch

        def set_vocab(self):
            self._set_vocab_none()
            if config["model_type"] != "llada":  # LLaDA's conversion writes it itself
                self.gguf_writer.add_vocab_size(config["vocab_size"])

    file_type = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16,
                 "f16": gguf.LlamaFileType.MOSTLY_F16}[args.type]
    WithoutTokenizer(args.model, file_type, args.out, hparams=ModelBase.load_hparams(args.model, False)).write()


if __name__ == "__main__":
    main()
