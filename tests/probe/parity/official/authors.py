"""The strategies' and caches' own authors' code on LLaDA: KLASS, WINO, PC-Sampler, dLLM-Cache.

python authors.py klass|wino|pc-sampler|dllm-cache REPOSITORY CHECKPOINTS OUT [--fast-dllm PATH] [--commit ID]

CHECKPOINTS holds the folders that llada.py wrote. The model is WINO's own modelling code for WINO, which needs its
attention mask, and Fast-dLLM's (--fast-dllm) for the others.
"""

import argparse
import importlib
import itertools
import json
import pathlib
import sys
import types

import common
import torch

NAMES = ["llada-mha", "llada-norm-bias-ratio", "llada-mqa-qkv-bias"]
MULTI_HEAD = ["llada-mha", "llada-norm-bias-ratio", "llada-scaled"]  # dLLM-Cache's hook cannot do shared KV heads
SHAPES = [(7, 16, 8, 8), (20, 24, 8, 12), (33, 16, 16, 16), (12, 32, 32, 16), (5, 12, 4, 6)]
KLASS_MASK = 126336  # written into the function

KLASS = [dict(alg="klass", conf_threshold=c, kl_threshold=k, kl_history_length=h, unmask_strategy=u)
         for c, k, h, u in [(0.2, 0.3, 2, "all"), (0.3, 0.05, 2, "all"), (0.2, 0.5, 3, "all"),
                            (0.2, 0.5, 2, "max_conf"), (0.2, 0.5, 2, "min_kl"), (0.9, 0.01, 2, "all"),
                            (0.15, 0.5, 1, "all")]] + [
    dict(alg=alg) for alg in ("default", "topk_margin", "entropy")]
WINO = [dict(threshold=a, threshold_back=b) for a, b in [(0.25, 0.4), (0.4, 0.9), (0.15, 0.3), (0.2, 0.9), (0.6, 0.9)]]
PC = [dict(function="generate_with_pc_sampler", lambd=a, alpha=b)
      for a, b in [(0.25, 10), (0, 10), (1, 1), (0.5, 2)]] + [
    dict(function="generate_with_linear_position", lambd=0.3, alpha=10),
    dict(function="generate_with_eb_sampler", gamma=0.1), dict(function="generate_with_eb_sampler", gamma=2.5),
    dict(function="generate_with_entropy"), dict(function="generate_with_margin")]
DLLM = [dict(prompt_interval_steps=p, gen_interval_steps=g, transfer_ratio=r) for p, g, r in
        [(5, 2, 0.25), (50, 7, 0.25), (7, 3, 0.5), (4, 2, 0.0), (100, 8, 0.3), (3, 1, 0.25), (6, 4, 1.0)]]


def token_counts(vocab):
    """How often each token occurs in a corpus; every fifth never."""
    counts = (1e6 * torch.arange(2, vocab + 2, dtype=torch.float64) ** -1.2).long()
    counts[::5] = 0
    return counts.tolist()


def frequencies(vocab):
    """As the authors' load_baseline makes them of a table of counts."""
    counts = token_counts(vocab)
    return torch.tensor([max(count, 1) / sum(counts) for count in counts], dtype=torch.float32)


def model_of(modeling, folder):
    config = json.loads((folder / "config.json").read_text())
    model = modeling.LLaDAModelLM(modeling.LLaDAConfig(**config)).eval()
    model.load_state_dict(common.read_state(folder))
    return model


def watch(model, recorder, layers):
    """Replaces forward; rows beyond the sequence are WINO's shadow block."""
    def forward(input_ids, position_ids=None, **more):
        layers.clear()
        if position_ids is not None:
            more["position_ids"] = position_ids
        result = type(model).forward(model, input_ids, **more)
        length, ids, logits = len(recorder.tokens), input_ids[0], result.logits[0]
        extra = dict(layers=[layers[i] for i in sorted(layers)]) if layers else {}
        if len(ids) > length:
            positions = position_ids[length:]
            shadow = logits[length:].double().softmax(-1).gather(-1, ids[positions, None])[:, 0]
            extra = dict(shadow_positions=positions.tolist(), shadow_probability=[common.number(p) for p in shadow])
        recorder.add(range(length), ids[:length], logits[:length], **extra)
        return result
    model.forward = forward


def decode_klass(official, model, prompt, mask_id, parameters):
    def translated(x):
        return model(torch.where(x == KLASS_MASK, mask_id, x))
    translated.device, translated.config = model.device, model.config
    official_parameters = {k: v for k, v in parameters.items() if k not in ("prompt_length", "mask_id")}
    tokens, _ = official.stable_confident_decode(translated, None, prompt, **official_parameters)
    if (tokens == mask_id).any():
        raise common.Endless("says [MASK], which its code takes for a token")
    return torch.where(tokens == KLASS_MASK, mask_id, tokens)


def decode_wino(official, model, prompt, mask_id, parameters):
    names = ("gen_length", "block_length", "threshold", "threshold_back", "mask_id")
    return official.decoding_wino(model, prompt, **{k: parameters[k] for k in names})[0]


def decode_pc_sampler(official, model, prompt, mask_id, parameters):
    official.BASE_LINE = frequencies(model.config.vocab_size)
    function = getattr(official, parameters["function"])
    names = function.__wrapped__.__code__.co_varnames[:function.__wrapped__.__code__.co_argcount]
    return function(model, prompt, **{k: v for k, v in parameters.items() if k in names})


def decode_dllm_cache(official, model, prompt, mask_id, parameters):
    names = ("prompt_interval_steps", "gen_interval_steps", "transfer_ratio")
    official.dLLMCache.new_instance(**{k: parameters[k] for k in names})
    answer = official.generate(prompt, None, model, **{k: parameters[k] for k in (
        "steps", "gen_length", "block_length", "mask_id")})
    return torch.cat([prompt, answer], -1)


def hook_dllm_cache(official, model, layers):
    """The authors' hooks, and the rows whose queries a layer computes."""
    official.register(model, "model.transformer.blocks")
    for block in model.model.transformer.blocks:
        def forward(x, block=block, hooked=block.forward, replace_position=None, **more):
            block.rows, layers[block.layer_id] = x.shape[1], []
            return hooked(x, **more)

        def attention(q, k, v, *rest, block=block, hooked=block.attention, q_index=None, **more):
            rows = range(block.rows - q.shape[1], block.rows) if q_index is None else sorted(q_index[0].tolist())
            layers[block.layer_id] = list(rows)
            return hooked(q, k, v, *rest, q_index=q_index, **more)
        block.forward, block.attention = forward, attention


def official_code(method, repository):
    folder = {"klass": "src/model", "wino": "LLaDA", "pc-sampler": "src", "dllm-cache": "."}[method]
    sys.path.insert(0, str(repository / folder))
    if method == "dllm-cache":
        cache, hooks = importlib.import_module("dllm_cache.cache"), importlib.import_module("dllm_cache.hooks")
        generate = importlib.import_module("utils.generate_function").generate
        return types.SimpleNamespace(dLLMCache=cache.dLLMCache, register=hooks.register_cache_LLaDA, generate=generate)
    return importlib.import_module({"klass": "llada_klass", "wino": "decoding", "pc-sampler": "generate"}[method])


METHODS = {"klass": (decode_klass, KLASS, NAMES), "wino": (decode_wino, WINO, NAMES),
           "pc-sampler": (decode_pc_sampler, PC, NAMES), "dllm-cache": (decode_dllm_cache, DLLM, MULTI_HEAD)}
REPOSITORIES = {"klass": "shkim0116/KLASS", "wino": "Feng-Hong/WINO-DLLM", "pc-sampler": "NEUIR/PC-Sampler",
                "dllm-cache": "maomaocun/dLLM-cache"}


def run_case(official, decode, method, model, layers, name, shape, selection, seed):
    length, gen_length, block_length, steps = shape
    mask_id, vocab = model.config.mask_token_id, model.config.vocab_size
    prompt = common.prompt_of(seed, length, vocab, mask_id)
    parameters = dict(prompt_length=length, gen_length=gen_length, block_length=block_length, steps=steps,
                      mask_id=mask_id, **selection)
    case = dict(checkpoint=f"../llada/{name}", parameters=parameters, prompt=prompt)
    if method == "pc-sampler":
        case["token_counts"] = token_counts(vocab)
    recorder = common.Recorder(prompt + [mask_id] * gen_length, mask_id)
    watch(model, recorder, layers)
    try:
        tokens = decode(official, model, torch.tensor([prompt]), mask_id, parameters)[0].tolist()
        case.update(tokens=tokens, nfe=len(recorder.passes))
    except (RuntimeError, IndexError) as error:
        case.update(error=f"{type(error).__name__}: {error}", tokens=list(recorder.tokens))
    finally:
        del model.forward
    case["passes"] = recorder.finish(case["tokens"])
    if method != "wino":  # which revokes tokens
        case["overwrites"] = [[p, t] for row in case["passes"] for p, t in row["changed"] if row["input"][p] != mask_id]
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("checkpoints", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--fast-dllm", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    official = official_code(arguments.method, arguments.repository)
    if arguments.method == "wino":
        modeling = importlib.import_module("modeling_llada")
    else:
        sys.path.insert(0, str(arguments.fast_dllm / "llada"))
        modeling = importlib.import_module("model.modeling_llada")
    decode, selections, names = METHODS[arguments.method]
    cases, given_up = [], 0
    for index, name in enumerate(names):
        model, layers = model_of(modeling, arguments.checkpoints / name), {}
        if arguments.method == "dllm-cache":
            hook_dllm_cache(official, model, layers)
        for number, (selection, again) in enumerate(itertools.product(selections, range(2))):
            shape = SHAPES[(number + index + 3 * again) % len(SHAPES)]
            case = common.first_unchanged_by_noise(model, lambda seed: run_case(
                official, decode, arguments.method, model, layers, name, shape, selection, seed), 100 * number + index)
            cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
    source = dict(repository=REPOSITORIES[arguments.method], commit=arguments.commit)
    common.write_oracle(arguments.out, "llada", arguments.method, source, cases, given_up)


if __name__ == "__main__":
    main()
