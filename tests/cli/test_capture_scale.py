"""`blockscope capture` over many prompts: flat memory, several ranks, batches."""

import json
import os
import unittest

import capture_harness as harness
from capture_harness import (BINARY, CheckpointCase, assert_same_trajectories, capture,
                             trajectories, write_checkpoint, write_prompts)

MIB = 1 << 20


def peak_memory(*arguments, code=0):
    """Runs capture and returns its largest resident size in bytes (VmHWM, as wait4 reports it)."""
    pid = os.posix_spawn(BINARY, [BINARY, "capture", *map(str, arguments), "--quiet", "--threads",
                                  "1"], os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == code, arguments
    return usage.ru_maxrss * 1024


class Scale(CheckpointCase):
    def test_memory_is_flat_over_200_prompts(self):
        prompts = write_prompts(self.root / "many.jsonl", 200, gen_length=100)
        peaks = [peak_memory(self.model, "--prompts", prompts, "--record", "outputs",
                             "--array-type", "f32", "--limit", count, "-o",
                             self.root / f"many-{count}.h5") for count in (50, 200)]
        print(f"largest resident size: {peaks[0] / MIB:.1f} MiB over 50 prompts, "
              f"{peaks[1] / MIB:.1f} MiB over 200")
        self.assertLess(peaks[1] - peaks[0], 64 * MIB)
        trace = self.root / "many-200.h5"
        self.assertEqual(len(trajectories(trace)), 200)
        # Keeping what is written would be seen: the trace grows by more than the bound.
        grown = trace.stat().st_size - (self.root / "many-50.h5").stat().st_size
        self.assertGreater(grown, 96 * MIB)

    def test_memory_does_not_grow_with_the_steps(self):
        prompts = write_prompts(self.root / "steps.jsonl", 600, shortest=3, longest=6, gen_length=100)
        peaks = [peak_memory(self.model, "--prompts", prompts, "--strategy", "sequential", "--no-stop", "--limit", count,
                             "-o", self.root / f"steps-{count}.h5") for count in (60, 600)]
        print(f"largest resident size: {peaks[0] / MIB:.1f} MiB over 6,000 steps, {peaks[1] / MIB:.1f} MiB over 60,000")
        self.assertLess(peaks[1] - peaks[0], 12 * MIB)

    def test_a_long_prompt_line_takes_little_more_memory_than_itself(self):
        size = 24 * MIB
        for name, text in (("words", "some words " * (size // 11)), ("letters", "a" * size), ("digits", "7" * size),
                           ("marks", "\u00e9" * (size // 2)), ("special", "<|im_end|>" * (size // 10))):
            peaks = []
            for count in (1 << 14, len(text)):
                prompts = self.root / f"{name}.jsonl"
                prompts.write_text(json.dumps({"prompt": text[:count]}, ensure_ascii=False) + "\n")
                # Both have more tokens than the model has positions.
                peaks.append(peak_memory(self.model, "--prompts", prompts, "-o", self.root / "none.h5", code=1))
            grown = (peaks[1] - peaks[0]) / size
            print(f"a line of {size / MIB:.0f} MiB of {name}: {grown:.1f} times its size")
            self.assertLess(grown, 8, name)

    def test_ranks_share_the_prompts_and_write_a_file_each(self):
        prompts = write_prompts(self.root / "ranks.jsonl", 7, gen_length=8)
        whole = self.root / "one.h5"
        self.assertEqual(capture(self.model, "--prompts", prompts, "-o", whole)[0], 0)
        launchers = {"torchrun": {"RANK": "{}", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
                     "Slurm": {"SLURM_PROCID": "{}", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2",
                               "SLURM_STEP_ID": "7"},
                     "Open MPI": {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2"},
                     "--ranks": {}}
        for launcher, variables in launchers.items():
            with self.subTest(launcher=launcher):
                output = self.root / f"{launcher}.h5"
                parts = []
                for rank in range(2):
                    flags = [] if variables else ["--ranks", f"{rank}/2"]
                    code, out, err = capture(
                        self.model, "--prompts", prompts, "-o", output, *flags, "-q",
                        environment={name: value.format(rank) for name, value in variables.items()})
                    self.assertEqual(code, 0, err)
                    share = f"rank {rank} of 2 ({launcher}): {4 - rank} of 7 prompts"
                    self.assertEqual(err.splitlines()[0], share)
                    self.assertEqual(out.splitlines()[-1], share)
                    parts.append(trajectories(self.root / f"{launcher}.r{rank:04d}.h5"))
                self.assertFalse(output.exists())
                self.assertFalse(parts[0].keys() & parts[1].keys())
                self.assertEqual([len(part) for part in parts], [4, 3])
                assert_same_trajectories(parts[0] | parts[1], trajectories(whole))

    def test_ranks_that_no_launcher_gave_decode_everything(self):
        """What sbatch --ntasks=8 sets without srun, and what a shell kept of another program."""
        prompts = write_prompts(self.root / "alone.jsonl", 3, gen_length=8)
        output = self.root / "alone.h5"
        for variables in ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
                          {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967291"},
                          {"RANK": "1", "WORLD_SIZE": "8"}):
            with self.subTest(variables):
                code, _, err = capture(self.model, "--prompts", prompts, "-o", output, "--force",
                                       environment=variables)
                self.assertEqual(code, 0, err)
                self.assertIn("are ignored", err)
                self.assertIn("--ranks R/N", err)
                self.assertEqual(len(trajectories(output)), 3)

    def test_a_rank_outside_the_world_is_refused(self):
        code, _, err = capture(self.model, "--input-ids", "1,2", "-o", self.root / "rank.h5",
                               environment={"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
        self.assertEqual(code, 2)
        self.assertIn("RANK", err)

    def test_batches_hold_the_same_trajectories_as_single_runs(self):
        prompts = write_prompts(self.root / "batch.jsonl", 9, gen_length=20)
        single, batched = self.root / "single.h5", self.root / "batched.h5"
        for output, batch in ((single, 1), (batched, 4)):
            code, _, err = capture(self.model, "--prompts", prompts, "--batch-size", batch, "-o",
                                   output, "--temperature", "0.8", "--top-p", "0.9")
            self.assertEqual(code, 0, err)
        one, many = trajectories(single), trajectories(batched)
        for name in one:
            # Confidences may differ in the last bits: other shapes, other sums.
            for key in ("position", "token", "counts", "/steps/kind", "/steps/changed"):
                self.assertEqual(one[name][key].tolist(), many[name][key].tolist(), (name, key))

    def test_a_replay_repeats_the_trajectories_and_another_policy_keeps_them(self):
        prompts = write_prompts(self.root / "replay.jsonl", 4, gen_length=20)
        first = self.root / "first.h5"
        self.assertEqual(capture(self.model, "--prompts", prompts, "-o", first, "--seed", "2",
                                 "--temperature", "1")[0], 0)
        recorded = trajectories(first)
        for name, flags in [("exact", ()), ("flash", ("--policy", "flashblock", "--shadow"))]:
            output = self.root / f"replay-{name}.h5"
            code, _, err = capture(self.model, "--replay", first, "-o", output, *flags)
            self.assertEqual(code, 0, err)
            got = trajectories(output)
            self.assertEqual(sorted(got), sorted(recorded))
            for sequence, values in recorded.items():
                for key in ("position", "token", "counts", "/steps/kind", "/steps/changed"):
                    self.assertEqual(got[sequence][key].tolist(), values[key].tolist())

    def test_a_replay_of_another_vocabulary_is_refused(self):
        first = self.root / "large.h5"
        prompts = write_prompts(self.root / "large.jsonl", 1, longest=5, gen_length=40)
        self.assertEqual(capture(self.model, "--prompts", prompts, "-o", first)[0], 0)
        mask = max(json.loads(prompts.read_text())["input_ids"]) + 1
        smaller = write_checkpoint(self.root / "smaller", vocab_size=mask + 1, mask_token_id=mask,
                                   eos_token_id=None)
        code, _, err = capture(smaller, "--replay", first, "-o", self.root / "small.h5",
                               "--mask-token-id", mask)
        self.assertEqual(code, 1)
        self.assertIn("vocabulary", err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertFalse((self.root / "small.h5").exists())


if __name__ == "__main__":
    harness.require_binary()
    unittest.main(verbosity=2)
