"""`blockscope capture` that is cut off: by signals, kill -9, a full disk. Nothing that was reported as
committed is lost, and --resume ends with the trajectories of a run that was never cut."""

import fcntl
import pathlib
import random
import resource
import signal
import time
import unittest

import capture_harness as harness
import h5py
import numpy as np
from capture_harness import (CheckpointCase, assert_same_trajectories, capture, run, start,
                             trajectories, write_prompts)

KILLS = 24
SAMPLED = ("--temperature", "1.0", "--seed", "3", "--strategy", "low_confidence_dynamic")


def num_committed(path):
    """As committed() without reading the rows, which takes some tenths of a second of a run of one."""
    with h5py.File(path, "r", swmr=True, locking=False) as file:
        return int(file["/steps/committed"][0])


def committed(path):
    """-> rows reported as committed, after reading every one of them in every dataset."""
    # Without a lock of its own: one held just then would keep a resumed run from opening the file.
    with h5py.File(path, "r", swmr=True, locking=False) as file:
        rows = int(file["/steps/committed"][0])
        sequences = int(file["/sequences/committed"][0])
        end = file["/frames/delta_end"][:rows]
        assert np.all(np.diff(end) >= 0) and (rows == 0 or end[-1] <= len(file["/frames/token"]))
        kind, recorded = file["/steps/kind"][:rows], file["/steps/recorded"][:rows]
        assert np.all(file["/steps/sequence"][:rows] < sequences)
        assert np.all(kind <= 2)
        denoising = kind == 1
        predicted = (file["/prediction/token"][:rows][denoising] >= 0).sum(-1)  # of the masks
        assert np.array_equal(predicted, file["/steps/masks_left"][:rows][denoising])
        if "/attention/external" in file:
            for name in ("/attention/external", "/attention/internal", "/query/query"):
                assert np.all(np.isfinite(file[name][:rows][recorded == 1])), name
        return rows


class Faults(CheckpointCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prompts = write_prompts(cls.root / "prompts.jsonl", 16, gen_length=440)
        cls.whole, cls.seconds = {}, {}
        for batch in (1, 4):
            output = cls.root / f"whole-{batch}.h5"
            process = cls.begun(output, batch)
            begin = time.monotonic()
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            cls.seconds[batch] = time.monotonic() - begin  # in which a kill meets a file
            cls.whole[batch] = trajectories(output)
        assert_same = cls.whole[1].keys() == cls.whole[4].keys()
        assert assert_same and len(cls.whole[1]) == 16

    @classmethod
    def arguments(cls, output, batch, level="outputs"):
        return (cls.model, "--prompts", cls.prompts, "--batch-size", batch, "--record", level,
                *SAMPLED, "-o", output)

    @classmethod
    def begun(cls, output, batch):
        """A run whose file exists."""
        process = start("capture", *cls.arguments(output, batch), "--quiet", "--threads", "1")
        deadline = time.monotonic() + 60
        partial = pathlib.Path(f"{output}.partial")
        while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        return process

    def cut(self, output, batch, number, after):
        """Sends a signal once `after` rows are committed (a float: seconds after the file exists)."""
        partial = pathlib.Path(f"{output}.partial")
        process = self.begun(output, batch)
        if isinstance(after, float):
            time.sleep(after)
        else:
            self.wait_for_rows(process, partial, after)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def wait_for_rows(self, process, partial, rows):
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if num_committed(partial) >= rows:
                    return
            except (OSError, KeyError):
                pass  # the datasets are still being created, or a resume marks the cut sequences
            time.sleep(0.002)
        self.fail(f"the run ended before {rows} rows: {process.communicate()}")

    def resume_and_compare(self, output, batch):
        code, _, err = capture(*self.arguments(output, batch), "--resume")
        self.assertEqual(code, 0, err)
        self.assertFalse(pathlib.Path(f"{output}.partial").exists())
        assert_same_trajectories(trajectories(output), self.whole[batch])

    def test_signals_end_the_run_with_a_readable_file_that_resumes(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            for batch in (1, 4):
                with self.subTest(signal=number.name, batch=batch):
                    output = self.root / f"{number.name}-{batch}.h5"
                    code, out, err = self.cut(output, batch, number, after=25)
                    self.assertEqual(code, 128 + number, err)
                    self.assertEqual(len(err.splitlines()), 1, err)
                    self.assertIn("--resume", err)
                    self.assertFalse(output.exists())
                    rows = committed(f"{output}.partial")
                    self.assertGreaterEqual(rows, 25)
                    self.assertIn(f"{rows} rows", err)
                    self.assertEqual(run("info", f"{output}.partial")[0], 0)
                    self.resume_and_compare(output, batch)

    def test_every_committed_row_survives_kill_9_at_any_moment_and_the_run_goes_on(self):
        chance = random.Random(5)
        cut_rows = []
        for kill in range(KILLS):
            batch = (1, 4)[kill % 2]
            output = self.root / f"kill-{kill}.h5"
            with self.subTest(kill=kill, batch=batch):
                code, _, _ = self.cut(output, batch, signal.SIGKILL, chance.uniform(0.0, self.seconds[batch]))
                if code == 0:
                    continue  # it was faster
                self.assertEqual(code, -signal.SIGKILL)
                if output.exists():  # killed after the rename: the trace is whole
                    assert_same_trajectories(trajectories(output), self.whole[batch])
                    continue
                try:
                    rows = committed(f"{output}.partial")
                except (OSError, KeyError):
                    rows = 0  # killed while the datasets were being created
                cut_rows.append(rows)
                if rows and kill < 8:
                    self.assertEqual(run("info", f"{output}.partial")[0], 0)
                    self.resume_and_compare(output, batch)
        self.assertGreaterEqual(sum(rows > 0 for rows in cut_rows), 10, cut_rows)

    def test_a_run_cut_twice_still_ends_as_if_never_cut(self):
        output = self.root / "twice.h5"
        self.cut(output, 4, signal.SIGKILL, after=20)
        first = committed(f"{output}.partial")
        partial = pathlib.Path(f"{output}.partial")
        process = start("capture", *self.arguments(output, 4), "--resume", "--quiet", "--threads", "1")
        self.wait_for_rows(process, partial, first + 60)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.resume_and_compare(output, 4)

    def test_resuming_a_finished_run_changes_nothing(self):
        output = self.root / "whole-1.h5"
        before = output.read_bytes()
        code, out, err = capture(*self.arguments(output, 1), "--resume")
        self.assertEqual(code, 0, err)
        self.assertIn("nothing to resume", out)
        self.assertEqual(output.read_bytes(), before)

    def test_resume_without_a_cut_run_starts_one(self):
        output = self.root / "fresh.h5"
        self.resume_and_compare(output, 1)

    def test_a_run_killed_while_its_file_is_created_can_be_resumed(self):
        for kill in range(6):
            with self.subTest(kill=kill):
                folder = self.root / f"newborn-{kill}"
                folder.mkdir()
                output = folder / "run.h5"
                process = start("capture", *self.arguments(output, 4), "--quiet", "--threads", "1")
                while not any(folder.iterdir()) and process.poll() is None:
                    pass
                process.kill()
                process.communicate()
                self.assertEqual(process.returncode, -signal.SIGKILL)
                partial = pathlib.Path(f"{output}.partial")
                if partial.exists():  # then it is a trace
                    self.assertEqual(committed(partial), 0)
                self.resume_and_compare(output, 4)
                self.assertEqual([path.name for path in folder.iterdir()], ["run.h5"])

    def test_resume_starts_afresh_over_an_empty_file_and_refuses_what_is_not_a_trace(self):
        output = self.root / "empty.h5"
        partial = pathlib.Path(f"{output}.partial")
        partial.touch()
        code, _, err = capture(*self.arguments(output, 1), "--resume")
        self.assertEqual(code, 0, err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn("starting anew", err)
        assert_same_trajectories(trajectories(output), self.whole[1])
        output.unlink()
        for content in (b"precious", b"\0" * 4096, b"\x89HDF\r\n\x1a\n" + b"\0" * 4096):
            partial.write_bytes(content)
            code, _, err = capture(*self.arguments(output, 1), "--resume")
            self.assertEqual(code, 1, err)
            self.assertIn("empty.h5.partial", err)
            self.assertEqual(partial.read_bytes(), content)
            self.assertFalse(output.exists())

    def test_resume_waits_for_a_reader_that_holds_the_lock(self):
        output = self.root / "locked.h5"
        self.cut(output, 1, signal.SIGTERM, after=25)
        before = committed(f"{output}.partial")
        with open(f"{output}.partial", "rb") as reader:
            fcntl.flock(reader, fcntl.LOCK_SH)  # as HDF5 does for a reader without SWMR
            begin = time.monotonic()
            code, out, err = capture(*self.arguments(output, 1), "--resume")
            waited = time.monotonic() - begin
            self.assertEqual((code, out), (1, ""), err)
            self.assertGreater(waited, 4.5)
            self.assertLess(waited, 30)
            notice, error = err.splitlines()
            self.assertIn("locked.h5.partial", notice)
            self.assertIn("HDF5_USE_FILE_LOCKING", error)
            self.assertEqual(committed(f"{output}.partial"), before)
            process = start("capture", *self.arguments(output, 1), "--resume", "--quiet",
                            "--threads", "1")
            self.assertIn("waiting", process.stderr.readline())
        _, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, err), (0, ""))
        assert_same_trajectories(trajectories(output), self.whole[1])

    def test_force_does_not_replace_a_trace_that_is_being_written(self):
        output = self.root / "busy.h5"
        partial = pathlib.Path(f"{output}.partial")
        process = start("capture", *self.arguments(output, 1), "--quiet", "--threads", "1")
        self.wait_for_rows(process, partial, 1)
        process.send_signal(signal.SIGSTOP)  # or it might be done before the other one starts
        code, _, err = capture(*self.arguments(output, 1), "--force")
        process.send_signal(signal.SIGCONT)
        self.assertEqual(code, 1, err)
        self.assertIn(f"another process is writing this trace (process {process.pid})", err)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0)
        assert_same_trajectories(trajectories(output), self.whole[1])

    def test_resume_refuses_a_run_that_would_decode_differently(self):
        output = self.root / "other.h5"
        self.cut(output, 1, signal.SIGTERM, after=25)
        before = committed(f"{output}.partial")
        for change in (("--record", "full"), ("--seed", "4"), ("--strategy", "sequential"),
                       ("--policy", "flashblock")):
            with self.subTest(change=change):
                arguments = list(self.arguments(output, 1))
                if change[0] in arguments:
                    arguments[arguments.index(change[0]) + 1] = change[1]
                else:
                    arguments += change
                code, _, err = capture(*arguments, "--resume")
                self.assertNotEqual(code, 0, f"{change} was mixed into the same trace")
                self.assertEqual(len(err.splitlines()), 1, err)
                self.assertEqual(committed(f"{output}.partial"), before)
        self.resume_and_compare(output, 1)

    def test_a_full_disk_ends_with_an_error_and_keeps_what_was_committed(self):
        def limit():
            # A quarter of the file: more than an idle machine writes before its first commit, 50 ms after it began.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))

        output = self.root / "full.h5"
        code, out, err = capture(*self.arguments(output, 1, "full"), "--no-space-check",
                                 before=limit)
        self.assertEqual(code, 1, err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn("full.h5", err)
        self.assertEqual(out, "")
        self.assertFalse(output.exists())
        self.assertGreater(committed(f"{output}.partial"), 0)
        self.assertEqual(run("info", f"{output}.partial")[0], 0)
        # With room again the run goes on where it stopped.
        code, _, err = capture(*self.arguments(output, 1, "full"), "--resume")
        self.assertEqual(code, 0, err)
        assert_same_trajectories(trajectories(output), self.whole[1])


if __name__ == "__main__":
    harness.require_binary()
    unittest.main(verbosity=2)
