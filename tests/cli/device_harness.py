"""`blockscope` on the emulated cuda:0, a library that is preloaded where libtorch_cuda would be: alone, where attention
runs as chains of tensor operators, or with the emulated kernels."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from capture_harness import BINARY, MODELS

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from trace_arrays import datasets  # noqa: E402

CHAINS = sys.argv.pop(1)
KERNELS = sys.argv.pop(1)


def run(*arguments, device=None, faults=""):
    """`faults`: what the emulated device is told to do wrong (tests/support/emulated_cuda.h)."""
    environment = dict(os.environ)
    environment.pop("LD_PRELOAD", None)
    if device:
        environment["LD_PRELOAD"] = device
        environment["EMULATED_CUDA"] = faults
        # blockscope sets this before it loads LibTorch, which is here before it.
        environment["GOMP_SPINCOUNT"] = "1000"
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600)
    return done.returncode, done.stdout, done.stderr


class DeviceCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def capture(self, model, *arguments, device=None):
        output = self.root / ("device.h5" if device else "host.h5")
        output.unlink(missing_ok=True)
        where = ["--device", "cuda"] if device else []
        code, _, error = run("capture", MODELS / model, *arguments, *where, "-q", "-o", output, device=device)
        self.assertEqual(code, 0, error)
        return datasets(output)
