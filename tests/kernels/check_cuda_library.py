"""The CUDA kernels as nvcc makes them, on a machine without a GPU.

    check_cuda_library.py SOURCE_FOLDER LIBTORCH_ROOT KERNELS_LIBRARY CXX

Compiles every .cu for sm_90a and fails where a kernel spills registers; links them with all symbols
resolved and loads the library, which must work without a driver. Exit status 77 without nvcc (13 or
newer, on the PATH or in /usr/local/cuda), or where LibTorch has no libc10_cuda.so.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

# One is enough: the whole list is built by the preset `cuda`.
ARCHITECTURE = "arch=compute_90a,code=sm_90a"


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def spills(text):
    """Kernels with spilled bytes, and how many kernels there are."""
    entries = re.findall(r"Function properties for (\S+)\s+\d+ bytes stack frame, "
                         r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    return [entry for entry in entries if entry[1] != "0" or entry[2] != "0"], len(entries)


def main():
    source, torch, kernels, compiler = sys.argv[1:]
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None or not os.path.exists(f"{torch}/lib/libc10_cuda.so"):
        print("no nvcc, or no libc10_cuda.so in", torch)
        return 77
    release = re.search(r"release (\d+)", run(nvcc, "--version"))
    if release is None or int(release[1]) < 13:
        print("nvcc is older than 13")
        return 77
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name in sorted(os.listdir(f"{source}/kernels")):
            if not name.endswith(".cu"):
                continue
            objects.append(f"{folder}/{name}.o")
            said = run(nvcc, "-std=c++20", "-O3", f"-I{source}", "-ccbin", compiler, "-Xcompiler", "-fPIC",
                       "--resource-usage", "-gencode", ARCHITECTURE, "-c", f"{source}/kernels/{name}",
                       "-o", objects[-1])
            spilled, count = spills(said)
            print(f"{name}: {count} kernels, {len(spilled)} spill")
            if spilled or count == 0:
                sys.exit(f"{name}: expected kernels without spilled registers, got {spilled} of {count}")
        objects.append(f"{folder}/registration.o")
        run(compiler, "-std=c++20", "-O1", "-fPIC", f"-I{source}", f"-I{toolkit}/include", "-idirafter",
            f"{torch}/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "-c",
            f"{source}/kernels/registration_cuda.cpp", "-o", objects[-1])
        library = f"{folder}/libblockscope_kernels_cuda.so"
        paths = [os.path.dirname(kernels), f"{torch}/lib", f"{torch}/../nvidia/cu13/lib", f"{toolkit}/lib64"]
        run(compiler, "-shared", *objects, "-o", library, "-Wl,--no-undefined", kernels,
            *(f"{torch}/lib/lib{name}.so" for name in ("c10_cuda", "torch_cpu", "c10")),
            *(f"-L{path}" for path in paths[2:]), "-l:libcudart.so.13",
            *(f"-Wl,-rpath,{path},-rpath-link,{path}" for path in paths))
        # In a process of its own: the folder goes before this one ends.
        print(run(sys.executable, "-c",
                  f"import ctypes; ctypes.CDLL({library!r}); print('linked and loaded')").strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
