"""`blockscope.Model` against the commands of the shell: the same traces, the same numbers, the same errors."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import blockscope
from conftest import command

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).parents[2]
NEEDLE = ROOT / "models" / "needle"
DEMO = NEEDLE / "demo.jsonl"
BIDIRECTIONAL = os.environ.get("BLOCKSCOPE_BIDIRECTIONAL")


@pytest.fixture(scope="module")
def model():
    return blockscope.Model(NEEDLE)


def lines(count):
    return [json.loads(line) for line in DEMO.read_text().splitlines()[:count]]


def test_a_captured_trace_is_the_commands(model, tmp_path):
    options = {"record": "outputs", "gen_length": 16, "policy": "mage,k=16", "shadow": True, "layers": [0, 2]}
    trace = model.capture(lines(2), output=tmp_path / "here.h5", progress=False, **options)
    command("capture", NEEDLE, "--prompts", DEMO, "--limit", 2, "--record", "outputs", "--gen-length", 16, "--policy",
            "mage,k=16", "--shadow", "--layers", "0,2", "-o", tmp_path / "there.h5", "-q")
    assert trace.compare(tmp_path / "there.h5", ignore_timing=True).equal
    assert trace.layers == [0, 2] and trace.level == "outputs"
    assert trace.run["command_line"].startswith("blockscope.Model(")


@pytest.mark.parametrize("prompts, tokens", [
    ("The city of Oslo", None), ([1, 5, 9], [1, 5, 9]), (np.array([1, 5, 9]), [1, 5, 9]), (torch.tensor([1, 5, 9]), [1, 5, 9]),
    ([{"input_ids": [4, 4], "id": "mine"}], [4, 4])])
def test_prompts_may_be_texts_ids_and_dicts(model, prompts, tokens):
    decoded = model.decode(prompts, gen_length=16, progress=False)
    assert len(decoded) == 1 and len(decoded[0].frames) > 1
    if tokens is not None:
        assert decoded[0].frames[0].prompt.tolist() == tokens


def test_decode_gives_the_texts_and_frames_of_a_trace(model, tmp_path):
    trace = model.capture(lines(3), output=tmp_path / "run.h5", record="trajectory", gen_length=32, progress=False)
    for index, decoded in enumerate(model.decode(lines(3), gen_length=32, progress=False)):
        assert decoded.text == trace.text(index) and decoded.name == trace.sequences[index].name
        assert len(decoded.frames) == trace.num_steps(index) + 1
        assert decoded.tokens.tolist() == trace.frame(index, trace.num_steps(index)).tokens.tolist()
        assert decoded.score == trace.sequences[index].score


def test_verify_has_the_commands_numbers(model):
    found = model.verify("mage,k=16", prompts=lines(2), gen_length=16, repeats=1, progress=False)
    there = json.loads(command("verify", NEEDLE, "--policy", "mage,k=16", "--prompts", DEMO, "--limit", 2, "--gen-length",
                               16, "--repeats", 1, "--json", "-q"))

    def counts(value):
        """Without names of files and without times."""
        if isinstance(value, dict):
            return {key: counts(item) for key, item in value.items()
                    if not any(word in key for word in ("seconds", "_ns", "_ms", "time", "speed", "prompts", "model"))}
        return [counts(item) for item in value] if isinstance(value, list) else value

    assert counts(found.data) == counts(there) and len(json.dumps(counts(there))) > 2000
    assert "Saved: " in str(found) and "Cost: " in str(found)


def test_eval_and_study_and_bench(model, tmp_path):
    scores = model.eval(tasks=["needle"], contexts=[256], per_cell=2, progress=False)
    assert scores[0]["cells"][0]["asked"] == 2 and "needle" in str(scores)
    study = model.study("needle", output=tmp_path / "study", k=[16], contexts=[256], depths=1, per_cell=1, no_figures=True,
                        progress=False)
    assert {row["method"] for row in study.rows} >= {"exact", "mage"} and study.figures == []
    again = model.study("needle", output=tmp_path / "study", k=[16], contexts=[256], depths=1, per_cell=1, no_figures=True,
                        resume=True, progress=False)
    assert again.rows == study.rows
    times = model.bench(context=64, gen_length=16, runs=1, levels=["off"], progress=False)
    assert times.data


def test_options_are_the_commands(model):
    known = blockscope.runtime.options("capture")
    assert {"policy", "record", "gen_length", "shadow", "replay"} <= set(known)
    assert not known["shadow"].takes_value and known["gen_length"].default == "128"
    assert not {"model", "device", "output", "prompts", "help"} & set(known)


@pytest.mark.parametrize("options, words", [
    ({"polcy": "exact"}, "polcy: capture has no such option. HINT: policy"),
    ({"policy": "nothing"}, "policy 'nothing': expected exact"),
    ({"gen_length": -3}, "gen_length: "),
    ({"record": "some"}, "record"),
    ({"shadow": True}, "shadow=True: does nothing"),
    ({"shadow": "yes"}, "shadow: expected True or False"),
    ({"layers": [99]}, "layers"),
    ({"steps": []}, "steps: expected at least one"),
    ({"resume": True, "force": True}, "resume=True and force=True contradict each other")])
def test_wrong_options_name_the_keyword(model, tmp_path, options, words):
    with pytest.raises(blockscope.UsageError, match=None) as error:
        model.capture("x", output=tmp_path / "run.h5", progress=False, **{"gen_length": 16, **options})
    assert words in str(error.value) and "--" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_other_errors(model, tmp_path):
    with pytest.raises(blockscope.CheckpointError):
        blockscope.Model(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(blockscope.Error, match="^device cuda: no GPU"):
            blockscope.Model(NEEDLE, device="cuda")
    with pytest.raises(blockscope.UsageError, match="prompts"):
        model.decode([], progress=False)
    with pytest.raises(blockscope.UsageError, match=r"prompts\[0\]"):
        model.decode([2.5], progress=False)
    with pytest.raises(blockscope.Error):
        model.decode([999999], gen_length=16, progress=False)
    (tmp_path / "run.h5").write_text("not a trace")
    with pytest.raises(blockscope.UsageError, match="force=True"):
        model.capture("x", output=tmp_path / "run.h5", progress=False)
    assert (tmp_path / "run.h5").read_text() == "not a trace"


def test_weights_are_read_once(model, tmp_path):
    """A copy of the checkpoint that disappears after Model was made."""
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(NEEDLE, folder, ignore=shutil.ignore_patterns("backbone"))
    loaded = blockscope.Model(folder)
    weights = next(folder.glob("*.safetensors"))
    weights.rename(tmp_path / "gone")
    (folder / weights.name).symlink_to(tmp_path / "nowhere")
    assert loaded.decode("The city", gen_length=16, progress=False)[0].frames
    with pytest.raises(blockscope.Error):
        blockscope.Model(folder, dtype="bfloat16")


def test_an_analysis_runs_while_another_thread_captures(model, tmp_path):
    earlier = model.capture(lines(4), output=tmp_path / "earlier.h5", record="outputs", gen_length=64, progress=False)
    thread = threading.Thread(target=model.capture, args=(lines(20),), kwargs={
        "output": tmp_path / "run.h5", "record": "outputs", "gen_length": 128, "progress": False})
    thread.start()
    alone = earlier.analyze("similarity", progress=False)
    while thread.is_alive():
        assert earlier.analyze("similarity", progress=lambda done, total: None).identical(alone)
    thread.join()
    assert blockscope.open(tmp_path / "run.h5").complete


def test_numbers_of_numpy_and_generators(model, tmp_path):
    sampled = {"temperature": np.float32(0.5), "seed": np.int64(3), "gen_length": 16, "progress": False}
    one = model.decode((line for line in lines(2)), **sampled)
    other = model.decode(lines(2), temperature=0.5, seed=3, gen_length=16, progress=False)
    assert [decoded.text for decoded in one] == [decoded.text for decoded in other]
    assert model.decode({"input_ids": np.array([3, 4]), "answer": "x"}, gen_length=16, progress=False)
    with pytest.raises(blockscope.UsageError, match=r"prompts\[1\]"):
        model.decode(["x", {"prompt": object()}], gen_length=16, progress=False)
    with pytest.raises(blockscope.Error, match=r"prompts\[1\]"):
        model.decode(["x", {"input_ids": [10**6]}], gen_length=16, progress=False)
    with pytest.raises(blockscope.UsageError, match="dry_run"):
        model.decode("x", dry_run=True, progress=False)


def test_a_folder_stays_the_same_one(model, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    one, other = blockscope.Model("models/needle"), blockscope.Model("models/needle")
    del other
    monkeypatch.chdir(tmp_path)
    assert one.decode("x", gen_length=16, progress=False)


def test_progress_and_notes(model):
    seen = []
    model.decode(lines(20), gen_length=256, progress=lambda share, text: seen.append((share, text)))
    shares = [share for share, _ in seen]
    assert len(seen) > 1 and shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
    assert all("prompts" in text for _, text in seen)


def test_ctrl_c_keeps_the_rows_and_resume_goes_on(model, tmp_path):
    output = tmp_path / "run.h5"

    def interrupt(share, text):
        if " 0 steps" not in text:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.capture(lines(20), output=output, record="outputs", gen_length=256, progress=interrupt)
    assert not output.exists() and blockscope.open(output).num_rows > 0
    whole = model.capture(lines(20), output=output, record="outputs", gen_length=256, resume=True, progress=False)
    assert whole.complete
    once = model.capture(lines(20), output=tmp_path / "once.h5", record="outputs", gen_length=256, progress=False)
    assert len([s for s in whole.sequences if not s.aborted]) == len(once.sequences)


def test_an_exception_of_the_progress_function_ends_the_run(model):
    def fail(share, text):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        model.decode(lines(20), gen_length=256, progress=fail)
    assert model.decode("x", gen_length=16, progress=False)


def test_a_trace_is_read_while_another_thread_captures(model, tmp_path):
    output = tmp_path / "run.h5"
    failures = []

    def work():
        try:
            model.capture(lines(20), output=output, record="outputs", gen_length=128, progress=False)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    seen, with_values = set(), 0
    while thread.is_alive():
        try:
            with blockscope.open(output) as trace:
                rows = trace.num_rows
                seen.add(rows)
                denoising = trace.tree["steps/kind"][:rows].values == 1
                if denoising.any():  # of these prompts: with a prefix, all of the block's positions
                    with_values += 1
                    assert np.isfinite(trace.tree["attention/lse_external"][:rows].values[denoising]).all()
        except blockscope.TraceError:
            pass  # not there yet, or just renamed
    thread.join()
    assert not failures and len(seen) > 1 and with_values > 1 and blockscope.open(output).complete


def test_a_model_freed_while_it_captures_finishes(tmp_path):
    holder = [blockscope.Model(NEEDLE)]
    capture = holder[0].capture
    thread = threading.Thread(target=capture, args=(lines(10),),
                              kwargs={"output": tmp_path / "run.h5", "gen_length": 128, "progress": False})
    thread.start()
    del capture
    holder.clear()
    thread.join()
    assert blockscope.open(tmp_path / "run.h5").complete


def test_a_forked_process_refuses_the_model(model):
    pid = os.fork()
    if pid == 0:
        try:
            model.decode("x", gen_length=16, progress=False)
        except blockscope.Error as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    for _ in range(300):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the forked process hangs")
    assert os.waitstatus_to_exitcode(status) == 7


def test_threads_are_restored(model):
    before = torch.get_num_threads()
    model.decode("x", gen_length=16, threads=1, progress=False)
    assert torch.get_num_threads() == before


def test_without_torch_the_error_says_what_to_do(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = subprocess.run([sys.executable, "-c", "import blockscope; blockscope.Model('x')"], env=environment,
                          capture_output=True, text=True)
    assert "RuntimeUnavailable" in done.stderr and "no torch here" in done.stderr and "HINT" in done.stderr


def test_the_lines_of_the_documents_that_run_a_model(tmp_path):
    """docs/python.md, as a person pastes them in a clone, with fewer prompts."""
    shutil.copytree(ROOT / "models", tmp_path / "models", copy_function=os.symlink)
    prompts = tmp_path / "models/needle/demo.jsonl"
    prompts.unlink()
    prompts.write_text("".join(line + "\n" for line in DEMO.read_text().splitlines()[:2]))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    words = ("blockscope.Model", "blockscope.policy", "blockscope.strategy", "blockscope.cache")
    pasted = [block for block in blocks if any(word in block for word in words)]
    assert len(pasted) == 6
    pasted.append("print(model.decode(['The city'], strategy='surest,threshold=0.8', gen_length=16, progress=False))\n"
                  "other = blockscope.Model('models/needle-bidirectional')\n"
                  "print(other.decode(['The city'], cache='every_other', gen_length=32, progress=False))\n"
                  "print(model.verify('my_mage,k=16', prompts=['The city of Oslo'], gen_length=16, repeats=1))\n")
    file = tmp_path / "lines.py"
    file.write_text("\n".join(pasted))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
