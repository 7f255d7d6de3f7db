"""Ctrl-C and SIGTERM at any moment of `analyze`, `report`, `calibrate`, `repack`, `verify` and `train
--dump-prompts`: 128 + the signal, one line that says so, and no file or half of one left. test_interrupts.py MAKE_TRACE"""

import pathlib
import random
import shutil
import signal
import time
import unittest

from capture_harness import require_binary, run, start, temporary_folder, wait_for_handlers, write_prompts
from test_analyze import MODEL, make
from test_draft import draft_tensors, write_draft, write_target, zlab_config

MOMENTS = 8  # of each command and signal
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = temporary_folder()
        cls.root = pathlib.Path(cls.holder.name)
        # Of different runs: the same one twice is refused.
        cls.traces = [make(cls.root / f"{i}.h5", "--sequences", 4, "--blocks", 4, "--digest",
                           "01" * 32, "--seed", i) for i in range(60)]
        cls.out = cls.root / "out"
        cls.chance = random.Random(11)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def cut(self, arguments, outputs):
        """Runs the command once whole, which must write `outputs` into self.out, then sends signals at
        random moments. Returns how many times it said that it was stopped."""
        folder = self.out
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        begin = time.monotonic()
        code, _, err = run(*arguments)
        seconds = time.monotonic() - begin
        self.assertEqual(code, 0, err)
        whole = sorted(p.relative_to(folder) for p in folder.rglob("*"))
        outputs = set(map(pathlib.Path, outputs))
        self.assertLessEqual(outputs, set(whole))
        stopped = 0
        for moment in range(MOMENTS * len(NUMBERS)):
            number = NUMBERS[moment % len(NUMBERS)]
            shutil.rmtree(folder)
            folder.mkdir()
            process = start(*arguments)
            wait_for_handlers(process)
            time.sleep(self.chance.uniform(0.0, seconds))
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            left = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
            with self.subTest(command=arguments[0], moment=moment, signal=number.name, err=err):
                if left:  # everything was done when the signal came
                    self.assertIn(process.returncode, (0, 128 + number))
                    self.assertLessEqual(outputs, set(left))
                    self.assertLessEqual(set(left), set(whole))
                    continue
                stopped += 1
                self.assertEqual(process.returncode, 128 + number)
                self.assertEqual(err.splitlines(),
                                 ["blockscope: stopped by a signal: nothing was written"])
        return stopped

    def test_analyze(self):
        arguments = ["analyze", *self.traces[:40], "--csv", self.out / "a.csv", "--json",
                     self.out / "a.json", "--hdf5", self.out / "a.h5"]
        self.assertGreater(self.cut(arguments, ["a.csv", "a.json", "a.h5"]), MOMENTS // 2)

    def test_report(self):
        arguments = ["report", *self.traces[:10], "-o", self.out / "a.html", "--figures",
                     self.out / "figures"]
        self.assertGreater(self.cut(arguments, ["a.html", "figures/recall.svg"]), MOMENTS // 2)

    def test_calibrate(self):
        arguments = ["calibrate", *self.traces, "--gamma", 0, "-o", self.out / "a.json"]
        self.assertGreater(self.cut(arguments, ["a.json"]), MOMENTS // 2)

    def test_repack(self):
        arguments = ["repack", *self.traces[:10], "--merge", "--compress", "deflate", "-o",
                     self.out / "a.h5"]
        self.assertGreater(self.cut(arguments, ["a.h5"]), MOMENTS // 2)

    def test_train_prompts(self):
        if run("capture", "--help")[0] != 0:
            self.skipTest("this build can't decode")
        arguments = ["train", "--dump-prompts", 20000, "--prompts-out", self.out / "a.jsonl"]
        self.assertGreater(self.cut(arguments, ["a.jsonl"]), MOMENTS // 2)

    def test_verify(self):
        if run("capture", "--help")[0] != 0:
            self.skipTest("this build can't decode")
        prompts, trace = self.root / "prompts.jsonl", self.root / "run.h5"
        prompts.write_text("".join((MODEL / "demo.jsonl").read_text().splitlines(True)[:1]))
        for arguments in (["capture", MODEL, "--prompts", prompts, "--gen-length", 8, "-o", trace],
                          ["calibrate", trace, "--gamma", 0, "-o", self.root / "reuse.json"]):
            code, _, err = run(*arguments, "--quiet", "--threads", 1)
            self.assertEqual(code, 0, err)
        arguments = ["verify", MODEL, "--policy", f"flashblock,reuse={self.root / 'reuse.json'}", "--prompts", prompts,
                     "--gen-length", 8, "--threads", 1, "--quiet", "-o", self.out / "a.json", "--csv",
                     self.out / "a.csv", "--figures", self.out]
        self.assertGreater(self.cut(arguments, ["a.json", "a.csv"]), MOMENTS // 2)

    def test_verify_with_a_draft(self):
        if run("capture", "--help")[0] != 0:
            self.skipTest("this build can't decode")
        target = write_target(self.root / "target")
        draft = write_draft(self.root / "draft", zlab_config(), draft_tensors())
        prompts = write_prompts(self.root / "ids.jsonl", 6, gen_length=60)
        arguments = ["verify", target, "--draft", draft, "--prompts", prompts, "--threads", 1, "--quiet", "-o",
                     self.out / "a.json"]
        self.assertGreater(self.cut(arguments, ["a.json"]), MOMENTS // 2)


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_interrupts.py"], verbosity=2)
