"""A trace is the same bit for bit whether the decoding thread records (no core is free for a thread of its own) or a
second thread. Both decode with one thread, so that their sums are added in one order."""

import os
import unittest

import h5py
import numpy as np
from capture_harness import MODELS, CheckpointCase, capture, require_binary, write_prompts
from family_case import BIDIRECTIONAL, BLOCK_CAUSAL, write_family

NOT_COMPARED = ("steps/pass_time_ns", "run/json", "run_byte")  # times, and the name of the file


def datasets(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return {name: values for name, values in found.items() if name not in NOT_COMPARED}


class LateRecording(CheckpointCase):
    def check(self, model, *arguments):
        cores = os.sched_getaffinity(0)
        if len(cores) < 2:
            self.skipTest("one core: no thread of its own")
        traces = []
        for name, allowed in (("late", cores), ("direct", {min(cores)})):
            path = self.root / f"{name}.h5"
            os.sched_setaffinity(0, allowed)
            try:
                code, _, err = capture(model, "-o", path, "--force", *arguments)
            finally:
                os.sched_setaffinity(0, cores)
            self.assertEqual(code, 0, err)
            traces.append(datasets(path))
        late, direct = traces
        self.assertEqual(late.keys(), direct.keys())
        for name, values in direct.items():
            with self.subTest(name):
                self.assertEqual(values.dtype, late[name].dtype)
                self.assertTrue(np.array_equal(values, late[name], equal_nan=values.dtype.kind == "f"))

    def test_every_family(self):
        for family in (*BIDIRECTIONAL, *BLOCK_CAUSAL):
            with self.subTest(family):
                self.check(write_family(self.root / family, family), "--input-ids", "5,6,7,8,9,10,11,7,12,13",
                           "--gen-length", 16, "--no-stop", "--record", "full")

    def test_batches_levels_and_policies(self):
        prompts = write_prompts(self.root / "prompts.jsonl", 3)
        for options in (("--record", "outputs", "--policy", "flashblock,tau=3"),
                        ("--record", "full", "--policy", "mage,k=4", "--shadow"),
                        ("--record", "sets", "--policy", "quest,k=4,page=2"),
                        ("--record", "summary", "--intervene", "scale,by=0.5,layers=1", "--record-maps", "layers=0")):
            with self.subTest(options):
                self.check(self.model, "--prompts", prompts, "--batch-size", 2, *options)

    def test_caches_that_choose_rows(self):
        model = write_family(self.root / "rows", "llada")
        for cache in ("d2cache,current_k=3", "dllm-cache,prompt_interval=4,answer_interval=2"):
            with self.subTest(cache):
                self.check(model, "--input-ids", "5,6,7,8,9,10", "--gen-length", 12, "--no-stop", "--record", "full",
                           "--cache", cache)

    def test_a_shipped_model(self):
        self.check(MODELS / "needle", "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 2, "--gen-length", 16,
                   "--record", "outputs")


if __name__ == "__main__":
    require_binary()
    unittest.main()
