"""The rules of docs/command_line.md about what is printed, and about signals."""

import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from capture_harness import BINARY, require_binary, run, start, wait_for_handlers, write_prompts
from command_line_case import FAILED, TINY_TRAINING, CommandLineCase


class Streams(CommandLineCase):
    def test_output_that_cannot_be_printed_is_an_error(self):
        trace = self.made / "a.h5"
        for command in (["info", trace], ["info", trace, "--json"], ["diff", trace, trace],
                        ["export", trace], ["analyze", trace], ["analyze", trace, "--csv", "-"],
                        ["doctor", "--json"], ["--help"], ["bench", "--help"], ["--version"],
                        ["train", "--dump-prompts", 30]):
            with self.subTest(command=command), open("/dev/full", "w") as full:
                result = subprocess.run([BINARY, *map(str, command)], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, FAILED, result.stderr)
                self.assertIn("standard output", result.stderr)

    def test_files_are_written_where_text_can_not_be(self):
        out = [self.root / name for name in ("t.csv", "t.json", "t.h5")]
        with open("/dev/full", "w") as full:
            result = subprocess.run([BINARY, "analyze", self.made / "a.h5", "--csv", out[0], "--json", out[1],
                                     "--hdf5", out[2]], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, FAILED, result.stderr)
        self.assertTrue(all(path.stat().st_size > 0 for path in out))

    def test_a_closed_descriptor_damages_nothing(self):
        for i, closed in enumerate([[0], [1], [2], [0, 1, 2]]):
            trace = self.root / f"closed{i}.h5"
            arguments = [BINARY, "capture", self.model, "--prompts", self.made / "a.jsonl", "-o", trace]
            result = subprocess.run([*map(str, arguments)], capture_output=True,
                                    preexec_fn=lambda fds=closed: [os.close(fd) for fd in fds])
            with self.subTest(closed=closed):
                self.assertEqual(result.stderr.count(b"standard output"), 1 if closed == [1] else 0)
                # The text is a result too: without a place for it the command says so.
                self.assertEqual(result.returncode, FAILED if 1 in closed else 0, result.stderr)
                self.must("diff", trace, trace)
                self.assertIn("complete", self.must("info", trace))
                self.assertIn(b"\x89HDF", trace.read_bytes()[:8])

    def test_a_pipe_that_nobody_reads_ends_a_command_quietly(self):
        result = subprocess.run(
            ["bash", "-c", f"'{BINARY}' train --dump-prompts 100000 | head -1 > /dev/null; "
                           "echo ${PIPESTATUS[0]}"], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.stdout.strip(), str(128 + signal.SIGPIPE))
        self.assertEqual(result.stderr, "")

    def test_text_of_a_model_steers_no_terminal(self):
        out = self.must("capture", self.model, "--input-ids", "1,2,3", "-o", self.root / "text.h5",
                        "--no-stop", "--gen-length", 64)
        self.assertNotRegex(out, r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
        prompts = self.root / "names.jsonl"
        prompts.write_text('{"id": "a\\u001b[2Jb", "input_ids": [1, 2]}\n')
        out = self.must("capture", self.model, "--prompts", prompts, "-o", self.root / "names.h5")
        self.assertIn("a\\x1b[2Jb", out)
        _, err = run("capture", self.model, "--prompts", "\x1b[2J.jsonl", "-o", self.root / "n.h5")[1:]
        self.assertNotIn("\x1b", err)

    def test_names_of_files_steer_no_terminal(self):
        """Names that hold an escape sequence, and bytes that are no UTF-8, in all that is printed."""
        def named(name):
            return os.fsdecode(os.fsencode(self.root) + b"/\x1b[31m\xff\x7f" + name)
        model, reuse, prompts = named(b"model"), named(b"reuse"), named(b"prompts")
        for link, to in ((model, self.model), (reuse, self.made / "reuse.json"),
                         (prompts, self.made / "a.jsonl")):
            os.symlink(to, link)
        decode, policy = ["--gen-length", 4], ["--policy", f"flashblock,reuse={reuse}"]
        for command in (["capture", model, "--prompts", prompts, "-o", named(b"a.h5")],
                        ["capture", model, "--prompts", prompts, "-o", named(b"a.h5"), "--resume"],
                        ["capture", model, "--prompts", prompts, "-o", named(b"b.h5"), "--dry-run"],
                        ["eval", model, "--tasks", "needle", "--contexts", 64, "--per-cell", 1, *decode,
                         "--json", named(b"eval")],
                        ["bench", model, "--context", 8, *decode, "--levels", "off", "--runs", 1],
                        ["verify", model, *policy, "--prompts", prompts, "-o", named(b"v")],
                        ["verify", model, *policy, "--prompts", prompts, "--json"],
                        ["train", *TINY_TRAINING, "--steps", 1, "--out", named(b"o"), "--work", named(b"w")],
                        ["train", *TINY_TRAINING, "--steps", 1, "--out", named(b"o"), "--work", named(b"w"),
                         "--resume"]):
            result = subprocess.run([BINARY, *map(str, command)], capture_output=True)
            with self.subTest(command=command):
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotRegex(result.stdout + result.stderr, rb"[\x00-\x08\x0b-\x1f\x7f\xff]")

    def test_a_signal_in_the_first_moments_is_told(self):
        prompts = self.root / "dumped.jsonl"
        for command in (["capture", self.model, "--prompts", self.made / "a.jsonl", "-o", self.root / "s.h5"],
                        ["eval", self.model], ["bench", self.model], ["doctor"],
                        ["train", "--dump-prompts", 10**6, "--prompts-out", prompts]):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                for moment in (0.0, 0.02, 0.06):
                    process = start(*command)
                    wait_for_handlers(process)
                    time.sleep(moment)
                    process.send_signal(number)
                    _, err = process.communicate(timeout=60)
                    if process.returncode == 0 and command[0] in ("capture", "doctor"):
                        continue  # it was faster
                    with self.subTest(command=command[0], number=number, moment=moment):
                        self.assertEqual(process.returncode, 128 + number, err)
                        self.assertIn("blockscope: stopped by a signal", err)
                        self.assertEqual(list(self.root.glob("dumped.jsonl*")), [])

    def test_a_bar_is_drawn_only_where_a_terminal_can_redraw_it(self):
        for terminal, drawn in (("xterm", True), ("dumb", False)):
            script = f"TERM={terminal} '{BINARY}' analyze {self.made / 'a.h5'} --metric recall --quiet"
            result = subprocess.run(["script", "-qec", script, "/dev/null"], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stdout)
            if not drawn:
                self.assertNotIn("\x1b", result.stdout)

    def test_a_signal_ends_training_with_its_state_saved(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            work = self.root / f"work{number}"
            process = start("train", *TINY_TRAINING, "--steps", 100000, "--out", self.root / "t",
                            "--work", work)
            while not (work / "backbone.csv").exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.3)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + number, err)
            self.assertIn("--resume goes on", err)
            self.assertTrue((work / "backbone.safetensors").exists())

    def test_a_lost_terminal_suspends_capture_and_nohup_keeps_it(self):
        prompts = write_prompts(self.root / "many.jsonl", 60, 3, 6, 20, gen_length=60)
        for ignored in (False, True):
            trace = self.root / f"hangup{ignored}.h5"
            process = start("capture", self.model, "--prompts", prompts, "-q", "-o", trace,
                            before=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
                            if ignored else None)
            partial = pathlib.Path(f"{trace}.partial")
            while not partial.exists() and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGHUP)
            _, err = process.communicate(timeout=120)
            if ignored:
                self.assertEqual(process.returncode, 0, err)
            else:
                self.assertEqual(process.returncode, 128 + signal.SIGHUP, err)
                self.assertIn("--resume", err)
                self.must("capture", self.model, "--prompts", prompts, "-q", "-o", trace, "--resume")
            self.assertIn("complete", self.must("info", trace))

    def test_bench_tells_its_noise_and_leaves_nothing(self):
        folder = self.root / "bench"
        folder.mkdir()
        flags = [self.model, "--context", 16, "--gen-length", 8, "--levels", "off,summary", "--folder",
                 folder]
        out = self.must("bench", *flags)
        self.assertRegex(out, r"summary .*[+-][0-9.]+% \[[+-][0-9.]+, [+-][0-9.]+\]")
        levels = json.loads(self.must("bench", *flags, "--json"))
        self.assertLessEqual(levels[1]["overhead_least"], levels[1]["overhead"])
        process = start("bench", *flags, "--runs", 100000)
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_command_line_streams.py"], verbosity=2)
