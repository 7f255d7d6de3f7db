"""Makes PyTorch's PyPI wheel importable without the 2.4 GB of CUDA wheels that it requires.

The tests compare with PyTorch on the CPU only. But the wheel's libraries need cuDNN, cuBLAS, NCCL and
others, and Python binds every symbol at import. This script therefore makes a small library for each
missing one, with the right name, versions and functions; every function traps. The result has no
working CUDA. Use it only for the test environment in the cache.

Usage: stub_cuda_libraries.py TORCH_LIB_DIR FOLDER_WITH_REAL_LIBRARIES...
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# Libraries that every machine has, and the functions of the CUDA libraries without versions.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.|ld-linux)")
UNVERSIONED = re.compile(r"^(nccl|cusparseLt|cuFile|nvshmem|cu[A-Z])|nvshmem_extension")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needs_of(library):
    """Maps each library that `library` needs to the symbol versions expected of it."""
    text = run("objdump", "-p", library)
    needs = {name: set() for name in re.findall(r"^\s+NEEDED\s+(\S+)", text, re.M)}
    for name, body in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
        needs.setdefault(name, set()).update(line.split()[3] for line in body.splitlines())
    return needs


def symbols(library, which):
    """Yields (name, version or "") of the dynamic symbols; weak undefined ones may stay so."""
    for line in run("nm", "-D", which, library).splitlines():
        kind, symbol = line.split()[-2:]
        if kind not in "wv":
            name, _, version = symbol.partition("@")
            yield name, version.lstrip("@")


def write_stub(path, versions, functions):
    """`functions`: names per version; those of version "" stay unversioned."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        names = sorted(name for group in functions.values() for name in group)
        source.write_text("".join(f"void {n}(void) {{ __builtin_trap(); }}\n" for n in names))
        nodes = {v: "".join(f"{n}; " for n in sorted(functions.get(v, ()))) for v in versions}
        script.write_text("".join(f"{v} {{ {'global: ' + n if n else ''}}};\n"
                                  for v, n in nodes.items()))
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", str(source)]
        command += ["-o", str(path), f"-Wl,-soname,{path.name}"]
        run(*command, *([f"-Wl,--version-script={script}"] if versions else []))


def main(torch_lib, *real_folders):
    torch_lib = pathlib.Path(torch_lib)
    folders = [torch_lib, *map(pathlib.Path, real_folders)]
    missing, undefined, defined = {}, set(), set()
    for library in sorted(torch_lib.glob("*.so*")):
        undefined.update(symbols(library, "--undefined-only"))
        defined.update(name for name, _ in symbols(library, "--defined-only"))
        for name, versions in needs_of(library).items():
            if not SYSTEM.match(name) and not any((f / name).exists() for f in folders):
                missing.setdefault(name, set()).update(versions)

    by_version = collections.defaultdict(set)
    for name, version in undefined:
        if name not in defined and (version or UNVERSIONED.search(name)):
            by_version[version].add(name)
    # An unversioned reference names no library, so each unversioned library defines them all.
    for name, versions in missing.items():
        functions = {version: by_version[version] for version in versions or {""}}
        write_stub(torch_lib / name, versions, functions)


if __name__ == "__main__":
    main(*sys.argv[1:])
