"""Files that another program changes while a command writes them: test_output_harm.py TRACE_TOOL

Links under the names that outputs begin with, and a trace that is moved, removed, replaced or cut before it has its final
name. The target of a link stays unchanged. No other file gets an output's name. The error says where the files are."""

import json
import os
import subprocess
import sys

import h5py
from capture_harness import require_binary, run, run_tests, write_checkpoint, write_prompts
from interchange_files import MASK, VOCAB, klass_run

TOOL = ""
VICTIM = b"somebody's file: a prompt, a config.json, a trace\n" * 100


def victims(folder):
    """-> name of a kind of link, how it is made at a path, and whether the victim still is what it was."""
    def hard(path):
        victim = folder / f"victim{len(list(folder.iterdir()))}"
        victim.write_bytes(VICTIM)
        os.link(victim, path)
        return victim

    def soft(path):
        victim = folder / f"victim{len(list(folder.iterdir()))}"
        victim.write_bytes(VICTIM)
        os.symlink(victim, path)
        return victim

    def dangling(path):
        os.symlink(folder / "not-there", path)
        return None

    def plain(path):
        path.write_bytes(VICTIM)
        return path

    return {"hard": hard, "soft": soft, "dangling": dangling, "plain": plain}


def writers(folder):
    """Commands that write a trace, without its name."""
    trajectory = folder / "klass.json"
    trajectory.write_text(json.dumps(klass_run(1)[0]))
    yield "import", [os.environ["BLOCKSCOPE_BINARY"], "import", trajectory, "--vocab-size", VOCAB, "--mask-token-id", MASK, "-o"]
    yield "tool", [TOOL, "steered"]
    model = write_checkpoint(folder / "model")
    prompts = write_prompts(folder / "p.jsonl", 1, 1, 3, 5)
    capture = [os.environ["BLOCKSCOPE_BINARY"], "capture", model, "--prompts", prompts, "-q", "-o"]
    if run("capture", model, "--prompts", prompts, "-q", "-o", folder / "probe.h5")[0] == 0:  # this build can decode
        yield "capture", capture


def test_a_link_under_a_temporary_name_is_not_followed(folder):
    for name, command in writers(folder):
        for kind, make in victims(folder).items():
            trace = folder / f"{name}-{kind}.h5"
            planted = folder / f"{trace.name}.partial.new"
            victim = make(planted)
            process = subprocess.run([*map(str, command), str(trace)], input="", capture_output=True, text=True, timeout=60)
            case = (name, kind, process)
            assert process.returncode == 1, case
            assert f"{planted}: expected no file of this name" in process.stderr and "HINT" in process.stderr, case
            assert victim is None or victim.read_bytes() == VICTIM, case
            assert not (folder / "not-there").exists() and not trace.exists(), case
            assert planted.is_symlink() or planted.read_bytes() == VICTIM, case
            planted.unlink()
            process = subprocess.run([*map(str, command), str(trace)], input="\n", capture_output=True, text=True, timeout=60)
            assert process.returncode == 0 and trace.exists(), (name, kind, process)


def test_outputs_begin_under_a_name_that_is_free(folder):
    """The names of temporary files hold the process: a link is made there before the command starts. A file of such a name
    counts as left by a killed command, which is removed; what else is a name of it stays."""
    subprocess.run([TOOL, "fixture", folder / "a.h5", "f32"], check=True)
    kinds = victims(folder)
    for kind in ("hard", "soft", "dangling"):
        for flag, ending in (("-o", ".h5"), ("--csv", ".csv"), ("--hdf5", ".h5")):
            output = folder / f"{kind}{flag}{ending}"
            kinds[kind](folder / f"{output.name}.tmp.new")
            mine = folder / f"{output.name}.tmp"
            mine.write_bytes(VICTIM)
            what = [] if flag == "-o" else ["--metric", "similarity"]
            command = ["analyze" if what else "repack", folder / "a.h5", *what, flag, output]
            process = subprocess.run([os.environ["BLOCKSCOPE_BINARY"], *map(str, command)], capture_output=True, text=True,
                                     preexec_fn=lambda: kinds[kind](folder / f"{output.name}.tmp-{os.getpid()}"), timeout=120)
            assert process.returncode == 0, process
            assert output.stat().st_size > 0 and not output.is_symlink(), (kind, flag)
            assert not (folder / "not-there").exists(), (kind, flag)
            assert all(file.read_bytes() == VICTIM for file in (mine, *folder.glob("victim*"))), (kind, flag)


class Steered:
    """A trace that is written row by row."""

    def __init__(self, folder, name):
        self.trace, self.partial = folder / f"{name}.h5", folder / f"{name}.h5.partial"
        self.process = subprocess.Popen([TOOL, "steered", self.trace], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.rows(3)

    def rows(self, count):
        """Writes rows, and waits for the last one to be in the file."""
        for _ in range(count):
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        while self.process.poll() is None and not self.committed():
            pass

    def committed(self):
        try:
            with h5py.File(self.partial, "r", swmr=True) as file:
                return int(file["/steps/committed"][0]) >= 3
        except (OSError, KeyError):
            return False

    def end(self):
        _, err = self.process.communicate("\n", timeout=60)
        return self.process.returncode, err


def test_a_trace_that_was_removed_is_told(folder):
    writer = Steered(folder, "removed")
    writer.partial.unlink()
    code, err = writer.end()
    assert code == 1 and "removed.h5.partial: was removed while it was written" in err, (code, err)
    assert not writer.trace.exists() and not writer.partial.exists()


def test_a_strangers_file_never_gets_the_name_of_a_trace(folder):
    for name, other in (("file", lambda path: path.write_bytes(VICTIM)),
                        ("link", lambda path: os.symlink(folder / "elsewhere", path))):
        (folder / "elsewhere").write_bytes(VICTIM)
        writer = Steered(folder, name)
        writer.partial.unlink()
        other(writer.partial)
        code, err = writer.end()
        assert code == 1 and f"{name}.h5.partial: was replaced by another file" in err, (code, err)
        assert not writer.trace.exists() and writer.partial.read_bytes() == VICTIM
        assert (folder / "elsewhere").read_bytes() == VICTIM


def test_a_trace_that_was_moved_is_told_with_its_place(folder):
    writer = Steered(folder, "moved")
    writer.partial.rename(folder / "here.h5")
    code, err = writer.end()
    assert code == 1 and f"was moved to {folder / 'here.h5'}" in err, (code, err)
    assert not writer.trace.exists()
    assert run("info", folder / "here.h5")[0] == 0  # its rows are safe there


def test_a_trace_that_was_cut_is_no_success(folder):
    for size in (0, 100, 5000):
        writer = Steered(folder, f"cut{size}")
        os.truncate(writer.partial, size)
        code, err = writer.end()
        assert code == 1 and "was cut while it was written: expected at least" in err, (code, err)
        assert not writer.trace.exists()


if __name__ == "__main__":
    require_binary()
    TOOL = sys.argv[1]
    run_tests(globals(), sys.argv[2] if len(sys.argv) > 2 else "")
