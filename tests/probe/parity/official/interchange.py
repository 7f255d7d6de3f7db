"""What d2Cache and KLASS write, through `blockscope import` and `export` and back into their own objects.

python interchange.py BLOCKSCOPE OFFICIAL CHECKPOINTS

BLOCKSCOPE is the binary, OFFICIAL holds the work trees d2Cache and KLASS, CHECKPOINTS is llada.py's output folder. The
lines of Python that docs/interchange.md gives are the ones that run here.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import common
import d2cache
import torch

DOCUMENT = pathlib.Path(__file__).parents[4] / "docs" / "interchange.md"
KLASS_MASK = 126336  # written into the function
VANILLA = [dict(threshold=0.3), dict(num_transfer_tokens=2), dict(factor=1.7)]


def documented(name):
    """The names that a block of the document defines."""
    block, = [b for b in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S) if b.startswith(f"# {name}:")]
    names = {}
    exec(block, names)
    return names[name]


class Tool:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.count = binary, folder, 0

    def through(self, source, form, *facts):
        """The JSON of a file after import and export."""
        self.count += 1
        trace = self.folder / f"{self.count}.h5"
        subprocess.run([self.binary, "import", source, "-o", trace, *map(str, facts)], check=True, stdout=subprocess.DEVNULL)
        text = subprocess.run([self.binary, "export", trace, "--format", form], check=True, capture_output=True).stdout
        return json.loads(text)


def same_frames(one, two):
    """All frames, as the authors' code computes them, and what every step decided."""
    assert len(one.deltas) == len(two.deltas)
    for a, b in zip(one.frames, two.frames, strict=True):
        for field in ("prompts", "generated_tokens", "steps", "confidence"):
            assert torch.equal(getattr(a, field), getattr(b, field)), field


def of_block(delta, block, block_length):
    """A delta without its values for other blocks, which a trace does not keep."""
    inside = range(block * block_length, (block + 1) * block_length)
    return dict(delta, decoded_tokens=[t if p in inside else -100 for p, t in enumerate(delta["decoded_tokens"])],
                confidence=[c if p in inside else None for p, c in enumerate(delta["confidence"])])


def check_d2cache(tool, official, model, shape, strategy, selection, batch):
    length, gen_length, block_length = shape
    mask, vocab = model.config.mask_token_id, model.config.vocab_size
    os.environ["MASK_TOKEN_ID"] = str(mask)
    prompts = torch.tensor([common.prompt_of(seed, length, vocab, mask) for seed in range(batch)])
    d2cache.apply_variant(official, "corrected")
    official.utils.get_token_freq = lambda *_: torch.ones(vocab, dtype=torch.float64)
    generate = getattr(getattr(official, strategy), f"{strategy}_generate")
    more = {} if strategy == "vanilla" else dict(attention_mask=torch.ones(batch, length, dtype=torch.long),
                                                 pad_token_id=model.config.pad_token_id)
    record = generate(model, prompts, block_length=block_length, gen_length=gen_length, mask_token_id=mask,
                      **selection, **more)
    item_of, record_of = documented("item_of"), documented("record_of")
    steps = revoked = 0
    for i in range(batch):
        item = item_of(record, i)
        source = tool.folder / "in.json"
        source.write_text(json.dumps(item, allow_nan=False))
        back = tool.through(source, "frames", "--vocab-size", vocab, "--mask-token-id", mask)["sequences"][0]
        assert back["initial_frame"] == item["initial_frame"] and back["block_length"] == item["block_length"]
        for got, delta in zip(back["deltas"], item["deltas"], strict=True):
            expected = dict(delta, extra={})
            if block_length < gen_length:
                expected = of_block(expected, delta["transfer_index"][0] // block_length, block_length)
            assert got == expected, (shape, strategy, selection)
            revoked += sum(delta["decoded_tokens"][p] == mask for p in delta["transfer_index"])
        same_frames(record_of(back), record_of(item))
        theirs = official.frame.DecodeRecord(
            initial_frame=record.initial_frame[i], block_length=block_length,
            deltas=[d[i] for d in record.deltas if d.transfer_index[i].numel()])
        same_frames(record_of(back), theirs)
        steps += len(item["deltas"])
    return steps, revoked


class Words:
    """A tokenizer for decode_text, as KLASS calls it."""

    def decode(self, ids, **_):
        return "".join(f" w{i}" for i in ids if i != KLASS_MASK)

    def batch_decode(self, rows, **_):
        return [self.decode(row.tolist()) for row in rows]


class Noise:
    """A model whose logits settle down, so that KL divergences fall below the threshold."""

    def __init__(self, seed, length, vocab):
        self.device, self.config = torch.device("cpu"), types.SimpleNamespace(vocab_size=vocab)
        self.lm_head = types.SimpleNamespace(out_features=vocab)
        self.random, self.calls = torch.Generator().manual_seed(seed), 0
        self.logits = 6 * torch.randn(1, length, vocab, generator=self.random)

    def __call__(self, tokens, *_):
        self.calls += 1
        noise = torch.randn(self.logits.shape, generator=self.random) / self.calls ** 2
        return types.SimpleNamespace(logits=self.logits + noise)


def check_klass(tool, official, seed, prompt, gen_length, block_length, vocab, **selection):
    model = Noise(seed, prompt + gen_length, vocab)
    official.stable_confident_decode(
        model, Words(), torch.arange(prompt)[None] % vocab, gen_length, gen_length, block_length,
        step_save_dir=str(tool.folder), example_idx=f"q{seed}", **selection)
    source = tool.folder / f"all_steps_q{seed}.json"
    steps = json.loads(source.read_text())
    facts = ["--vocab-size", vocab, "--mask-token-id", KLASS_MASK]
    assert tool.through(source, "klass", *facts) == steps, (seed, selection)
    assert tool.through(source, "klass", *facts, "--block-length", block_length, "--prompt-length", prompt) == steps
    return len(steps)


def check_klass_dream(tool, official, seed, prompt, gen_length, vocab, **selection):
    """Dream's loop, and then what dream_evaluation.py does with its history before it writes it."""
    class Model(Noise, official.DreamGenerationMixin):
        pass
    config = types.SimpleNamespace(**{**dict(
        output_history=True, return_dict_in_generate=True, max_length=prompt + gen_length, mask_token_id=vocab - 1,
        steps=gen_length, eps=1e-3, alg_temp=0.0, temperature=0.0, top_p=None, top_k=None, conf_threshold=0.9,
        kl_threshold=0.01, kl_history_length=2, unmask_strategy="all", save_steps=True), **selection})
    model = Model(seed, prompt + gen_length, vocab)
    model.logits[..., vocab - 1] = -30.0  # never says [MASK]
    output = model._sample(torch.arange(prompt)[None] % (vocab - 1), None, config, lambda i, x, logits: x,
                           lambda i, x, logits: logits)
    steps = []
    for step in output.history:
        decoded = [dict(t, decoded_token=f" w{t['token_id']}") for t in step["decoded_tokens"]]
        text = "".join(" " if t == vocab - 1 else f" w{t}" for t in step["text"][0].tolist())
        steps.append({"step": step["step"], "decoded_tokens_num": step["decoded_tokens_num"], "decoded_tokens": decoded,
                      "all_tokens": step["all_tokens"], "decoded_text": text})
    source = tool.folder / f"q{seed}_s0.json"
    source.write_text(json.dumps(steps, indent=2))
    facts = ["--vocab-size", vocab, "--mask-token-id", vocab - 1, "--prompt-length", prompt]
    assert tool.through(source, "klass", *facts) == json.loads(source.read_text()), (seed, selection)
    return len(steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("official", type=pathlib.Path)
    parser.add_argument("checkpoints", type=pathlib.Path)
    arguments = parser.parse_args()
    if not all((arguments.official / name / "src").is_dir() for name in ("d2Cache", "KLASS")):
        print(f"skipped: no work trees d2Cache and KLASS in {arguments.official}")
        sys.exit(77)
    torch.set_num_threads(1)
    official = d2cache.official_modules(arguments.official / "d2Cache")
    official.frame = sys.modules["src.frame"]
    sys.path.insert(0, str(arguments.official / "KLASS" / "src" / "model"))
    import dream_klass
    import llada_klass
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(arguments.binary.resolve(), pathlib.Path(folder))
        steps = revoked = runs = 0
        for name in d2cache.CHECKPOINTS["llada"]:
            model = d2cache.model_of(official, "llada", arguments.checkpoints / name)
            for shape in [(7, 16, 8), (12, 16, 16), (5, 12, 4)]:
                for strategy, selections in (("vanilla", VANILLA), ("wino", d2cache.WINO)):
                    for selection in selections:
                        for batch in (1, 2):
                            done = check_d2cache(tool, official, model, shape, strategy, selection, batch)
                            steps, revoked, runs = steps + done[0], revoked + done[1], runs + batch
        print(f"d2Cache: {runs} sequences, {steps} steps, {revoked} masks that came back: all equal")
        steps = runs = 0
        for seed in range(60):
            shape = [(7, 16, 8), (20, 24, 8), (0, 16, 16), (12, 32, 4)][seed % 4]
            selection = [dict(alg="klass", conf_threshold=0.3, kl_threshold=0.5), dict(alg="klass"), dict(alg="default"),
                         dict(alg="topk_margin"), dict(alg="klass", conf_threshold=0.2, kl_threshold=0.5,
                                                       unmask_strategy="max_conf")][seed % 5]
            steps, runs = steps + check_klass(tool, llada_klass, seed, *shape, 50, **selection), runs + 1
        for seed in range(60, 90):
            selection = [dict(alg="klass"), dict(alg="klass", conf_threshold=0.3, kl_threshold=0.5),
                         dict(alg="maskgit_plus"), dict(alg="topk_margin")][seed % 4]
            shape = [(7, 16), (20, 24), (1, 8)][seed % 3]
            steps, runs = steps + check_klass_dream(tool, dream_klass, seed, *shape, 50, **selection), runs + 1
        print(f"KLASS: {runs} files, {steps} steps: all equal")


if __name__ == "__main__":
    main()
