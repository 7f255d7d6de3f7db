"""The caches and strategies of Kamichanw/d2Cache on the checkpoints that llada.py and dream.py wrote.

python d2cache.py D2CACHE CHECKPOINTS OUT [--commit ID]

CHECKPOINTS holds llada/ and dream/. Each case is run as published and, where it matters, "corrected": strategies see
the block instead of what is left of its masks, and never choose a row that the cache did not compute (both are so in
later versions); "current" also gives the d2Cache certainties of the last computation instead of the first.
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import types
from contextlib import contextmanager

import common
import torch

CHECKPOINTS = {"llada": ["llada-mha", "llada-mqa-qkv-bias", "llada-norm-bias-ratio"],
               "dream": ["dream-gqa", "dream-g3-theta", "dream-mha"]}
SHAPES = [(7, 16, 8), (20, 24, 8), (33, 16, 16), (12, 32, 32), (5, 12, 4)]  # prompt, gen_length, block_length
PLAIN = [dict(threshold=0.3), dict(num_transfer_tokens=2), dict(factor=1.7), dict(threshold=0.7)]
DLLM = [dict(kp=p, kr=r, rou=share) for p, r, share in
        [(5, 2, 0.25), (50, 7, 0.25), (7, 3, 0.5), (4, 2, 0.0), (100, 8, 0.3), (3, 1, 0.25)]]
D2 = [dict(rollout_p=p, current_k=k, sigma=sigma, inflate_w=w) for p, k, sigma, w in
      [(0.1, 8, 3.0, 0), (0.1, 4, 10.0, 4), (0.3, 6, 2.0, 2), (0.1, 32, 10.0, 4)]]
FEW = [dict(rollout_p=0.1, current_k=2, sigma=3.0, inflate_w=0)]  # less than is chosen: rows that were not computed
VANILLA = PLAIN + [dict(), dict(factor=1.0), dict(gamma=0.001), dict(gamma=2.5), dict(sigma=3.0),
                   dict(sigma=10.0, threshold=0.2), dict(alg="topk_margin", num_transfer_tokens=2),
                   dict(alg="entropy", num_transfer_tokens=2), dict(debias=True, num_transfer_tokens=2),
                   dict(debias=True, clip_alpha=1.0)]
AR = [dict(threshold=0.2), dict(threshold=0.4, num_transfer_tokens=2), dict()]
KLASS = [dict(kl_threshold=0.05, threshold=0.3), dict(kl_threshold=0.3, threshold=0.3, kl_history_length=3),
         dict(kl_threshold=0.5, num_transfer_tokens=2, threshold=0.2), dict(kl_threshold=0.05)]
WINO = [dict(wide_in_thres=0.25, narrow_out_thres=0.4), dict(wide_in_thres=0.4, narrow_out_thres=0.9),
        dict(wide_in_thres=0.15, narrow_out_thres=0.3)]
# name: strategy, its parameters, cache class, the cache's parameters, variants
METHODS = {
    "vanilla": ("vanilla", VANILLA, None, [{}], ["published"]),
    "ar": ("ar", AR, None, [{}], ["published"]),
    "klass": ("klass", KLASS, None, [{}], ["published"]),
    "wino": ("wino", WINO, None, [{}], ["published", "corrected"]),
    "prefix-cache": ("vanilla", PLAIN, "PrefixCache", [dict(use_dual=False)], ["published"]),
    "dual-cache": ("vanilla", PLAIN, "PrefixCache", [dict(use_dual=True)], ["published"]),
    "dllm-cache": ("vanilla", PLAIN[:2], "dLLMCache", DLLM, ["published"]),
    "d2cache": ("vanilla", PLAIN[:2], "d2Cache", D2, ["published", "corrected", "current"]),
    "d2cache-ar": ("ar", AR[:2], "d2Cache", D2 + FEW, ["published", "corrected", "current"]),
    "d2cache-eb": ("vanilla", [dict(gamma=2.5)], "d2Cache", D2[:1] + FEW, ["published", "corrected", "current"]),
}


def official_modules(repository):
    """Imports the repository; the evaluation harness, which its models pull in, is left out."""
    sys.path.insert(0, str(repository))
    for name, content in {"lm_eval": {}, "lm_eval.api": {}, "lm_eval.api.model": dict(TemplateLM=object),
                          "lm_eval.api.instance": dict(Instance=object)}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(content)
    import src.cache
    import src.generation
    from src.generation import ar, klass, utils, vanilla, wino
    from src.models import DreamConfig, DreamModel, LLaDAConfig, LLaDAModelLM
    return types.SimpleNamespace(
        cache=src.cache, ar=ar, klass=klass, utils=utils, vanilla=vanilla, wino=wino,
        models=dict(llada=(LLaDAModelLM, LLaDAConfig), dream=(DreamModel, DreamConfig)),
        check=vanilla.check_can_generate, step=vanilla.generate_step,
        on_step_end=src.cache.d2Cache.on_step_end)


def apply_variant(official, variant):
    def copied_check(frame, eligible_mask=None, **more):
        return official.check(frame, eligible_mask=eligible_mask.clone(), **more)

    def valid_rows(cache, prompt_length, shifted):
        mask = cache.active_q_mask
        return mask[:, prompt_length - 1:-1] if shifted else mask[:, prompt_length:]

    def step(*, unmasking_fn, past_key_values=None, model, frame, **more):
        def only_computed(*, transfer_index_mask, **rest):
            if variant != "published" and past_key_values is not None and past_key_values.active_q_mask is not None:
                shifted = official.vanilla.is_adapted_from_ar(model)
                transfer_index_mask = transfer_index_mask & valid_rows(
                    past_key_values, frame.prompts.shape[-1], shifted)
            return unmasking_fn(transfer_index_mask=transfer_index_mask, **rest)
        delta = official.step(model=model, frame=frame, unmasking_fn=only_computed,
                              past_key_values=past_key_values, **more)
        if delta is not None and "curr_probs" in (delta.extra or {}):  # float32 into float64: would raise
            delta.extra["curr_probs"] = delta.extra["curr_probs"].double()
        return delta

    def on_step_end(self, block_mask, frame, delta):
        if self._conf_cache is not None and self.active_q_mask is not None:
            shifted = official.vanilla.is_adapted_from_ar(self.model_config)
            valid = valid_rows(self, frame.prompts.shape[-1], shifted) & (frame.generated_tokens == self.mask_token_id)
            self._conf_cache = torch.where(valid, delta.confidence, self._conf_cache)
        official.on_step_end(self, block_mask, frame, delta)

    check = official.check if variant == "published" else copied_check
    official.vanilla.check_can_generate = official.wino.check_can_generate = check
    for module in (official.vanilla, official.ar, official.klass):
        module.generate_step = step
    official.cache.d2Cache.on_step_end = on_step_end if variant == "current" else official.on_step_end


def model_of(official, family, folder):
    config = json.loads((folder / "config.json").read_text())
    model_class, config_class = official.models[family]
    model = model_class._from_config(config_class(**config), attn_implementation="eager").eval()
    model.load_state_dict(common.read_state(folder))
    return model


def cache_class(official, name, arguments, layers):
    """Partially applied like the repository does; the layers' rows are written to `layers`."""
    if name is None:
        return None
    parent = getattr(official.cache, name)

    class Watched(parent):
        def __init__(self, model_config):
            super().__init__(model_config, **arguments)

        @contextmanager
        def attention(self, layer_idx, *rest, **more):
            with super().attention(layer_idx, *rest, **more) as context:
                yield context
            if name == "dLLMCache":
                layers[layer_idx] = sorted(self._refresh_index[0].tolist())
    return Watched


def watch(model, recorder, layers):
    def forward(input_ids, past_key_values=None, **more):
        layers.clear()
        result = type(model).forward(model, input_ids, past_key_values=past_key_values, **more)
        length, logits = len(recorder.tokens), result.logits[0]
        rows = torch.arange(length)
        if past_key_values is not None and past_key_values.active_q_mask is not None:
            rows = past_key_values.active_q_mask[0].nonzero()[:, 0]
        extra = dict(layers=[layers[i] for i in sorted(layers)]) if layers else {}
        if input_ids.shape[1] > length:  # the shadow block
            positions = more["position_ids"][0, length:]
            shadow = logits[length:].double().softmax(-1).gather(-1, input_ids[0, positions, None])[:, 0]
            extra = dict(shadow_positions=positions.tolist(), shadow_probability=[common.number(p) for p in shadow])
        for position, token in enumerate(input_ids[0, :length].tolist()):
            recorder.tokens[position] = token
        recorder.add(rows, input_ids[0, rows], logits[rows], **extra)
        return result
    model.forward = forward


def run_case(official, model, family, name, method, shape, selection, arguments, variant, seed):
    strategy, _, cache_name, _, _ = METHODS[method]
    length, gen_length, block_length = shape
    mask_id, vocab = model.config.mask_token_id, model.config.vocab_size
    prompt = common.prompt_of(seed, length, vocab, mask_id)
    os.environ["MASK_TOKEN_ID"] = str(mask_id)
    parameters = dict(prompt_length=length, gen_length=gen_length, block_length=block_length, mask_id=mask_id,
                      **selection, **arguments, variant=variant)
    case = dict(checkpoint=f"../{family}/{name}", parameters=parameters, prompt=prompt)
    frequency = torch.arange(2, vocab + 2, dtype=torch.float64) ** -1.2
    frequency[::5] = 1e-6
    if selection.get("debias"):
        case["token_frequency"] = [common.number(f) for f in frequency]
    official.utils.get_token_freq = lambda *_: frequency.clone()
    layers = {}
    recorder = common.Recorder(prompt + [mask_id] * gen_length, mask_id)
    watch(model, recorder, layers)
    generate = getattr(getattr(official, strategy), f"{strategy}_generate")
    more = dict(cache_cls=cache_class(official, cache_name, arguments, layers)) if strategy != "wino" else dict(
        attention_mask=torch.ones(1, length, dtype=torch.long), pad_token_id=model.config.pad_token_id)
    apply_variant(official, variant)
    try:
        record = generate(model, torch.tensor([prompt]), block_length=block_length, gen_length=gen_length,
                          mask_token_id=mask_id, **selection, **more)
        tokens = prompt + record[-1].generated_tokens[0].tolist()
        case.update(tokens=tokens, nfe=len(recorder.passes))
    except (RuntimeError, IndexError) as error:
        case.update(error=f"{type(error).__name__}: {error}", tokens=list(recorder.tokens))
    finally:
        del model.forward
    case["passes"] = recorder.finish(case["tokens"])
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=pathlib.Path, help="work tree of Kamichanw/d2Cache")
    parser.add_argument("checkpoints", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    official = official_modules(arguments.repository)
    source = dict(repository="Kamichanw/d2Cache", commit=arguments.commit, function="src/generation, src/cache")
    for family, names in CHECKPOINTS.items():
        models = {name: model_of(official, family, arguments.checkpoints / family / name) for name in names}
        for method, (_, selections, _, caches, variants) in METHODS.items():
            cases, given_up, number = [], 0, 0
            for selection, cache, (name, model) in itertools.product(selections, caches, models.items()):
                number += 1
                shape = SHAPES[(number + number // 5) % len(SHAPES)]
                for variant in variants:
                    case = common.first_unchanged_by_noise(model, lambda seed: run_case(
                        official, model, family, name, method, shape, selection, cache, variant, seed), 100 * number)
                    cases, given_up = cases + [case] * (case is not None), given_up + (case is None)
            common.write_oracle(arguments.out, family, method, source, cases, given_up)


if __name__ == "__main__":
    main()
