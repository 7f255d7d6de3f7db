"""Fast-dLLM's three LLaDA decoders (llada/generate.py) and ML-GSAI's own on tiny random LLaDA checkpoints.

python llada.py FAST_DLLM OUT [--commit ID] [--gsai LLADA_REPOSITORY --gsai-commit ID]
"""

import argparse
import importlib.util
import itertools
import pathlib
import sys

import common
import torch

_SHARED = dict(
    architectures=["LLaDAModelLM"], model_type="llada", activation_type="silu", alibi=False,
    attention_dropout=0.0, attention_layer_norm=False, attention_layer_norm_with_affine=True,
    bias_for_layer_norm=False, block_group_size=1, block_type="llama", embedding_dropout=0.0,
    flash_attention=False, include_bias=False, include_qkv_bias=False, input_emb_norm=False,
    layer_norm_type="rms", layer_norm_with_affine=True, max_sequence_length=256, mlp_ratio=4,
    multi_query_attention=None, residual_dropout=0.0, rms_norm_eps=1e-5, rope=True,
    rope_full_precision=True, rope_theta=500000.0, scale_logits=False, torch_dtype="float32",
    use_cache=False, weight_tying=False)

# d_model, n_heads, n_kv_heads, n_layers, mlp_hidden_size, vocab_size, embedding_size, then what differs
CHECKPOINTS = {
    "llada-mha": (64, 4, 4, 2, 96, 131, 131, {}),
    "llada-gqa-padded": (48, 6, 2, 3, 80, 97, 128, dict(rope_theta=10000.0)),
    "llada-tied": (64, 4, 2, 2, 112, 113, None, dict(weight_tying=True)),
    "llada-mqa-qkv-bias": (64, 4, 1, 2, 72, 301, 301, dict(include_qkv_bias=True, rms_norm_eps=1e-6)),
    "llada-bias": (32, 2, 2, 3, 64, 151, 160, dict(include_bias=True)),
    "llada-norm-bias-ratio": (32, 4, 4, 2, None, 127, 127, dict(bias_for_layer_norm=True, mlp_ratio=3)),
    "llada-scaled": (64, 2, 2, 2, 100, 199, 199, dict(scale_logits=True, input_emb_norm=True)),
    "llada-sharded-mask-best": (64, 8, 4, 2, 96, 101, 101, {}),
}

# prompt length, gen_length, block_length, steps
SHAPES = [(7, 16, 8, 16), (1, 12, 4, 6), (19, 10, 5, 4), (33, 24, 8, 9), (5, 16, 16, 8), (12, 32, 32, 6)]
SELECTIONS = [{}, {}, dict(threshold=0.2), dict(threshold=0.45), dict(threshold=0.9), dict(factor=1.0),
              dict(factor=1.7), dict(factor=2.6)]


def config_of(name):
    d_model, heads, kv_heads, layers, mlp, vocab, embedding, more = CHECKPOINTS[name]
    mask_id = vocab - 5
    return {**_SHARED, "d_model": d_model, "n_heads": heads, "n_kv_heads": kv_heads, "n_layers": layers,
            "mlp_hidden_size": mlp, "vocab_size": vocab, "embedding_size": embedding,
            "mask_token_id": mask_id, "eos_token_id": vocab - 2, "pad_token_id": vocab - 2, **more}


def model_of(name, folder):
    from model.modeling_llada import LLaDAConfig, LLaDAModelLM
    config = config_of(name)
    seed = 100 + list(CHECKPOINTS).index(name)
    model = LLaDAModelLM(LLaDAConfig(**config)).eval()
    width = config["d_model"] ** -0.5
    logits_std = 3.6 if config["n_layers"] == 3 else 2.7
    if config["scale_logits"]:
        logits_std *= config["d_model"] ** 0.5

    def special(parameter, weight):
        if parameter.endswith("wte.weight") and config["input_emb_norm"]:
            return lambda noise: noise * width
        return None

    common.random_weights(model, seed, std=1.1 * width, embedding_std=logits_std * width if
                          config["weight_tying"] else 1.0, head_std=logits_std * width, special=special)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        # The rows beyond the vocabulary belong to the softmax; here they are seldom the best ones.
        head[config["vocab_size"]:] *= 0.4
        if not config["weight_tying"]:
            head[config["mask_token_id"]] *= 2.0 if "mask-best" in name else 0.2
    state = {n: t for n, t in model.state_dict().items()
             if not (config["weight_tying"] and n.endswith("transformer.ff_out.weight"))}
    common.write_checkpoint(folder / name, config, state, shards=3 if "sharded" in name else 1)
    loaded = common.read_state(folder / name)
    missing, unexpected = LLaDAModelLM.load_state_dict(model, loaded, strict=False)
    assert not unexpected and all("transformer.ff_out.weight" in n for n in missing), (missing, unexpected)
    return model


def watch(model, recorder):
    """Records every call of the model's forward."""
    def forward(input_ids, past_key_values=None, replace_position=None, **more):
        start = 0 if past_key_values is None else past_key_values[0][0].shape[-2]
        positions = range(start, start + input_ids.shape[1])
        if replace_position is not None:
            positions = replace_position[0].nonzero()[:, 0].tolist()
        result = type(model).forward(model, input_ids, past_key_values=past_key_values,
                                     replace_position=replace_position, **more)
        recorder.add(positions, input_ids[0], result.logits[0])
        return result
    model.forward = forward


def margin_of(passes, parameters, mask_id):
    margin = common.Margin()
    prompt, size = parameters["prompt_length"], parameters["block_length"]
    for row in passes:
        masked = [p for p in range(prompt, len(row["input"])) if row["input"][p] == mask_id]
        if not masked:
            continue  # a pass more than needed
        end = prompt + ((masked[0] - prompt) // size + 1) * size
        at = {p: row["positions"].index(p) for p in masked if p < end}
        scores = {p: row["probability"][i] for p, i in at.items()}
        margin.of_logits(*[row["gap"][i] for i in at.values()])
        if any(row["top1"][i] == mask_id for i in at.values()):
            margin.of_ranking(scores)
        else:
            margin.of_cut(scores, [p for p, _ in row["changed"]])
        if "threshold" in parameters:
            margin.of(*[s - parameters["threshold"] for s in scores.values()])
        if "factor" in parameters:
            margin.of(*[s - (1 - parameters["factor"] / (n + 2)) for n, s in
                        enumerate(sorted(scores.values(), reverse=True)) if n])
    return margin


def run_case(model, decode, name, shape, selection, seed):
    config = config_of(name)
    length, gen_length, block_length, steps = shape
    mask_id = config["mask_token_id"]
    prompt = common.prompt_of(seed, length, config["vocab_size"], mask_id)
    parameters = dict(prompt_length=length, gen_length=gen_length, block_length=block_length, steps=steps,
                      mask_id=mask_id, **selection)
    recorder = common.Recorder(prompt + [mask_id] * gen_length, mask_id)
    watch(model, recorder)
    case = dict(checkpoint=name, parameters=parameters, prompt=prompt)
    try:
        result = decode(model, torch.tensor([prompt]), steps=steps, gen_length=gen_length,
                        block_length=block_length, mask_id=mask_id, **selection)
        tokens, nfe = result if isinstance(result, tuple) else (result, len(recorder.passes))
        case.update(tokens=tokens[0].tolist(), nfe=nfe)
    except (IndexError, RuntimeError) as error:
        case.update(error=f"{type(error).__name__}: {error}", tokens=recorder.tokens)
    finally:
        del model.forward
    case["passes"] = recorder.finish(case["tokens"])
    return case, margin_of(case["passes"], parameters, mask_id)


def cases_of(models, decode, selections):
    cases, given_up = [], 0
    for (index, (name, model)), number in itertools.product(enumerate(models.items()), range(len(SELECTIONS))):
        selection = SELECTIONS[number]
        if selection not in selections:
            continue
        shape = SHAPES[(index + number) % len(SHAPES)]
        case = common.without_near_ties(
            lambda seed: run_case(model, decode, name, shape, selection, seed), 1000 * number + index)
        cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
    return cases, given_up


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path, help="work tree of NVlabs/Fast-dLLM")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--gsai", type=pathlib.Path, help="work tree of ML-GSAI/LLaDA")
    parser.add_argument("--gsai-commit", default="unknown")
    arguments = parser.parse_args()
    folder = arguments.repository / ("v1/llada" if (arguments.repository / "v1").is_dir() else "llada")
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    import generate
    models = {}
    for name in CHECKPOINTS:
        models[name] = model = model_of(name, arguments.out)
        ids = common.prompt_of(7, 43, config_of(name)["vocab_size"], -1)
        with torch.no_grad():
            common.write_logits(arguments.out / name, ids, model(torch.tensor([ids])).logits[0], "full")
    decoders = {"none": generate.generate, "prefix-cache": generate.generate_with_prefix_cache,
                "dual-cache": generate.generate_with_dual_cache}
    for method, decode in decoders.items():
        source = dict(repository="NVlabs/Fast-dLLM", commit=arguments.commit,
                      function=f"llada/generate.py:{decode.__name__}")
        common.write_oracle(arguments.out, "llada", method, source, *cases_of(models, decode, SELECTIONS))
    if arguments.gsai:
        spec = importlib.util.spec_from_file_location("gsai_generate", arguments.gsai / "generate.py")
        gsai = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(gsai)
        source = dict(repository="ML-GSAI/LLaDA", commit=arguments.gsai_commit,
                      function="generate.py:generate")
        common.write_oracle(arguments.out, "llada", "gsai", source, *cases_of(models, gsai.generate, [{}]))


if __name__ == "__main__":
    main()
