"""Fast-dLLM v2 on tiny random checkpoints: `generate` of the model's own modeling.py (published with the weights)
and `batch_sample` of the repository's v2/generation_functions.py, with and without the block cache.

python fast_dllm_v2.py MODELING FAST_DLLM OUT [--modeling-source TEXT] [--commit ID]

MODELING: a folder with the published modeling.py and configuration.py; needs transformers 4.53.1.
"""

import argparse
import importlib
import itertools
import pathlib
import sys
import types

import common
import torch

# hidden_size, heads, kv_heads, layers, intermediate_size, vocab_size, then what differs
CHECKPOINTS = {
    "v2-gqa": (64, 4, 2, 2, 96, 131, {}),
    "v2-g3-theta": (48, 6, 2, 3, 80, 97, dict(rope_theta=10000.0)),
    "v2-mha": (32, 2, 2, 3, 64, 211, {}),
    "v2-tied-mqa": (64, 4, 1, 2, 72, 113, dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
}

# prompt length, max_new_tokens, block_size, small_block_size. Blocks that divide 32: the denoising passes of the
# official code build their mask with blocks of 32. Never a prompt of exactly one block: it is then not attended to.
SHAPES = [(7, 24, 8, 8), (3, 16, 8, 4), (19, 24, 8, 2), (33, 32, 16, 4), (16, 24, 8, 4), (40, 64, 32, 8),
          (12, 12, 4, 2), (64, 64, 32, 16)]
SELECTIONS = [dict(threshold=t) for t in (0.2, 0.4, 0.9, 1.0)] + [
    dict(threshold=0.35, stop=True), dict(threshold=0.9, stop=True)]


def config_of(name):
    hidden, heads, kv_heads, layers, intermediate, vocab, more = CHECKPOINTS[name]
    return dict(
        architectures=["Fast_dLLM_QwenForCausalLM"], model_type="Fast_dLLM_Qwen", attention_dropout=0.0,
        bd_size=8, bos_token_id=vocab - 2, eos_token_id=vocab - 3, pad_token_id=vocab - 2,
        conplemenrary_mask=True, hidden_act="silu", hidden_size=hidden, initializer_range=0.02,
        intermediate_size=intermediate, layer_types=["full_attention"] * layers, max_position_embeddings=256,
        max_window_layers=layers, num_attention_heads=heads, num_hidden_layers=layers,
        num_key_value_heads=kv_heads, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0,
        sliding_window=None, tie_word_embeddings=False, torch_dtype="float32", use_cache=True,
        use_sliding_window=False, vocab_size=vocab, mask_token_id=vocab - 4) | more


def model_of(package, name, folder):
    config = config_of(name)
    model = package.modeling.Fast_dLLM_QwenForCausalLM(
        package.configuration.Fast_dLLM_QwenConfig(**config_of(name))).eval()
    width, tied = config["hidden_size"] ** -0.5, config["tie_word_embeddings"]
    logits_std = (3.4 if config["num_hidden_layers"] == 3 else 2.9) * width

    def special(parameter, weight):
        return (lambda noise: 0.3 * noise) if parameter.endswith("proj.bias") else None

    common.random_weights(model, 700 + list(CHECKPOINTS).index(name), std=1.1 * width,
                          embedding_std=logits_std if tied else 1.0, head_std=logits_std, special=special)
    if tied:
        model.tie_weights()
    else:
        with torch.no_grad():
            model.lm_head.weight[config["mask_token_id"]] *= 0.2
    state = {n: t for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}
    common.write_checkpoint(folder / name, config, state)
    missing, unexpected = model.load_state_dict(common.read_state(folder / name), strict=False)
    assert not unexpected and missing == ["lm_head.weight"] * tied, (missing, unexpected)
    return model


def watch(model, recorder):
    """Returns a list of (first position, input) of the passes; the inputs are views that the decoder writes to."""
    inputs = []

    def forward(input_ids, past_key_values=None, replace_position=None, update_past_key_values=False, **more):
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        start += replace_position or 0
        ids = input_ids[0].tolist()
        result = type(model).forward(
            model, input_ids=input_ids, past_key_values=past_key_values, replace_position=replace_position,
            update_past_key_values=update_past_key_values, **more)
        recorder.add(range(start, start + len(ids)), ids, result.logits[0], stores=update_past_key_values)
        inputs.append((start, input_ids))
        return result
    model.forward = forward
    return inputs


def margin_of(passes, parameters, mask_id):
    margin = common.Margin()
    small = parameters["small_block_size"]
    for row in passes:
        if row["stores"]:
            margin.of_logits(row["gap"][-1])
            continue
        masked = [p for p in row["positions"] if row["input"][p] == mask_id]
        masked = [p for p in masked if p // small == masked[0] // small]
        rows = {p: row["positions"].index(p - 1 if p - 1 in row["positions"] else p) for p in masked}
        scores = {p: row["probability"][i] for p, i in rows.items()}
        margin.of_logits(*[row["gap"][i] for i in rows.values()])
        if any(row["top1"][i] == mask_id for i in rows.values()):
            margin.of_ranking(scores)
        else:
            margin.of_cut(scores, [p for p, _ in row["changed"]])
        margin.of(*[s - parameters["threshold"] for s in scores.values()])
    return margin


def run_case(model, decode, block_cache, name, shape, selection, seed, stop_id=-1):
    config = config_of(name)
    length, max_new_tokens, block_size, small_block_size = shape
    mask_id = config["mask_token_id"]
    prompt = common.prompt_of(seed, length, config["vocab_size"], mask_id)
    parameters = dict(max_new_tokens=max_new_tokens, block_size=block_size, small_block_size=small_block_size,
                      threshold=selection["threshold"], stop_token=stop_id, use_block_cache=block_cache,
                      mask_id=mask_id)
    recorder = common.Recorder(prompt, mask_id)
    inputs = watch(model, recorder)
    error = None
    try:
        output = decode(model, prompt, parameters, config)
    except TypeError as problem:
        output, error = recorder.tokens, f"{type(problem).__name__}: {problem}"
    finally:
        del model.forward
    if selection.get("stop") and stop_id < 0:  # again, with a token that it says in the middle
        said = output[length:]
        return run_case(model, decode, block_cache, name, shape, selection, seed, said[len(said) // 2])
    start, last = inputs[-1]
    tokens = recorder.tokens[:start] + last[0].tolist() + recorder.tokens[start + last.shape[1]:]
    tokens += output[len(tokens):]
    parameters["prompt_length"] = length
    case = dict(checkpoint=name, parameters=parameters, prompt=prompt, tokens=tokens, output=output,
                nfe=len(recorder.passes), passes=recorder.finish(tokens))
    if error:
        case["error"] = error
    return case, margin_of(case["passes"], parameters, mask_id)


def generate(model, prompt, parameters, config):
    return model.generate(torch.tensor([prompt]), temperature=0, **parameters)[0].tolist()


def batch_sample_of(repository):
    """-> a decoder like `generate`, of v2/generation_functions.py, for a batch of one."""
    sys.path.append(str(repository / "v2"))
    module = importlib.import_module("generation_functions")

    def batch_sample(model, prompt, parameters, config):
        tokenizer = types.SimpleNamespace(pad_token_id=config["pad_token_id"])
        result = module.Fast_dLLM_QwenForCausalLM.batch_sample(
            model, torch.tensor([prompt]), tokenizer, min_len=len(prompt), seq_len=torch.tensor([len(prompt)]),
            temperature=0.0, **parameters)
        return result[0].tolist()
    return batch_sample


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("modeling", type=pathlib.Path)
    parser.add_argument("repository", type=pathlib.Path, help="work tree of NVlabs/Fast-dLLM with v2/")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--modeling-source", default="unknown")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    folder = arguments.modeling.resolve()
    sys.path.insert(0, str(folder.parent))
    package = types.SimpleNamespace(modeling=importlib.import_module(f"{folder.name}.modeling"),
                                    configuration=importlib.import_module(f"{folder.name}.configuration"))
    torch.set_num_threads(1)
    models = {}
    for name in CHECKPOINTS:
        models[name] = model = model_of(package, name, arguments.out)
        for block_length in (4, 7):
            ids = common.prompt_of(7, 43, config_of(name)["vocab_size"], -1)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), block_size=block_length).logits[0]
            common.write_logits(arguments.out / name, ids, logits, "block_causal", block_length)
    published = dict(repository=arguments.modeling_source, function="modeling.py:generate")
    upstream = dict(repository="NVlabs/Fast-dLLM", commit=arguments.commit,
                    function="v2/generation_functions.py:batch_sample")
    decoders = {"generate": (generate, published), "batch-sample": (batch_sample_of(arguments.repository), upstream)}
    for (method, (decode, source)), block_cache in itertools.product(decoders.items(), (False, True)):
        cases, given_up = [], 0
        grid = itertools.product(enumerate(models.items()), range(len(SELECTIONS)), range(2))
        for (index, (name, model)), number, again in grid:
            shape = SHAPES[(index + number + 4 * again) % len(SHAPES)]
            case = common.without_near_ties(
                lambda seed: run_case(model, decode, block_cache, name, shape, SELECTIONS[number], seed),
                1000 * number + 100 * again + index)
            cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
        common.write_oracle(arguments.out, "fast-dllm-v2", method + "-block-cache" * block_cache, source, cases,
                            given_up)


if __name__ == "__main__":
    main()
