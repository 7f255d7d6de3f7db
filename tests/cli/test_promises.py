"""What the command line promises in docs/command_line.md: what is never overwritten, what a signal
does, what --resume refuses, what the options accept. Every row of its tables names a test, most of
them here; the last test checks that all of those exist."""

import json
import os
import pathlib
import re
import resource
import signal
import stat
import subprocess
import time
import unittest

from capture_harness import (BINARY, CheckpointCase, require_binary, run, start, write_checkpoint,
                             write_prompts)

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NEEDLE = REPOSITORY / "models" / "needle"
USAGE, FAILED = 2, 1
TINY_TRAINING = ["--stage", "backbone", "--layers", 1, "--hidden", 32, "--ffn", 32, "--heads", 2,
                 "--kv-heads", 1, "--head-dim", 16, "--batch-tokens", 256, "--first-context", 64,
                 "--last-context", 64, "--evaluate-documents", 0, "--evaluate-every", 0,
                 "--tokenizer", NEEDLE]


class Promises(CheckpointCase):
    """One checkpoint, prompts, a full trace, a merged one and a calibration file for all tests."""

    def setUp(self):
        super().setUp()
        self.made = self.root / "made"
        if self.made.exists():
            return
        self.made.mkdir()
        for name, seed in (("a", 1), ("b", 2)):
            prompts = write_prompts(self.made / f"{name}.jsonl", 2, seed, 6, 20)
            self.must("capture", self.model, "--prompts", prompts, "--record", "full", "--set-size",
                      4, "-q", "-o", self.made / f"{name}.h5")
        # Prompts of one file have the names of the other: only then are they two runs.
        (self.made / "b.jsonl").write_text((self.made / "b.jsonl").read_text().replace('"p', '"q'))
        (self.made / "b.h5").unlink()
        self.must("capture", self.model, "--prompts", self.made / "b.jsonl", "--record", "full",
                  "--set-size", 4, "-q", "-o", self.made / "b.h5")
        self.must("repack", self.made / "a.h5", self.made / "b.h5", "--merge", "-o",
                  self.made / "merged.h5")
        self.must("calibrate", self.made / "a.h5", "--gamma", "-1", "-o", self.made / "reuse.json",
                  "--quiet")

    def must(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, 0, err)
        return out

    def refused(self, code, words, *arguments):
        result, out, err = run(*arguments)
        with self.subTest(arguments=[str(a) for a in arguments]):
            self.assertEqual(result, code, err or out)
            line = err.splitlines()[-1] if err else ""
            self.assertTrue(line.startswith("blockscope: error: "), err)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, line)
        return err

    def outputs(self):
        """(command without its output, flag of the output, files it reads), for every output."""
        made, model = self.made, self.model
        trace, merged, reuse, prompts = (made / n for n in ("a.h5", "merged.h5", "reuse.json",
                                                           "a.jsonl"))
        weights = [model / "config.json", model / "model.safetensors", model / "tokenizer.json"]
        parts = [merged, made / "a.h5", made / "b.h5"]
        decode = ["--gen-length", 4]
        yield ["capture", model, "--prompts", prompts, *decode], "-o", [prompts, *weights]
        yield ["capture", model, "--replay", trace], "-o", [trace]
        yield (["capture", model, "--prompts", prompts, "--policy", "flashblock", "--reuse", reuse],
               "-o", [reuse])
        yield ["eval", model, "--per-cell", 1], "--json", weights
        for flag in ("-o", "--csv"):
            yield (["verify", model, "--reuse", reuse, "--prompts", prompts, *decode], flag,
                   [reuse, prompts, *weights])
        for flag in ("--csv", "--json", "--hdf5"):
            yield ["analyze", merged], flag, parts
        yield ["analyze", trace, "--backbone", made / "b.h5"], "--csv", [trace, made / "b.h5"]
        yield ["report", merged], "-o", parts
        yield ["calibrate", merged, "--gamma", 0], "-o", parts
        yield ["export", merged], "-o", parts
        yield ["repack", merged, "--copy", "--merge"], "-o", parts
        for flag in ("--screenshot", "--csv"):
            yield ["view", merged, "--reuse", reuse, "--panel", "heads"], flag, [*parts, reuse]

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
        self.refused(USAGE, "two outputs", "verify", self.model, "--reuse", reuse, "--prompts",
                     self.made / "a.jsonl", "-o", one, "--csv", other)
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
        self.must("train", *TINY_TRAINING, "--steps", 3, "--out", out, "--work", work, "--resume")
        self.assertNotEqual((out / "backbone" / "model.safetensors").read_bytes(), weights)
        self.refused(USAGE, "expected the state of a run", "train", *TINY_TRAINING, "--resume", "--out",
                     out, "--work", self.root / "nothing")
        self.refused(USAGE, "--out", "train", *TINY_TRAINING)
        self.refused(USAGE, "--dump-prompts", "train", "--dump-prompts", 0)
        self.refused(USAGE, "got a file", "train", *TINY_TRAINING, "--out", self.made / "a.jsonl")

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
        first = start("report", self.made / "a.h5", self.made / "b.h5", "-o", page, "--quiet", "--force")
        while first.poll() is None and not list(self.root.glob("busy.html.tmp-*")):
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        before = list(self.root.glob("busy.html.tmp-*"))
        self.must("report", self.made / "a.h5", "-o", page, "--quiet")
        self.assertEqual(list(self.root.glob("busy.html.tmp-*")), before)
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate()
        self.assertEqual(first.returncode, 0, err)

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

    def test_a_file_size_limit_is_a_full_disk(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        table = self.root / "limited.csv"
        code, _, err = run("analyze", self.made / "a.h5", "--csv", table, "--quiet", before=limit)
        self.assertEqual(code, FAILED, err)
        self.assertIn("File too large", err)
        self.assertEqual(list(self.root.glob("limited.csv*")), [])

    def test_a_closed_descriptor_damages_nothing(self):
        for i, closed in enumerate([[0], [1], [2], [0, 1, 2]]):
            trace = self.root / f"closed{i}.h5"
            arguments = [BINARY, "capture", self.model, "--prompts", self.made / "a.jsonl", "-o", trace]
            result = subprocess.run([*map(str, arguments)], capture_output=True,
                                    preexec_fn=lambda fds=closed: [os.close(fd) for fd in fds])
            with self.subTest(closed=closed):
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

    def cut_capture(self, trace, *arguments):
        process = start("capture", *arguments, "-q", "-o", trace)
        partial = pathlib.Path(f"{trace}.partial")
        while not partial.exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        return partial

    def test_resume_refuses_what_would_mix_two_runs(self):
        prompts = write_prompts(self.root / "first.jsonl", 40, 3, 6, 20, gen_length=40)
        others = write_prompts(self.root / "other.jsonl", 40, 4, 6, 20, gen_length=40)
        reuse = self.root / "mask.json"
        reuse.write_bytes((self.made / "reuse.json").read_bytes())
        run_flags = [self.model, "--policy", "flashblock", "--reuse", reuse]
        trace = self.root / "cut.h5"
        partial = self.cut_capture(trace, *run_flags, "--prompts", prompts)
        before = partial.read_bytes()
        resume = ["capture", *run_flags, "--prompts", prompts, "-q", "-o", trace, "--resume"]
        for changed, named in ((["--gen-length", 9], "gen_length"), (["--steps", "1"], "recorded_steps"),
                               (["--blocks", "1-2"], "recorded_blocks"), (["--seed", 4], "seed"),
                               (["--sequences", "0"], "recorded_sequences"), (["--tau", 3], "tau"),
                               (["--limit", 3], "num_prompts"), (["--batch-size", 2], "batch_size"),
                               (["--denoising-steps", 2], "denoising_steps"),
                               (["--record", "trajectory"], "level")):
            self.refused(USAGE, named, *resume, *changed)
        self.refused(USAGE, "prompts_digest", "capture", *run_flags, "--prompts", others, "-q", "-o", trace,
                     "--resume")
        self.must("calibrate", self.made / "a.h5", "--gamma", 0.9, "-o", reuse, "--quiet", "--force")
        self.refused(USAGE, "reuse_digest", *resume)
        self.assertEqual(partial.read_bytes(), before)
        reuse.write_bytes((self.made / "reuse.json").read_bytes())
        self.must(*resume)
        # A finished trace is not taken for that of another run either.
        self.assertIn("nothing to resume", self.must(*resume))
        self.refused(USAGE, "gen_length", *resume, "--gen-length", 9)
        self.refused(USAGE, "level", *resume, "--record", "full")

    def test_the_tau_of_the_calibration_file_counts_in_every_command(self):
        reuse = self.root / "tau4.json"
        self.must("calibrate", self.made / "a.h5", "--gamma", "-1", "--tau", 4, "-o", reuse, "--quiet")
        for flags, tau in (([], 4), (["--tau", 3], 3)):
            trace = self.root / f"tau{tau}.h5"
            self.must("capture", self.model, "--prompts", self.made / "a.jsonl", "--policy", "flashblock",
                      "--reuse", reuse, *flags, "-q", "-o", trace)
            self.assertEqual(json.loads(self.must("info", trace, "--json"))["run"]["tau"], tau)
            text = self.must("verify", self.model, "--reuse", reuse, "--prompts", self.made / "a.jsonl",
                             *flags, "--json", "-q")
            self.assertIn(f'"tau": {tau}', text)

    def test_numbers_outside_their_range_are_refused_in_every_command(self):
        made, model = self.made, self.model
        out = self.root / "never"
        capture = ["capture", model, "--prompts", made / "a.jsonl", "-o", out]
        every = [capture, ["eval", model], ["bench", model],
                 ["verify", model, "--reuse", made / "reuse.json", "--prompts", made / "a.jsonl"],
                 ["train", "--out", out], ["analyze", made / "a.h5"],
                 ["report", made / "a.h5", "-o", out],
                 ["calibrate", made / "a.h5", "--gamma", 0, "-o", out]]
        for command in every:
            for threads in ("-1", "100000", "1.5", "two"):
                self.refused(USAGE, "--threads: expected a whole number", *command, "--threads", threads)
        for flag, value in (("--seed", "-1"), ("--seed", str(2**64)), ("--limit", "-3"),
                            ("--gen-length", "0"), ("--batch-size", "-2"), ("--temperature", "nan"),
                            ("--temperature", "-1"), ("--top-p", "0"), ("--set-size", "0")):
            self.refused(USAGE, f"{flag}: expected", *capture, flag, value)
        self.refused(USAGE, "positions of this model", *capture, "--record", "sets", "--set-size", 3000000)
        self.refused(USAGE, "positions of this model", "bench", model, "--context", 10**9)
        self.assertFalse(out.exists())

    def test_empty_values_are_refused_in_every_command(self):
        made, model = self.made, self.model
        for command in (["analyze", made / "a.h5", "--csv", ""], ["analyze", made / "a.h5", "--layer="],
                        ["view", made / "a.h5", "--screenshot", ""], ["repack", made / "a.h5", "-o", ""],
                        ["capture", model, "--prompts", made / "a.jsonl", "-o", self.root / "x.h5",
                         "--layers", ""], ["eval", model, "--json", ""], ["info", ""]):
            self.refused(USAGE, "got an empty one", *command)

    def test_an_option_that_would_do_nothing_is_refused(self):
        made, model, out = self.made, self.model, self.root / "idle.h5"
        capture = ["capture", model, "--prompts", made / "a.jsonl", "-o", out]
        verify = ["verify", model, "--reuse", made / "reuse.json", "--prompts", made / "a.jsonl"]
        for command in ([*capture, "--tau", 2], [*capture, "--shadow"], [*capture, "--threshold", 0.5],
                        [*capture, "--eb-threshold", 1], [*capture, "--factor", 2], [*capture, "--chat"],
                        [*capture, "--revision", "abc"], [*capture, "--set-size", 4],
                        [*capture, "--top-p", 0.5], [*verify, "--taus", 1], [*verify, "--gammas", 0],
                        ["repack", made / "a.h5", "-o", out, "--level", 3],
                        ["analyze", made / "a.h5", "--row-a", 0], ["analyze", made / "a.h5", "--field", "query"],
                        ["train", "--tasks", "sort", "--out", out],
                        ["train", "--dump-prompts", 1, "--out", out],
                        ["capture", model, "--replay", made / "a.h5", "-o", out, "--limit", 1]):
            self.refused(USAGE, "does nothing", *command)
        for flag, value in (("--sequences", "7"), ("--steps", "99"), ("--blocks", "999")):
            self.refused(USAGE, "is beyond this run", *capture, flag, value)
        self.assertFalse(out.exists())

    def test_a_capture_takes_no_more_than_it_says(self):
        unit = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
        prompts = write_prompts(self.root / "sizes.jsonl", 7, 5, 1, 60, gen_length=30)
        for level in ("trajectory", "summary", "sets", "outputs", "full"):
            for flags in ([], ["--steps", "1"], ["--limit", 1]):
                trace = self.root / "sized.h5"
                _, _, err = run("capture", self.model, "--prompts", prompts, "--record", level, *flags,
                                "-o", trace, "--force", "--no-stop")
                number, name = re.search(r"at most ([0-9.]+) (\w+);", err).groups()
                said, took = float(number) * unit[name], trace.stat().st_size
                with self.subTest(level=level, flags=flags, said=said, took=took):
                    self.assertLessEqual(took, said * 1.0005)  # three digits are printed
                    self.assertGreater(took, said * 0.4)  # every block takes all of its steps here

    def test_text_of_a_model_steers_no_terminal(self):
        out = self.must("capture", self.model, "--prompts", self.made / "a.jsonl", "-o",
                        self.root / "text.h5", "--no-stop", "--gen-length", 64)
        self.assertNotRegex(out, r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
        prompts = self.root / "names.jsonl"
        prompts.write_text('{"id": "a\\u001b[2Jb", "input_ids": [1, 2]}\n')
        out = self.must("capture", self.model, "--prompts", prompts, "-o", self.root / "names.h5")
        self.assertIn("a\\x1b[2Jb", out)
        _, err = run("capture", self.model, "--prompts", "\x1b[2J.jsonl", "-o", self.root / "n.h5")[1:]
        self.assertNotIn("\x1b", err)

    def test_a_bar_is_drawn_only_where_a_terminal_can_redraw_it(self):
        for terminal, drawn in (("xterm", True), ("dumb", False)):
            script = f"TERM={terminal} '{BINARY}' analyze {self.made / 'a.h5'} --metric recall --quiet"
            result = subprocess.run(["script", "-qec", script, "/dev/null"], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stdout)
            if not drawn:
                self.assertNotIn("\x1b", result.stdout)

    def test_weights_that_are_not_numbers_are_told(self):
        broken = write_checkpoint(self.root / "nan")
        raw = bytearray((broken / "model.safetensors").read_bytes())
        raw[-4096:] = b"\xff" * 4096  # NaN
        (broken / "model.safetensors").write_bytes(raw)
        self.refused(FAILED, "expected finite logits", "capture", broken, "--input-ids", "1,2,3", "-o",
                     self.root / "nan.h5")

    def test_hints_fit_what_was_given(self):
        bad = self.root / "bad.jsonl"
        bad.write_text('{"prompt": "cut of')
        err = self.refused(FAILED, ["bad.jsonl:1", "every line is one JSON object"], "capture", self.model,
                           "--prompts", bad, "-o", self.root / "hint.h5")
        self.assertNotIn("fetch", err)
        err = self.refused(FAILED, "no such folder", "capture", self.root / "no" / "such" / "model",
                           "--input-ids", "1", "-o", self.root / "hint.h5")
        self.assertNotIn("--model", err)
        err = self.refused(USAGE, "--device: expected cpu", "train", *TINY_TRAINING, "--device", "tpu", "--out",
                           self.root / "hint")
        self.assertEqual(len(err.splitlines()), 1)

    def test_a_pipe_for_weights_is_refused(self):
        broken = write_checkpoint(self.root / "piped")
        (broken / "model.safetensors").unlink()
        os.mkfifo(broken / "model.safetensors")
        self.refused(FAILED, "expected a regular file", "capture", broken, "--input-ids", "1,2,3", "-o",
                     self.root / "piped.h5")
        pipe = self.root / "piped-trace"
        os.mkfifo(pipe)
        for command in (["info", pipe], ["diff", pipe, pipe], ["analyze", pipe], ["repack", pipe, "-o", "x"],
                        ["capture", self.model, "--replay", pipe, "-o", self.root / "piped.h5"]):
            self.refused(FAILED, "expected a regular file", *command)
        self.refused(FAILED, "calibration file", "capture", self.model, "--input-ids", "1", "--policy",
                     "flashblock", "--reuse", pipe, "-o", self.root / "piped.h5")

    def test_a_vanishing_temperature_is_greedy(self):
        tokens = []
        for flags in ([], ["--temperature", "1e-38"], ["--temperature", "1e-300"]):
            trace = self.root / "cold.h5"
            self.must("capture", self.model, "--prompts", self.made / "a.jsonl", "-q", "-o", trace, "--force",
                      "--strategy", "sequential", *flags)
            tokens.append([line.split(",")[6:8] for line in self.must("export", trace).splitlines()])
        self.assertEqual(tokens[1], tokens[0])
        self.assertEqual(tokens[2], tokens[0])

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

    def test_every_promise_names_a_test_that_exists(self):
        text = (REPOSITORY / "docs" / "command_line.md").read_text()
        named = re.findall(r"`(test_[a-z0-9_.]+): (\w+)`", text)
        rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
        self.assertGreater(len(rows), 25)
        for row in rows:
            if not row.startswith("| promise"):
                self.assertRegex(row, r"`test_[a-z0-9_.]+: \w+`", "a promise without a test")
        for file, name in named:
            sources = list((REPOSITORY / "tests").rglob(file))
            self.assertEqual(len(sources), 1, file)
            self.assertRegex(sources[0].read_text(), rf"(def {name}\(|TEST(_F)?\(\w+,\s*{name}\))")


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_promises.py"], verbosity=2)
