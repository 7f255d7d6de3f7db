"""Fast-dLLM's Dream decoders (dream/model/generation_utils.py, generation_utils_block.py) on tiny random
Dream checkpoints. The first file's rules but `confidence_threshold` are Dream's own.

python dream.py FAST_DLLM OUT [--commit ID]
"""

import argparse
import contextlib
import io
import itertools
import pathlib
import sys
import types

import common
import torch

# hidden_size, heads, kv_heads, layers, intermediate_size, vocab_size, then what differs
CHECKPOINTS = {
    "dream-gqa": (64, 4, 2, 2, 96, 131, {}),
    "dream-g3-theta": (48, 6, 2, 3, 80, 97, dict(rope_theta=1000000.0)),
    "dream-mha": (32, 2, 2, 3, 64, 211, {}),
    "dream-tied-mqa": (64, 4, 1, 2, 72, 113, dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "dream-sharded-mask-best": (64, 8, 4, 2, 112, 151, {}),
}

# prompt length, gen_length, block_length, steps
SHAPES = [(7, 16, 8, 8), (1, 12, 4, 12), (19, 10, 5, 10), (33, 24, 8, 12), (5, 16, 16, 8), (12, 32, 32, 16),
          (9, 24, 6, 8)]
THRESHOLDS = [dict(alg="confidence_threshold", threshold=t) for t in (0.15, 0.35, 0.6, 0.9)]
QUOTAS = [dict(alg=alg) for alg in ("maskgit_plus", "topk_margin", "entropy")]
METHODS = {"none": (THRESHOLDS + QUOTAS * 2, {}), "prefix-cache": (THRESHOLDS + QUOTAS, dict(dual_cache=False)),
           "dual-cache": (THRESHOLDS + QUOTAS, dict(dual_cache=True))}


def config_of(name):
    hidden, heads, kv_heads, layers, intermediate, vocab, more = CHECKPOINTS[name]
    return dict(
        architectures=["DreamModel"], model_type="Dream", attention_dropout=0.0, hidden_act="silu",
        hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
        num_key_value_heads=kv_heads, num_hidden_layers=layers, vocab_size=vocab, mask_token_id=vocab - 4,
        bos_token_id=vocab - 2, eos_token_id=vocab - 2, pad_token_id=vocab - 2, initializer_range=0.02,
        max_position_embeddings=256, max_window_layers=layers, rms_norm_eps=1e-6, rope_scaling=None,
        rope_theta=10000.0, sliding_window=None, tie_word_embeddings=False, torch_dtype="float32",
        use_cache=True, use_sliding_window=False) | more


def model_of(name, folder):
    from model.configuration_dream import DreamConfig
    from model.modeling_dream import DreamModel
    config = config_of(name)
    # a fresh dict: the class keeps and changes what it is given
    model = DreamModel(DreamConfig(**config_of(name))).eval()
    width, tied = config["hidden_size"] ** -0.5, config["tie_word_embeddings"]
    logits_std = (3.4 if config["num_hidden_layers"] == 3 else 2.7) * width

    def special(parameter, weight):
        return (lambda noise: 0.3 * noise) if parameter.endswith("proj.bias") else None

    common.random_weights(model, 300 + list(CHECKPOINTS).index(name), std=1.1 * width,
                          embedding_std=logits_std if tied else 1.0, head_std=logits_std, special=special)
    if not tied:
        with torch.no_grad():
            model.lm_head.weight[config["mask_token_id"]] *= 2.0 if "mask-best" in name else 0.2
    state = {n: t for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}
    common.write_checkpoint(folder / name, config, state, shards=2 if "sharded" in name else 1)
    missing, unexpected = model.load_state_dict(common.read_state(folder / name), strict=False)
    assert not unexpected and missing == ["lm_head.weight"] * tied, (missing, unexpected)
    return model


def watch(model, recorder):
    """Records every call of the model; `self(...)` of the decoders goes through __call__ to forward."""
    def forward(input_ids, *rest, past_key_values=None, replace_position=None, **more):
        start = 0 if past_key_values is None else past_key_values[0][0].shape[1]
        positions = range(start, start + input_ids.shape[1])
        if replace_position is not None:
            positions = replace_position[0].nonzero()[:, 0].tolist()
        result = type(model).forward(model, input_ids, *rest, past_key_values=past_key_values,
                                     replace_position=replace_position, **more)
        recorder.add(positions, input_ids[0], result.logits[0])
        return result
    model.forward = forward


def margin_of(passes, parameters, mask_id):
    margin = common.Margin()
    prompt = parameters["prompt_length"]
    cached = "dual_cache" in parameters
    size = parameters["block_length"] if cached else parameters["gen_length"]
    for row, following in zip(passes, passes[1:] + passes[-1:]):
        # a block can be left with masks, so the first mask does not show which block this is
        begin = (row["positions"][0] or following["positions"][0]) if cached else prompt
        candidates = [p for p in range(begin, begin + size) if row["input"][p] == mask_id]
        if not candidates:
            continue  # a pass more than needed
        if cached and len(row["positions"]) == len(row["input"]):
            candidates = [begin]  # the pass that fills the cache decides one token
        rows = {p: row["positions"].index(p - 1 if p - 1 in row["positions"] else p) for p in candidates}
        margin.of_logits(*[row["gap"][i] for i in rows.values()])
        alg = parameters["alg"]
        if alg != "confidence_threshold" and (cached or alg == "entropy"):
            scores = {p: -row["entropy"][i] for p, i in rows.items()}
        else:
            scores = {p: row["probability"][i] - (row["second"][i] if alg == "topk_margin" else 0)
                      for p, i in rows.items()}
        if any(row["top1"][i] == mask_id for i in rows.values()):
            margin.of_ranking(scores)
        else:
            margin.of_cut(scores, [p for p, _ in row["changed"]])
        if alg == "confidence_threshold" and len(candidates) > 1:
            margin.of(*[s - parameters["threshold"] for s in scores.values()])
    return margin


def run_case(model, module, name, shape, selection, cache, seed):
    config = config_of(name)
    length, gen_length, block_length, steps = shape
    mask_id = config["mask_token_id"]
    prompt = common.prompt_of(seed, length, config["vocab_size"], mask_id)
    parameters = dict(prompt_length=length, gen_length=gen_length, steps=steps, eps=1e-3, mask_id=mask_id,
                      **(dict(block_length=block_length) if cache else {}), **selection, **cache)
    recorder = common.Recorder(prompt + [mask_id] * gen_length, mask_id)
    watch(model, recorder)
    mixin = module.DreamGenerationMixin
    for function in ("diffusion_generate", "_sample"):
        setattr(model, function, types.MethodType(getattr(mixin, function), model))
    generation = module.DreamGenerationConfig(
        temperature=0.0, steps=steps, eps=1e-3, alg=selection["alg"], max_new_tokens=gen_length,
        mask_token_id=mask_id, **{k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")})
    more = {k: v for k, v in parameters.items() if k in ("threshold", "block_length", "dual_cache")}
    case = dict(checkpoint=name, parameters=parameters, prompt=prompt)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the official code prints its times
            tokens = model.diffusion_generate(torch.tensor([prompt]), generation_config=generation,
                                              attention_mask=torch.ones(1, length), **more)
        case.update(tokens=tokens[0].tolist(), nfe=len(recorder.passes))
    except (IndexError, RuntimeError) as error:
        case.update(error=f"{type(error).__name__}: {error}", tokens=recorder.tokens)
    finally:
        del model.forward
    case["passes"] = recorder.finish(case["tokens"])
    return case, margin_of(case["passes"], parameters, mask_id)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path, help="work tree of NVlabs/Fast-dLLM")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    folder = arguments.repository / ("v1/dream" if (arguments.repository / "v1").is_dir() else "dream")
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    from model import generation_utils, generation_utils_block
    models = {}
    for name in CHECKPOINTS:
        models[name] = model = model_of(name, arguments.out)
        ids = common.prompt_of(7, 43, config_of(name)["vocab_size"], -1)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), "full", None).logits[0]
        common.write_logits(arguments.out / name, ids, logits, "full")
    for method, (selections, cache) in METHODS.items():
        module = generation_utils_block if cache else generation_utils
        cases, given_up = [], 0
        for (index, (name, model)), number in itertools.product(enumerate(models.items()), range(len(selections))):
            shapes = SHAPES
            if not cache and selections[number]["alg"] == "confidence_threshold":  # official assertion
                shapes = [s for s in SHAPES if s[1] % s[3] == 0]
            shape = shapes[(index + number) % len(shapes)]
            case = common.without_near_ties(
                lambda seed: run_case(model, module, name, shape, selections[number], cache, seed),
                1000 * number + index)
            cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
        source = dict(repository="NVlabs/Fast-dLLM", commit=arguments.commit,
                      function=f"dream/model/{module.__name__.split('.')[-1]}.py:_sample")
        common.write_oracle(arguments.out, "dream", method, source, cases, given_up)


if __name__ == "__main__":
    main()
