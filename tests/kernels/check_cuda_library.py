"""The CUDA kernels as nvcc makes them, on a machine without a GPU.

    check_cuda_library.py SOURCE_FOLDER LIBTORCH_ROOT KERNELS_LIBRARY CXX CACHE [--print]

Compiles every .cu for sm_80, 90a, 100 and 120, and fails where
- a kernel spills more than SPILLS allows, or takes more registers than its kind may;
- the tiles of split_attention, prefill_attention, block_topk and WeightSpread hold other numbers of tensor-core
  products, ldmatrix, cp.async and barriers
  than their shapes say, as counted by hand (`instructions`): a loop that the compiler unrolled again,
  operands that went through registers, copies that became loads;
- a tile gets fewer thread blocks on an SM than BLOCKS;
- they don't link with all symbols resolved, or the library does not load without a driver.
--print shows all of it. Machine code is counted where there is an nvdisasm (the toolkit's, or in CACHE,
where scripts/setup.sh --tests puts it). Exit status 77 without nvcc 13, or where LibTorch has no
libc10_cuda.so.
"""

import collections
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURES = ("80", "90a", "100", "120")
MAIN = ("split_tiles", "prefill_tiles", "mean_tiles", "spread_tiles")
FLOATS = ("split_floats", "prefill_floats", "spread_floats")
# Bytes that ptxas 13.0 stores and loads, of 255 registers; every other kernel spills nothing.
SPILLS = {("100", "split_tiles<BFloat16,128,4,2,2,32,64>"): 8, ("100", "split_tiles<Half,128,4,2,2,32,64>"): 56,
          ("120", "split_tiles<Half,128,4,2,2,32,64>"): 8}
# Of kernels that are not tiles, at most: half of an SM's threads. turn_rows: 20 warps an SM; the rows of a step of an 8B
# model with B 32 are 10 for each of an H100's. join_rows: 16 warps an SM; that step has 8 for each.
REGISTERS = 64
MORE_REGISTERS = {"turn_rows": 96, "join_rows": 128}
# Thread blocks an SM on sm_80, 90a, 100 and 120. 0: it does not fit, and is not launched there (shared_limit).
BLOCKS = {
    "mean_tiles<64,4,1,3,64,64>": (4, 5, 5, 2),
    "mean_tiles<64,8,1,3,64,64>": (2, 3, 3, 1),
    "mean_tiles<128,4,1,3,64,64>": (2, 3, 3, 1),
    "mean_tiles<128,8,1,3,64,64>": (1, 2, 2, 1),
    "mean_tiles<256,4,1,2,32,32>": (2, 3, 3, 1),
    "prefill_floats<64>": (3, 3, 4, 3),
    "prefill_floats<128>": (3, 3, 4, 1),
    "prefill_floats<256>": (1, 2, 2, 1),
    "prefill_tiles<64,8,1,2,32,64>": (1, 1, 1, 1),
    "prefill_tiles<128,8,1,2,32,64>": (1, 1, 1, 1),
    "prefill_tiles<256,4,1,2,16,32>": (1, 2, 2, 1),
    "prefill_tiles<256,8,1,2,16,64>": (0, 1, 1, 0),
    "split_floats<64>": (4, 5, 6, 3),
    "split_floats<128>": (3, 3, 3, 1),
    "split_floats<256>": (1, 2, 2, 1),
    "spread_floats<64>": (4, 3, 4, 4),
    "spread_floats<128>": (4, 3, 4, 2),
    "spread_floats<256>": (2, 3, 3, 1),
    "spread_tiles<64,4,1,2,64,64>": (3, 3, 3, 2),
    "spread_tiles<128,4,1,2,64,64>": (2, 3, 2, 1),
    "spread_tiles<256,4,1,2,32,32>": (2, 3, 3, 1),
    "split_tiles<64,4,1,3,64,64>": (2, 3, 3, 1),
    "split_tiles<64,4,2,2,32,64>": (2, 2, 2, 2),
    "split_tiles<64,8,1,2,32,64>": (2, 1, 1, 1),
    "split_tiles<128,4,1,2,64,64>": (2, 2, 2, 1),
    "split_tiles<128,4,1,3,64,64>": (1, 2, 2, 0),
    "split_tiles<128,4,2,2,32,64>": (1, 2, 2, 1),
    "split_tiles<128,8,1,2,32,64>": (1, 1, 1, 1),
    "split_tiles<256,4,1,2,16,32>": (1, 2, 2, 1),
    "split_tiles<256,4,1,2,16,64>": (1, 1, 1, 0),
    "split_tiles<256,8,1,2,16,64>": (0, 1, 1, 0),
}
NONE = (1, 1, 1, 1)  # a new tile must fit everywhere


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


class Kernel(collections.namedtuple("Kernel", "arch symbol registers stored loaded")):
    @property
    def name(self):
        """split_tiles<BFloat16,128,4,1,3,64,64>: the demangled name without namespaces and parameters."""
        short = re.sub(r"blockscope::|cuda::|\(anonymous namespace\)::|\((int|bool)\)|^void | ", "", DEMANGLED[self.symbol])
        return short.split("(")[0].replace("TileShape<", "").replace(">>", ">")

    @property
    def is_tile(self):
        return self.name.startswith(MAIN)

    @property
    def shape(self):
        """Scalar, dim, warps, row tiles, stages, step, keys of a tile."""
        scalar, *numbers = self.name.partition("<")[2][:-1].split(",")
        return scalar, *map(int, numbers)


DEMANGLED = {}


def kernels_in(text):
    """The values of --resource-usage for each kernel."""
    found = re.findall(r"Compiling entry function '(\S+)' for 'sm_(\w+)'\n.*Function properties for \S+\n.*"
                       r"?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers", text)
    symbols = [symbol for symbol, *_ in found]
    DEMANGLED.update(zip(symbols, run("c++filt", *symbols).splitlines()))
    return [Kernel(arch, symbol, int(registers), int(stored), int(loaded))
            for symbol, arch, stored, loaded, registers in found]


def instructions(kernel):
    """What a tile's machine code holds, each loop once but those that are unrolled."""
    _, dim, _, row_tiles, _, step, _ = kernel.shape
    hold = row_tiles * dim <= 128  # queries in registers
    depth, keys, channels = (dim // 16 if hold else 4), step // 16, dim // 16
    if kernel.name.startswith("mean_tiles"):  # scores alone
        return {"HMMA": row_tiles * depth * keys * 2, "LDSM": depth * (row_tiles + keys), "LDSM.T": 0,
                "LDGSTS": 3, "BAR": 2}
    if kernel.name.startswith("spread_tiles"):  # the same, of one group of rows
        return {"HMMA": row_tiles * depth * keys * 2, "LDSM": depth * (row_tiles + keys), "LDSM.T": 0,
                "LDGSTS": 3, "BAR": 1}
    return {
        "HMMA": row_tiles * (depth * keys * 2 + keys * channels * 4),  # scores; values by hi + lo
        "LDSM": depth * (row_tiles + keys),
        "LDSM.T": keys * channels,
        "LDGSTS": 5,  # queries; keys and values of the first tiles, and in the loop
        "BAR": 2,
    }


def machine_code(nvdisasm, cubin):
    """Instructions of each tile in a cubin, by symbol."""
    counted = {}
    for part in run(nvdisasm, "-c", cubin).split("//--------------------- .text.")[1:]:
        symbol = part.split()[0]
        if not any(name in symbol for name in MAIN):
            continue
        counts = collections.Counter(
            "LDSM.T" if name == "LDSM" and ".MT" in rest else name for name, rest in
            re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)([.\w]*)", part, re.MULTILINE))
        counted[symbol] = {name: counts[name] for name in ("HMMA", "LDSM", "LDSM.T", "LDGSTS", "BAR")}
    return counted


def blocks_per_sm(source, toolkit, compiler, folder, kernels):
    """(arch, kernel): thread blocks that an SM holds at once."""
    lines = []
    for kernel in kernels:
        arch = kernel.arch.rstrip("a")
        if kernel.is_tile:
            kind = {"prefill_tiles": "PREFILL", "mean_tiles": "MEANS", "spread_tiles": "SPREAD"}.get(kernel.name.split("<")[0], "TILE")
            lines.append(f'{kind}({arch}, {kernel.registers}, "{kernel.name}", {", ".join(map(str, kernel.shape))})')
        elif kernel.name.startswith(FLOATS):
            dim = re.search(r"(\d+)>$", kernel.name)[1]
            kind = "SPREAD_FLOATS" if kernel.name.startswith("spread_floats") else "FLOATS"
            lines.append(f'{kind}({arch}, {kernel.registers}, "{kernel.name}", {dim})')
    with open(f"{folder}/tiles.h", "w") as file:
        file.write("\n".join(lines) + "\n")
    run(compiler, "-std=c++20", "-O1", "-w", "-ffunction-sections", f"-I{source}", f"-I{folder}", f"-I{toolkit}/include",
        f"{source}/tests/kernels/tile_occupancy.cpp", "-c", "-o", f"{folder}/occupancy.o")
    run(compiler, f"{folder}/occupancy.o", "-Wl,--unresolved-symbols=ignore-all,--gc-sections", "-o", f"{folder}/occupancy")
    found = {}
    for line in run(f"{folder}/occupancy").splitlines():
        arch, name, _, blocks = line.split()
        found["90a" if arch == "90" else arch, name] = int(blocks)
    return found


def find_nvcc():
    for candidate in (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if candidate and os.path.exists(candidate):
            return candidate
    return None


def compile_source(nvcc, compiler, source, name, folder):
    """One .cu for all architectures: the object, what nvcc said, a cubin each."""
    keep = f"{folder}/{name}"
    os.mkdir(keep)
    codes = [part for arch in ARCHITECTURES for part in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")]
    said = run(nvcc, "-std=c++20", "-O3", f"-I{source}", "-ccbin", compiler, "-Xcompiler", "-fPIC", "--threads", "2",
               "--resource-usage", *codes, "--keep", "--keep-dir", keep, "-c", f"{source}/kernels/cuda/{name}.cu", "-o",
               f"{keep}.o")
    return said, glob.glob(f"{keep}/*.cubin")


def main():
    show = "--print" in sys.argv
    source, torch, kernels_library, compiler, cache = [a for a in sys.argv[1:] if a != "--print"]
    nvcc = find_nvcc()
    if nvcc is None or not os.path.exists(f"{torch}/lib/libc10_cuda.so"):
        print("no nvcc, or no libc10_cuda.so in", torch)
        return 77
    release = re.search(r"release (\d+)", run(nvcc, "--version"))
    if release is None or int(release[1]) < 13:
        print("nvcc is older than 13")
        return 77
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    disassemblers = [f"{toolkit}/bin/nvdisasm", shutil.which("nvdisasm") or "", *glob.glob(f"{cache}/nvdisasm-*/nvidia/cu13/bin/nvdisasm")]
    nvdisasm = next((path for path in disassemblers if os.path.exists(path)), None)
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        names = [name[:-3] for name in sorted(os.listdir(f"{source}/kernels/cuda")) if name.endswith(".cu")]
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            built = list(pool.map(lambda name: compile_source(nvcc, compiler, source, name, folder), names))
        kernels = [kernel for said, _ in built for kernel in kernels_in(said)]
        for arch in ARCHITECTURES:
            for name in MAIN:
                if not any(kernel.arch == arch and kernel.name.startswith(name) for kernel in kernels):
                    failures.append(f"sm_{arch}: expected {name} among its kernels, found none")
        for kernel in kernels:
            spilled = kernel.stored + kernel.loaded
            allowed = SPILLS.get((kernel.arch, kernel.name), 0)
            if spilled > allowed:
                failures.append(f"sm_{kernel.arch} {kernel.name}: expected at most {allowed} bytes spilled, got {spilled}")
            most = MORE_REGISTERS.get(kernel.name.split("<")[0], REGISTERS)
            if not kernel.name.startswith((*MAIN, *FLOATS)) and kernel.registers > most:
                failures.append(f"sm_{kernel.arch} {kernel.name}: expected at most {most} registers, got {kernel.registers}")
        blocks = blocks_per_sm(source, toolkit, compiler, folder, kernels)
        for (arch, name), count in sorted(blocks.items()):
            expected = BLOCKS.get(re.sub(r"(BFloat16|Half|float),", "", name), NONE)[ARCHITECTURES.index(arch)]
            if count < expected:
                failures.append(f"sm_{arch} {name}: expected {expected} thread blocks an SM, got {count}")
        tiles = 0
        for cubin in [path for _, cubins in built for path in cubins] if nvdisasm else []:
            for symbol, counts in machine_code(nvdisasm, cubin).items():
                kernel = next(kernel for kernel in kernels if kernel.symbol == symbol)
                tiles += 1
                if counts != instructions(kernel):
                    failures.append(f"{os.path.basename(cubin)} {kernel.name}: expected {instructions(kernel)}, "
                                    f"got {counts}")
        if nvdisasm and tiles == 0:
            failures.append("no tile found in the machine code")
        if show:
            for kernel in kernels:
                print(f"sm_{kernel.arch:4s} {kernel.registers:4d} registers {kernel.stored + kernel.loaded:4d} B spilled "
                      f"{blocks.get((kernel.arch, kernel.name), '-'):>2} blocks an SM  {kernel.name}")
        print(f"{len(kernels)} kernels, {sum(k.stored + k.loaded > 0 for k in kernels)} spill; " +
              (f"machine code of {tiles} tiles counted" if nvdisasm else "machine code not counted: no nvdisasm"))
        if failures:
            sys.exit("\n".join(failures))
        link(source, torch, kernels_library, compiler, toolkit, folder, [f"{folder}/{name}.o" for name in names])
    return 0


def link(source, torch, kernels_library, compiler, toolkit, folder, objects):
    for name in ("registration_cuda", "device_graph_cuda"):
        objects.append(f"{folder}/{name}.o")
        run(compiler, "-std=c++20", "-O1", "-fPIC", f"-I{source}", f"-I{toolkit}/include", "-idirafter",
            f"{torch}/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "-c", f"{source}/kernels/cuda/{name}.cpp", "-o", objects[-1])
    library = f"{folder}/libblockscope_kernels_cuda.so"
    paths = [os.path.dirname(kernels_library), f"{torch}/lib", f"{torch}/../nvidia/cu13/lib", f"{toolkit}/lib64"]
    run(compiler, "-shared", *objects, "-o", library, "-Wl,--no-undefined", kernels_library,
        *(f"{torch}/lib/lib{name}.so" for name in ("c10_cuda", "torch_cpu", "c10")),
        *(f"-L{path}" for path in paths[2:]), "-l:libcudart.so.13",
        *(f"-Wl,-rpath,{path},-rpath-link,{path}" for path in paths))
    # In a process of its own: the folder goes before this one ends.
    print(run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r}); print('linked and loaded')").strip())


if __name__ == "__main__":
    sys.exit(main())
