"""blockscope.compare() of a loop with and without a policy, against `blockscope verify` of the runtime, and against
float64 for a video model."""

import json
import math
import re
import xml.dom.minidom

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers")

import applied_loops as loops  # noqa: E402
import applied_videos as video  # noqa: E402
import blockscope  # noqa: E402
import video_models  # noqa: E402
import video_calibration as reference  # noqa: E402

GEN, STEPS = 32, 8
LINES = [json.loads(line) for line in (loops.NEEDLE / "demo.jsonl").read_text().splitlines()[:3]]


@pytest.fixture(scope="module")
def runtime():
    return blockscope.Model(loops.NEEDLE, dtype="float32")


@pytest.fixture(scope="module")
def prompts(runtime, tmp_path_factory):
    trace = runtime.capture(LINES, output=tmp_path_factory.mktemp("run") / "run.h5", record="trajectory",
                            gen_length=GEN, denoising_steps=STEPS, no_stop=True, progress=False)
    return [[int(token) for token in one.prompt] for one in trace.sequences]


@pytest.fixture(scope="module")
def model():
    return loops.needle()


def decode(model, prompt):
    return loops.sdar_loop(model, prompt, GEN)


def near(mine, theirs, tolerance):
    """Two trees of numbers."""
    if isinstance(theirs, dict):
        for key in theirs:
            near(mine[key], theirs[key], tolerance)
    elif isinstance(theirs, list):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            near(a, b, tolerance)
    elif theirs is None or isinstance(theirs, (int, str)):
        assert mine == theirs
    else:
        assert mine == pytest.approx(theirs, rel=tolerance, abs=1e-9)


@pytest.mark.parametrize("policy", ["flashblock,tau=3", "mage,k=16", "quest,k=64,page=4", "mage+flashblock,k=8",
                                    "flashblock,tau=6,refresh=near"])
def test_numbers_are_those_of_verify(runtime, model, prompts, policy):
    found = blockscope.compare(model, decode, prompts, policy=policy, repeats=1, block_length=loops.SIZE)
    wanted = runtime.verify(policy, prompts=LINES, gen_length=GEN, denoising_steps=STEPS, repeats=1, no_stop=True,
                            progress=False).data
    mine, theirs = found["settings"][0], wanted["settings"][0]
    assert found["mode"] == "compare" and found["format"] == wanted["format"] and mine["label"] == theirs["label"]
    reads = ("saving", "saving_with_commits", "saving_with_choice", "key_rows", "key_rows_read", "commit_key_rows",
             "choice_rows", "key_rows_by_kv_head", "key_rows_read_by_kv_head")
    for side, of in ((mine["free_running"], theirs["free_running"]), (mine["replay"], theirs["replay"])):
        near({key: side["reads"][key] for key in reads}, {key: of["reads"][key] for key in reads}, 1e-12)
    near(mine["agreement"], theirs["agreement"], 1e-12)
    assert mine["free_running"]["denoising_steps"] == theirs["free_running"]["denoising_steps"]
    exact, expected = (one["reference"]["free_running"] for one in (found, wanted))
    assert exact["denoising_steps"] == expected["denoising_steps"]
    for key in ("key_rows", "commit_key_rows"):
        assert exact["reads"][key] == expected["reads"][key]
    for name in ("first_order", "first_order_approximated", "propagated"):
        for key in (name, f"{name}_by_head"):
            near(mine["replay"][key], theirs["replay"][key], 1e-3)
        by_step = mine["replay"][f"{name}_by_step"]
        assert sum(one["sum_squared"] for one in by_step) == pytest.approx(mine["replay"][name]["sum_squared"])
    assert mine["replay"]["same_top1"] == theirs["replay"]["same_top1"]
    assert [one["positions"] for one in mine["replay"]["kl_by_step"]] == [
        one["positions"] for one in theirs["replay"]["kl_by_step"]]
    assert mine["replay"]["kl"]["mean"] == pytest.approx(theirs["replay"]["kl"]["mean"], rel=1e-2, abs=1e-9)


def test_scores_and_the_shown_table(model, prompts, tmp_path):
    wanted = [decode(model, prompt) for prompt in prompts]

    def right(output, prompt):
        return float(torch.equal(output, wanted[prompts.index(prompt)]))

    found = blockscope.compare(model, decode, prompts, policy="recent,k=2", score=right, repeats=2, replay=False,
                               block_length=loops.SIZE)
    accuracy = found["settings"][0]["accuracy"]
    assert (accuracy["reference"], accuracy["policy"], accuracy["worse"], accuracy["better"]) == (1.0, 0.0, 3, 0)
    assert accuracy["sign_test_p"] == pytest.approx(2 * 0.5 ** 3) and found["metric"] == "right"
    assert found["settings"][0]["replay"] is None and len(found["reference"]["free_running"]["total_seconds"]) == 2
    text = repr(found)
    assert "recent,k=2" in text and "3 worse, 0 better" in text and "% not read" in text and "0 of 3" in text
    xml.dom.minidom.parseString(f"<div>{found._repr_html_()}</div>")
    found.save(tmp_path / "compare.json")
    assert json.loads((tmp_path / "compare.json").read_text()) == found.data
    with pytest.raises(FileExistsError):
        found.save(tmp_path / "compare.json")


def test_a_calibration_file_by_its_name(model, prompts, tmp_path):
    content = {"format": "blockscope-reuse", "format_version": 2, "tau": 4, "tau_counts": "since_read",
               "model": {"layers": 6, "heads": 6, "digest": "0" * 64}, "reuse": [[True] * 6] * 6}
    (tmp_path / "reuse.json").write_text(json.dumps(content))
    found = blockscope.compare(model, decode, prompts[:1], reuse=tmp_path / "reuse.json", repeats=1, replay=False,
                               block_length=loops.SIZE)
    assert found["settings"][0]["policy"]["tau"] == 4
    assert 0 < found["settings"][0]["free_running"]["reads"]["saving"] < 1


@pytest.mark.parametrize("kind", ["causal", "wan"])
def test_a_video_under_replay(tmp_path, kind):
    """Of `wan`, the loop keeps the cache inside the model's processors."""
    model, loop, shape = video.made(kind, "rolling")
    masks = video.masks_of(shape, 3)
    path = video.file_of(tmp_path / "reuse.json", shape, masks)
    noise, context, _ = video_models.inputs(shape, batch=1)
    plain, watcher = loop(model, noise, context), reference.Watcher()

    def make(model, prompt, run):
        return loop(model, noise, context, tell=lambda start, timestep, branch: run.step(
            start=start, timestep=timestep))

    def grey(latent):
        return ((latent[0, 0] * 40 + 128).clamp(0, 255)).to(torch.uint8)

    found = blockscope.compare(model, make, ["a cat"], reuse=path, repeats=1, frames=grey,
                               block_length=video_models.CHUNK * shape.frame, sinks=shape.sinks * shape.frame)
    assert torch.equal(loop(model, noise, context), plain)  # nothing is left behind
    setting = found["settings"][0]
    assert setting["agreement"]["positions"] == 0 and 0 < setting["agreement"]["relative_l2"] < 1
    assert len(setting["frames"]) == noise.shape[2] and "data:image/png" in found._repr_html_()

    # The exact run's own values, and the pairs of the replay. In the first layer, the queries of both are the same.
    video_models.watch(model, watcher.see)
    loop(model, noise, context, tell=watcher.tell)
    video_models.watch(model, None)
    rule, sums = reference.Reuse(masks), {}
    for one in watcher.passes:
        q, k, v, _ = one.calls[0]
        out, inside = reference.parts(q, k, v)
        error = rule.merged(0, one.step, out, inside) - reference.merge(out, inside)
        true = reference.merge(out, inside)
        entry = sums.setdefault(one.step + 1, np.zeros((2, shape.heads)))
        entry += np.stack([(error ** 2).sum((0, 2, 3)), (true ** 2).sum((0, 2, 3))])
    by_step = setting["replay"]["first_order_by_step_and_head"]
    assert [one["step"] for one in by_step] == [1, 2, 3, 4, 5]
    for one in by_step:
        error, true = sums[one["step"]]
        assert one["relative_l2"][0] == pytest.approx(np.sqrt(error / true), rel=1e-4, abs=2e-6)
    outputs = setting["replay"]["output_by_step"]
    assert outputs[0]["relative_l2"] < 1e-5 < 1e-4 < outputs[1]["relative_l2"]  # step 1 of a chunk is exact
    reads = setting["replay"]["reads"]
    assert reads["key_rows_read"] == setting["free_running"]["reads"]["key_rows_read"]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_replay_leaves_the_exact_run_alone(model, prompts):
    """Also where the loop states its steps and leaves passes out."""
    outputs = []

    def loop(model, prompt, run):
        with run.paused():
            decode(model, prompt)
        outputs.append(decode(model, prompt))
        run.end_sequence(outputs[-1])
        return outputs[-1]

    found = blockscope.compare(model, loop, prompts[:2], policy="recent,k=2", repeats=1, block_length=loops.SIZE)
    exact = [decode(model, prompt) for prompt in prompts[:2]]
    assert all(torch.equal(a, b) for a, b in zip(outputs[2::3], exact))  # exact, policy, replay
    assert found["settings"][0]["replay"]["first_order"]["relative_l2"] > 0.01
    assert not math.isnan(found["settings"][0]["replay"]["kl"]["mean"])


@pytest.mark.parametrize("options, words", [
    ({}, "expected either policy or reuse, got none"), ({"policy": "exact", "reuse": "x"}, "got both"),
    ({"policy": "exact", "blok_length": 16}, "blok_length: no such argument. HINT: .*block_length"),
    ({"policy": "flashblok"}, "policy 'flashblok'"), ({"policy": "exact", "repeats": 0}, "repeats")])
def test_what_is_refused(model, options, words):
    with pytest.raises(blockscope.UsageError, match=words):
        blockscope.compare(model, decode, [[1, 2, 3]], **{"block_length": loops.SIZE, **options})


def test_a_loop_that_does_not_use_the_model(model):
    for prompts, loop, words in (([], decode, "expected at least one"), ([[1]], 3, "expected a function"),
                                 ([[1]], lambda model, prompt: prompt, "ran no denoising step")):
        with pytest.raises(blockscope.UsageError, match=words):
            blockscope.compare(model, loop, prompts, policy="exact", block_length=loops.SIZE)
    with pytest.raises(blockscope.UsageError, match="expected a torch.nn.Module"):
        blockscope.compare("run.h5", decode, [[1]], policy="exact")


def test_the_lines_of_the_document(model, prompts, tmp_path, monkeypatch, capsys):
    document = (loops.MODELS.parent / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    lines, = [block for block in blocks if "blockscope.apply(" in block]
    monkeypatch.chdir(tmp_path)
    exec(lines, {"model": model, "generate": decode, "prompt": prompts[0]})
    assert "of the prefix's keys were not read" in capsys.readouterr().out
    assert json.loads((tmp_path / "compare.json").read_text())["mode"] == "compare"
