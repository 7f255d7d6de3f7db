"""The decoder and modelling code of LLaDA2 MoE (dFactory's models/llada2_moe) on tiny random checkpoints.

python llada2.py DFACTORY OUT [--commit ID]

veomni, which the file imports, is replaced by empty modules: experts one by one instead of its fused kernel.
Greedy: argmax and its softmax probability, in place of the official sampler, which draws even at temperature 0.
"""

import argparse
import itertools
import pathlib
import sys
import types

import common
import torch

# hidden_size, heads, kv_heads, head_dim, layers, dense layers, vocab, experts, per token, groups, kept groups
CHECKPOINTS = {
    "llada2-groups": (64, 4, 2, 32, 3, 1, 131, 16, 4, 4, 2, {}),
    "llada2-one-group": (48, 6, 2, 16, 2, 0, 101, 8, 2, 1, 1, dict(partial_rotary_factor=0.25)),
    "llada2-mha-bias": (64, 4, 4, 16, 2, 1, 157, 12, 3, 3, 2,
                        dict(use_qkv_bias=True, use_bias=True, partial_rotary_factor=1.0)),
    "llada2-no-shared": (32, 2, 1, 24, 3, 2, 113, 8, 3, 2, 1, dict(num_shared_experts=None, rms_norm_eps=1e-5)),
    "llada2-two-shared": (64, 8, 4, 16, 2, 1, 211, 8, 1, 2, 2, dict(num_shared_experts=2)),
}

# prompt length, gen_length, block_length, steps
SHAPES = [(7, 16, 8, 8), (3, 12, 4, 4), (19, 11, 5, 3), (33, 24, 8, 4), (16, 16, 16, 7), (30, 40, 32, 16), (8, 9, 4, 2)]
SELECTIONS = [dict(threshold=t) for t in (0.2, 0.4, 0.95, 2.0)] + [
    dict(threshold=0.3, stop=True), dict(threshold=0.95, stop=True), dict(threshold=0.5, stop=True, early=True)]
ROUTER_TOO_NEAR = 1e-5  # in a sigmoid's score: float32 rounding is some 1e-7 there


def stub_veomni():
    def module(name, **content):
        sys.modules[name] = stub = types.ModuleType(name)
        stub.__dict__.update(content)
        return stub
    logger = types.SimpleNamespace(info_rank0=print, warning_once=print, warning=print)
    logging = module("veomni.utils.logging", get_logger=lambda name: logger)
    module("veomni", utils=module("veomni.utils", logging=logging))
    module("veomni.ops", causallm_loss_function=None, fused_moe_forward=None)
    module("veomni.distributed")
    module("veomni.distributed.parallel_state", get_parallel_state=None)
    module("veomni.utils.import_utils", is_liger_kernel_available=lambda: False)


def config_of(name):
    (hidden, heads, kv_heads, head_dim, layers, dense, vocab, experts, per_token, groups, kept,
     more) = CHECKPOINTS[name]
    return dict(
        architectures=["LLaDA2MoeModelLM"], model_type="llada2_moe", attention_dropout=0.0,
        embedding_dropout=0.0, output_dropout=0.0, first_k_dense_replace=dense, head_dim=head_dim,
        hidden_act="silu", hidden_size=hidden, initializer_range=0.02, intermediate_size=2 * hidden - 8,
        max_position_embeddings=256, max_window_layers=28, moe_intermediate_size=40,
        moe_router_enable_expert_bias=True, n_group=groups, norm_head=False, norm_softmax=False,
        norm_topk_prob=True, num_attention_heads=heads, num_experts=experts, num_experts_per_tok=per_token,
        num_hidden_layers=layers, num_key_value_heads=kv_heads, num_shared_experts=1,
        output_router_logits=False, pad_token_id=vocab - 1, partial_rotary_factor=0.5, rms_norm_eps=1e-6,
        rope_scaling=None, rope_theta=600000, routed_scaling_factor=2.5, router_dtype="fp32",
        score_function="sigmoid", tie_word_embeddings=False, topk_group=kept, torch_dtype="float32",
        use_bias=False, use_cache=False, use_qkv_bias=False, use_rmsnorm=True, use_sliding_window=False,
        using_split_qkv_in_self_attention=False, vocab_size=vocab, mask_token_id=vocab - 4) | more


class Routers:
    """How near the choice of experts ever was to another one."""

    def __init__(self):
        self.nearest = float("inf")

    def watch(self, gate):
        official = gate.group_limited_topk

        def group_limited_topk(scores):
            groups = scores.view(len(scores), gate.n_group, -1).topk(2, -1).values.sum(-1)
            if gate.topk_group < gate.n_group:
                best = groups.sort(-1, descending=True).values
                self.of(best[:, gate.topk_group - 1] - best[:, gate.topk_group])
            kept = groups >= groups.topk(gate.topk_group, -1).values[:, -1:]
            inside = scores.masked_fill(~kept.repeat_interleave(gate.num_experts // gate.n_group, -1), -9.0)
            best = inside.sort(-1, descending=True).values
            self.of(best[:, gate.top_k - 1] - best[:, gate.top_k])
            return official(scores)
        gate.group_limited_topk = group_limited_topk

    def of(self, distances):
        self.nearest = min(self.nearest, float(distances.min()))


def model_of(name, folder, routers):
    from llada2_moe.configuration_llada2_moe import LLaDA2MoeConfig
    from llada2_moe.modeling_llada2_moe import LLaDA2MoeModelLM

    class Config(LLaDA2MoeConfig):
        model_type = "llada2_moe"  # expert by expert, as published
    config = config_of(name)
    model = LLaDA2MoeModelLM._from_config(Config(**config_of(name)), attn_implementation="sdpa").eval()
    width = config["hidden_size"] ** -0.5

    def special(parameter, weight):
        return (lambda noise: 1.5 * width * noise) if parameter.endswith("gate.weight") else None

    common.random_weights(model, 500 + list(CHECKPOINTS).index(name), std=1.1 * width, embedding_std=1.0,
                          head_std=2.9 * width, special=special)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        model.lm_head.weight[config["mask_token_id"]] *= 0.2
        for layer in model.model.layers[config["first_k_dense_replace"]:]:
            layer.mlp.gate.expert_bias.copy_(0.2 * torch.randn(config["num_experts"], generator=generator))
            routers.watch(layer.mlp.gate)
    common.write_checkpoint(folder / name, config, model.state_dict(), shards=2 if "one-group" in name else 1)
    model.load_state_dict(common.read_state(folder / name))

    def greedy(logits, temperature=None, top_k=None, top_p=None):
        probability, token = torch.softmax(logits, -1).max(-1)
        return token, probability
    model._sample_with_temperature_topk_topp = greedy
    return model


def watch(model, recorder):
    """Returns a list whose last entry is the input of the last pass: a view that the decoder writes to."""
    inputs = []

    def forward(input_ids, attention_mask=None, **more):
        # made in bfloat16, which torch does not take with float32 queries
        result = type(model).forward(model, input_ids, attention_mask=attention_mask.float(), **more)
        recorder.add(range(input_ids.shape[1]), input_ids[0], result.logits[0], stores=False)
        inputs.append(input_ids)
        return result
    model.forward = forward
    return inputs


def margin_of(passes, parameters, mask_id):
    margin = common.Margin()
    for row in passes:
        begin = len(row["input"]) - parameters["block_length"]
        masked = [p for p in range(begin, len(row["input"])) if row["input"][p] == mask_id]
        scores = {p: row["probability"][p] for p in masked}
        margin.of_logits(*[row["gap"][p] for p in masked])
        if any(row["top1"][p] == mask_id for p in masked):
            margin.of_ranking(scores)
        else:
            margin.of_cut(scores, [p for p, _ in row["changed"]])
        margin.of(*[s - parameters["threshold"] for s in scores.values()])
    return margin


def run_case(model, routers, name, shape, selection, seed, stop_id=-1):
    config = config_of(name)
    length, gen_length, block_length, steps = shape
    mask_id = config["mask_token_id"]
    prompt = common.prompt_of(seed, length, config["vocab_size"], mask_id)
    parameters = dict(prompt_length=length, gen_length=gen_length, block_length=block_length, steps=steps,
                      threshold=selection["threshold"], eos_id=stop_id, mask_id=mask_id,
                      eos_early_stop=stop_id >= 0 and selection.get("early", False))
    recorder = common.Recorder(prompt, mask_id)
    inputs = watch(model, recorder)
    routers.nearest = float("inf")
    official = {k: v for k, v in parameters.items() if k != "prompt_length"}
    output = model.generate(torch.tensor([prompt]), temperature=0.0, **official)[0].tolist()
    del model.forward
    if selection.get("stop") and stop_id < 0:  # again, with a token that it says in the middle
        return run_case(model, routers, name, shape, selection, seed, output[len(output) // 2])
    tokens = inputs[-1][0].tolist()
    case = dict(checkpoint=name, parameters=parameters, prompt=prompt, tokens=tokens, output=output,
                nfe=len(recorder.passes), router_margin=common.number(min(routers.nearest, 1e9)))
    case["passes"] = recorder.finish(tokens)
    margin = margin_of(case["passes"], parameters, mask_id)
    if routers.nearest < ROUTER_TOO_NEAR:
        margin.of(0.0)
    return case, margin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path, help="work tree of inclusionAI/dFactory")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.repository / "models"))
    stub_veomni()
    torch.set_num_threads(1)
    routers, models = Routers(), {}
    for name in CHECKPOINTS:
        models[name] = model = model_of(name, arguments.out, routers)
        for block_length in (4, 7):
            ids = common.prompt_of(7, 43, config_of(name)["vocab_size"], -1)
            block = torch.arange(len(ids)) // block_length
            mask = torch.where(block[:, None] >= block[None, :], 0.0, float("-inf"))[None, None]
            with torch.no_grad():
                logits = model(torch.tensor([ids]), attention_mask=mask).logits[0]
            common.write_logits(arguments.out / name, ids, logits, "block_causal", block_length)
    cases, given_up = [], 0
    for (index, (name, model)), number in itertools.product(enumerate(models.items()), range(len(SELECTIONS))):
        shape = SHAPES[(index + number) % len(SHAPES)]
        case = common.without_near_ties(
            lambda seed: run_case(model, routers, name, shape, SELECTIONS[number], seed), 1000 * number + index)
        cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
    source = dict(repository="inclusionAI/dFactory", commit=arguments.commit,
                  function="models/llada2_moe/modeling_llada2_moe.py:generate")
    common.write_oracle(arguments.out, "llada2", "block-causal", source, cases, given_up)


if __name__ == "__main__":
    main()
