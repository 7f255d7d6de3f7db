"""The rules of docs/command_line.md about outputs: what is never overwritten, what
a killed command leaves, how much a capture takes. The last test checks that every row of all of that
document's tables names a test that exists."""

import os
import pathlib
import re
import resource
import signal
import stat
import subprocess
import time
import unittest

from capture_harness import require_binary, run, start, write_prompts
from command_line_case import FAILED, REPOSITORY, TINY_TRAINING, USAGE, CommandLineCase


def is_locked(path):
    """Whether a process holds a lock on the file."""
    try:
        inode = str(path.stat().st_ino)
    except FileNotFoundError:
        return False
    locks = pathlib.Path("/proc/locks").read_text().splitlines()
    return any(line.split()[-3].rsplit(":", 1)[-1] == inode for line in locks)


def process_state(process_id):
    """The letter of the kernel: T is stopped."""
    return pathlib.Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Outputs(CommandLineCase):
    def test_an_input_is_never_replaced(self):
        for command, flag, inputs in self.outputs():
            for file in inputs:
                before = file.read_bytes()
                links = self.root / "links"
                links.mkdir(exist_ok=True)
                soft, hard = links / f"soft-{file.name}", links / f"hard-{file.name}"
                if not soft.is_symlink():
                    soft.symlink_to(file)
                    os.link(file, hard)
                for name in (file, soft, hard):
                    self.refused(USAGE, "the command reads this file", *command, flag, name, "--force")
                self.assertEqual(file.read_bytes(), before)

    def test_an_existing_file_is_replaced_only_with_force(self):
        for command, flag, _ in self.outputs():
            mine = self.root / "mine"
            mine.write_text("mine")
            self.refused(USAGE, ["exist", "--force"], *command, flag, mine)
            self.assertEqual(mine.read_text(), "mine")
        code, _, err = run("train", "--dump-prompts", 2, "--prompts-out", mine)
        self.assertEqual((code, mine.read_text()), (USAGE, "mine"), err)

    def test_only_regular_files_are_ever_replaced(self):
        pipe = self.root / "pipe"
        if not pipe.exists():
            os.mkfifo(pipe)
        for command, flag, _ in self.outputs():
            for name in (pathlib.Path("/dev/null"), pipe, self.root):
                kind = stat.S_IFMT(name.stat().st_mode)
                self.refused(USAGE, "expected a regular file", *command, flag, name, "--force")
                self.assertEqual(stat.S_IFMT(name.stat().st_mode), kind)

    def test_two_outputs_never_share_a_file(self):
        one, other = self.root / "one", self.root / "sub" / ".." / "one"
        (self.root / "sub").mkdir(exist_ok=True)
        trace, reuse = self.made / "a.h5", self.made / "reuse.json"
        self.refused(USAGE, "two outputs", "analyze", trace, "--csv", one, "--json", other)
        self.refused(USAGE, "two outputs", "verify", self.model, "--policy", f"flashblock,reuse={reuse}",
                     "--prompts", self.made / "a.jsonl", "-o", one, "--csv", other)
        self.refused(USAGE, "two outputs", "view", trace, "--panel", "heads", "--screenshot", one,
                     "--csv", other)
        self.assertFalse(one.exists())

    def test_training_asks_before_it_replaces_a_checkpoint_or_a_state(self):
        out, work = self.root / "trained", self.root / "work"
        train = ["train", *TINY_TRAINING, "--steps", 2, "--out", out, "--work", work]
        self.must(*train)
        weights = (out / "backbone" / "model.safetensors").read_bytes()
        self.refused(USAGE, ["backbone/model.safetensors", "--force"], *train, "--seed", 5)
        self.refused(USAGE, ["backbone.safetensors", "--force"], "train", *TINY_TRAINING, "--steps", 2,
                     "--out", self.root / "elsewhere", "--work", work)
        self.refused(USAGE, "the command reads this file", "train", *TINY_TRAINING, "--steps", 2, "--init",
                     out / "backbone", "--out", out, "--work", self.root / "w2", "--force")
        self.assertEqual((out / "backbone" / "model.safetensors").read_bytes(), weights)
        # The run's own checkpoint is its to write again.
        written = (out / "backbone" / "model.safetensors").stat().st_mtime_ns
        self.must(*train, "--resume")
        self.assertGreater((out / "backbone" / "model.safetensors").stat().st_mtime_ns, written)
        self.assertEqual((out / "backbone" / "model.safetensors").read_bytes(), weights)
        self.refused(USAGE, "expected the state of a run", "train", *TINY_TRAINING, "--resume", "--out",
                     out, "--work", self.root / "nothing")
        self.refused(USAGE, "--out", "train", *TINY_TRAINING)
        self.refused(USAGE, "--dump-prompts", "train", "--dump-prompts", 0)
        self.refused(USAGE, "got a file", "train", *TINY_TRAINING, "--out", self.made / "a.jsonl")
        for flag, other in (("--out", "--work"), ("--work", "--out")):  # no user can make a folder there
            self.refused(USAGE, [f"{flag}: /proc/x: expected a folder that can be written", "HINT"], "train", *TINY_TRAINING,
                         "--steps", 2, flag, "/proc/x", other, self.root / "writable")
        self.assertFalse((self.root / "writable").exists())

    def test_training_writes_through_no_link(self):
        out, work = self.root / "linked", self.root / "linked-work"
        victims = []
        for folder, names in ((out / "backbone", ["model.safetensors", "config.json", "tokenizer.json"]),
                              (work, ["backbone.safetensors", "backbone.csv"])):
            folder.mkdir(parents=True)
            for name in names:
                for link in (name, f"{name}.partial", f"{name}.tmp"):
                    victims.append(self.root / f"victim{len(victims)}")
                    victims[-1].write_text("mine")
                    os.symlink(victims[-1], folder / link)
        self.must("train", *TINY_TRAINING, "--steps", 2, "--out", out, "--work", work, "--force")
        self.assertEqual({victim.read_text() for victim in victims}, {"mine"})
        self.assertFalse((out / "backbone" / "tokenizer.json").is_symlink())

    def test_a_temporary_folder_that_is_not_there_is_told(self):
        bench = ["bench", self.model, "--context", 8, "--gen-length", 4, "--levels", "summary", "--runs", 1, "-q"]
        for command in (bench, ["report", self.made / "a.h5", "-o", self.root / "tmpdir.html", "--force"]):
            code, _, err = run(*command, environment={"TMPDIR": str(self.root / "gone")})
            self.assertEqual(code, FAILED, err)
            self.assertIn(f"TMPDIR: {self.root / 'gone'}: expected a folder for temporary files, got nothing", err)
            self.assertIn("HINT", err)
            code, _, err = run(*command, environment={"TMPDIR": ""})  # as if it were not set
            self.assertEqual(code, 0, err)

    def test_a_killed_command_leaves_nothing_that_the_next_start_does_not_remove(self):
        page = self.root / "page.html"
        traces = [self.made / "a.h5", self.made / "b.h5"]
        for _ in range(200):
            process = start("report", *traces, "-o", page, "--quiet")
            while process.poll() is None and not list(self.root.glob("page.html.tmp-*")):
                time.sleep(0.001)
            process.kill()
            process.communicate()
            if list(self.root.glob("page.html.tmp-*")):
                break
        left = list(self.root.glob("page.html.tmp-*"))
        self.assertEqual(len(left), 1)
        self.assertFalse(page.exists())
        mine = self.root / "page.html.tmp-notes"
        mine.write_text("mine")
        alive = subprocess.Popen(["sleep", "60"])
        try:
            self.must("report", *traces, "-o", page, "--quiet")
        finally:
            alive.kill()
            alive.wait()
        self.assertEqual(list(self.root.glob("page.html.tmp-*")), [mine])

    def test_a_running_commands_temporary_file_is_left_alone(self):
        page = self.root / "busy.html"
        for _ in range(20):  # a command may end before it is stopped
            first = start("report", self.made / "a.h5", self.made / "b.h5", "-o", page, "--quiet", "--force")
            # Stopped between making the file and locking it, a process doesn't hold it yet.
            while first.poll() is None and not any(map(is_locked, self.root.glob("busy.html.tmp-*"))):
                time.sleep(0.001)
            first.send_signal(signal.SIGSTOP)
            while first.poll() is None and process_state(first.pid) != "T":
                time.sleep(0.001)
            before = list(self.root.glob("busy.html.tmp-*"))
            if before:
                break
            first.send_signal(signal.SIGCONT)
            first.communicate()
            page.unlink()
        self.assertEqual(len(before), 1)
        self.must("report", self.made / "a.h5", "-o", page, "--quiet")
        self.assertEqual(list(self.root.glob("busy.html.tmp-*")), before)
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate()
        self.assertEqual(first.returncode, 0, err)

    def test_a_file_size_limit_is_a_full_disk(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        table = self.root / "limited.csv"
        code, _, err = run("analyze", self.made / "a.h5", "--csv", table, "--quiet", before=limit)
        self.assertEqual(code, FAILED, err)
        self.assertIn("File too large", err)
        self.assertEqual(list(self.root.glob("limited.csv*")), [])

    def test_a_capture_takes_no_more_than_it_says(self):
        unit = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
        prompts = write_prompts(self.root / "sizes.jsonl", 7, 5, 1, 60, gen_length=30)
        for level in ("trajectory", "summary", "sets", "outputs", "full"):
            for flags in ([], ["--steps", "1"] if level != "trajectory" else [], ["--limit", 1]):
                trace = self.root / "sized.h5"
                _, _, err = run("capture", self.model, "--prompts", prompts, "--record", level, *flags,
                                "-o", trace, "--force", "--no-stop")
                number, name = re.search(r"at most ([0-9.]+) (\w+);", err).groups()
                said, took = float(number) * unit[name], trace.stat().st_size
                with self.subTest(level=level, flags=flags, said=said, took=took):
                    self.assertLessEqual(took, said * 1.0005)  # three digits are printed
                    self.assertGreater(took, said * 0.4)  # every block takes all of its steps here

    def test_every_rule_names_a_test_that_exists(self):
        text = (REPOSITORY / "docs" / "command_line.md").read_text()
        named = re.findall(r"`((?:test|check)_[a-z0-9_.]+): (\w+)`", text)
        rules = re.findall(r"^- .*\n(?:  .*\n)*", text, re.MULTILINE)
        self.assertGreater(len(rules), 75)
        for rule in rules:
            self.assertRegex(rule, r"Tested by\s+`(test|check)_[a-z0-9_.]+: \w+`", "a rule without a test")
        for file, name in named:
            sources = list((REPOSITORY / "tests").rglob(file))
            self.assertEqual(len(sources), 1, file)
            self.assertRegex(sources[0].read_text(), rf"(def {name}\(|TEST(_F)?\(\w+,\s*{name}\))")


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_command_line_outputs.py"], verbosity=2)
