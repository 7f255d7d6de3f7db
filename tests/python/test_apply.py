"""blockscope.apply() in an SDAR loop over transformers' Qwen3: tokens and keys read are those of the runtime with the
same policy, and every merged output is that of a float64 program of the rule."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import applied_loops as loops  # noqa: E402
import blockscope  # noqa: E402
import plugin_methods  # noqa: E402
import recorded_models as models  # noqa: E402

GEN, STEPS, PROMPTS = 32, 8, 3
LINES = [json.loads(line) for line in (loops.NEEDLE / "demo.jsonl").read_text().splitlines()[:PROMPTS]]
READS = ("key_rows", "key_rows_read", "choice_rows", "commit_key_rows", "key_rows_by_kv_head",
         "key_rows_read_by_kv_head")


@pytest.fixture(scope="module")
def runtime():
    return blockscope.Model(loops.NEEDLE, dtype="float32")


@pytest.fixture(scope="module")
def model():
    return loops.needle()


@pytest.fixture(scope="module")
def exact(runtime, tmp_path_factory):
    return runtime.capture(LINES, output=tmp_path_factory.mktemp("exact") / "run.h5", record="outputs", gen_length=GEN,
                           denoising_steps=STEPS, no_stop=True, progress=False)


@pytest.fixture(scope="module")
def files(runtime, exact, tmp_path_factory):
    """Calibration files: masks by step written by hand; and calibrated ones with a bound of L_out."""
    folder = tmp_path_factory.mktemp("reuse")
    shape = exact.model["num_layers"], exact.model["num_heads"]
    masks = np.random.default_rng(5).random((3, *shape)) < 0.6
    by_hand = {"format": "blockscope-reuse", "format_version": 2, "tau": 4, "tau_counts": "since_read",
               "model": {"layers": shape[0], "heads": shape[1], "digest": runtime.facts["digest"]},
               "step_ranges": [[1, 2], [3, 5], [6, None]], "reuse": masks.tolist()}
    (folder / "steps.json").write_text(json.dumps(by_hand))
    exact.calibrate(gamma=0.9, tau=8, reference="kept", lse_bound=0.3, by_step="2-4,5").save(folder / "bound.json")
    return folder


def applied(model, policy, prompts, **options):
    with blockscope.apply(model, policy, block_length=loops.SIZE, **options) as run:
        found = []
        for prompt in prompts:
            found.append(loops.sdar_loop(model, prompt, GEN))
            run.end_sequence()
    return found, run.summary()


def prompts_of(trace):
    return [[int(token) for token in sequence.prompt] for sequence in trace.sequences]


POLICIES = [
    "exact", "flashblock,tau=2", "flashblock,tau=3", "flashblock,tau=4,count=step", "flashblock,tau=8",
    "flashblock,tau=4,refresh=rows", "flashblock,tau=4,refresh=near", "flashblock,tau=8,sure=0.9",
    "flashblock,reuse=steps.json", "flashblock,tau=6,reuse=steps.json", "flashblock,reuse=bound.json",
    "flashblock,bound=0.2,reuse=bound.json", "mage,k=16", "mage,density=0.1,exact_layers=2", "mage+flashblock,k=8",
    "quest,k=64,page=4", "quest,k=24,page=16,exact_layers=2", "sparsed,density=0.3", "sparsed,k=16,per_block",
    "sparsed+flashblock,k=8,per_block", "oracle,k=16", "recent,k=200", "random,k=16,seed=3", "my_mage,k=16",
    "my_quest,k=64,page=4"]


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_and_reads_are_those_of_capture(runtime, model, files, tmp_path, policy):
    for name in ("steps.json", "bound.json"):
        policy = policy.replace(name, str(files / name))
    options = dict(gen_length=GEN, denoising_steps=STEPS, no_stop=True, progress=False)
    trace = runtime.capture(LINES, output=tmp_path / "run.h5", record="trajectory", policy=policy, **options)
    prompts = prompts_of(trace)
    found, summary = applied(model, policy, prompts, gen_length=GEN, denoising_steps=STEPS)
    for index, (prompt, ids) in enumerate(zip(prompts, found)):
        wanted = trace.frame(index, trace.num_steps(index)).tokens
        assert ids[0, len(prompt):].tolist() == wanted.tolist(), index
    assert summary["sequences"] == PROMPTS
    assert summary["denoising_steps"] == sum(trace.num_steps(index) for index in range(PROMPTS))
    if policy == "exact":
        assert summary["key_rows"] == summary["key_rows_read"] > 0
        return
    reads = runtime.verify(policy, prompts=LINES, repeats=1, **options)["settings"][0]["free_running"]["reads"]
    assert {name: summary[name] for name in READS} == {name: reads[name] for name in READS}
    assert summary["saving"] == pytest.approx(reads["saving"], rel=1e-12)
    assert (summary["steps_reused"] > 0) == (policy.startswith("flashblock") and policy != "flashblock,tau=2")


def test_an_object_of_an_own_class(model, exact):
    """Not registered, or registered: the same as its text."""
    class Newest:
        def __init__(self, k):
            self.k = k

        def choose(self, layer, q, keys, step):
            assert step.planned_steps is None and 1 <= step.step <= STEPS
            return range(max(0, keys.shape[2] - self.k), keys.shape[2]), 0

    prompts = prompts_of(exact)
    for mine, theirs in ((Newest(200), "recent,k=200"), (plugin_methods.Mage(16), "mage,k=16")):
        (ids, reads), (wanted, expected) = (applied(model, policy, prompts) for policy in (mine, theirs))
        assert all(torch.equal(a, b) for a, b in zip(ids, wanted))
        assert {name: reads[name] for name in READS} == {name: expected[name] for name in READS}


def test_a_policy_that_attends_itself(model, exact):
    kept = []

    class Halved:
        """Drops the older half of the prefix, by its own attention."""

        def attend(self, layer, q, k_in, v_in, external, step, ops):
            half = int(external.length[0]) // 2
            kept.append(half)
            found = ops.split_attention(q, external.key[:, :, half:], external.value[:, :, half:], k_in, v_in)
            return {**found._asdict(), "keys_read": int(external.length[0]) - half}

    _, summary = applied(model, Halved(), prompts_of(exact)[:1])
    assert 0.49 < summary["saving"] <= 0.5 and len(kept) == summary["denoising_steps"] * len(model.model.layers)


@pytest.mark.parametrize("policy, tau, by_step", [("flashblock,tau=2", 2, False), ("flashblock,tau=4", 4, False),
                                                 ("flashblock,tau=100", 100, False), ("steps.json", 4, True)])
def test_every_output_is_that_of_a_float64_program(files, exact, policy, tau, by_step):
    watched = loops.Watched()
    model = loops.needle("watched")
    if by_step:
        content = json.loads((files / policy).read_text())
        policy = f"flashblock,reuse={files / policy}"
        table, firsts = np.array(content["reuse"]), [first for first, _ in content["step_ranges"]]

    def masks(step, layer):
        return table[sum(first <= step for first in firsts) - 1, layer]

    prompt, seen = prompts_of(exact)[0], []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (int(kwargs["position_ids"][0, 0]) if args[0].shape[1] == loops.SIZE else None, args[0][0].numpy().copy())),
        with_kwargs=True)
    with blockscope.apply(model, policy, block_length=loops.SIZE) as run:
        loops.sdar_loop(model, prompt, GEN, per_step=1)
    hook.remove()
    largest, reused = loops.flashblock(watched.passes, seen, model.config.mask_token_id, tau,
                                       masks if by_step else None)
    assert largest < 2e-5
    heads = run.summary()["steps_reused"] * len(model.model.layers) * exact.model["num_heads"]
    assert (reused == heads > 0) if not by_step else 0 < reused < heads


def test_a_batch_is_as_each_sequence_alone(model, exact):
    length = min(len(prompt) for prompt in prompts_of(exact))
    prompts = [prompt[-length:] for prompt in prompts_of(exact)]
    for policy in ("flashblock,tau=3", "mage,k=16", "quest,k=64,page=4", plugin_methods.Mage(16)):
        alone = torch.cat(applied(model, policy, prompts)[0])
        with blockscope.apply(model, policy, block_length=loops.SIZE) as run:
            together = loops.sdar_loop(model, prompts, GEN)
        assert torch.equal(alone, together), policy
        assert run.summary()["sequences"] == PROMPTS


def test_a_canvas_of_a_bidirectional_model(tmp_path):
    """The rows around the block are the model's own."""
    folder = models.MODELS / "needle-bidirectional"
    runtime, model = blockscope.Model(folder, dtype="float32"), models.PlainModel("needle-bidirectional")
    prompt = np.random.default_rng(4).integers(1, 900, 40).tolist()
    options = dict(gen_length=GEN, denoising_steps=STEPS, no_stop=True, progress=False, cache="none")
    for policy in ("flashblock,tau=100", "mage,k=8"):
        trace = runtime.capture([prompt], output=tmp_path / "run.h5", record="trajectory", policy=policy, force=True,
                                **options)
        with blockscope.apply(model, policy, block_length=loops.SIZE) as run:
            ids = models.decode_canvas(model, prompt, GEN, loops.SIZE, per_step=2)
        assert ids[0, len(prompt):].tolist() == trace.frame(0, trace.num_steps(0)).tokens.tolist(), policy
        assert run.summary()["key_rows_read"] < run.summary()["key_rows"]
    with pytest.raises(blockscope.UsageError, match="quest.*bidirectional"):
        with blockscope.apply(model, "quest,k=8", block_length=loops.SIZE):
            models.decode_canvas(model, prompt, GEN, loops.SIZE)


def test_without_the_library(model, exact, monkeypatch):
    """Torch's operators give the same tokens and reads."""
    prompts = prompts_of(exact)[:1]
    policies = ("flashblock,tau=3", "flashblock,tau=4,refresh=near", "mage+flashblock,k=8", "quest,k=64,page=4",
                "sparsed,k=16,per_block", "oracle,k=16")
    wanted = [applied(model, policy, prompts) for policy in policies]
    monkeypatch.setattr("blockscope.recording.kernels.loaded", lambda: False)
    for policy, (ids, summary) in zip(policies, wanted):
        found, mine = applied(model, policy, prompts)
        assert torch.equal(found[0], ids[0]) and mine == summary, policy
