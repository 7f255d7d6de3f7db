"""A trace of a random draft and its target, for the tests of commands that read traces."""

import pathlib

from capture_harness import run, write_prompts
from test_draft import draft_tensors, write_draft, write_target, zlab_config


def drafted_trace(folder, seed=0):
    """At level summary; None where this build can't decode."""
    folder = pathlib.Path(folder)
    path = folder / "drafted.h5"
    target, draft = write_target(folder / "draft-target"), write_draft(folder / "draft", zlab_config(), draft_tensors())
    prompts = write_prompts(folder / "drafted.jsonl", 3, seed)
    code, _, err = run("capture", target, "--draft", draft, "--prompts", prompts, "--record", "summary",
                       "--no-stop", "-q", "-o", path)
    assert code == 0 or "LibTorch" in err, err
    return path if code == 0 else None
