"""The extension module: bytes, numbers and dictionaries, which the other modules turn into the public API."""

from collections.abc import Callable
from typing import Any

version: str
program: str

def hdf5_version() -> str: ...

class Trace:
    def __init__(self, path: bytes) -> None: ...
    def close(self) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def refresh(self) -> bool: ...
    def sequence(self, index: int) -> dict[str, Any]: ...
    def rows_of(self, sequence: int) -> bytearray: ...
    def frame(self, sequence: int, t: int) -> tuple[bytearray, bytearray, bytearray, bytearray]: ...
    def deltas(self, sequence: int) -> list[tuple[bytearray, ...]]: ...
    def num_pieces(self) -> int: ...
    def pieces(self, tokens: list[int]) -> list[bytes]: ...
    def arrays(self) -> list[dict[str, Any]]: ...
    def read(self, path: str, start: list[int], count: list[int], out: Any) -> None: ...

class TraceWriter:
    def __init__(self, path: bytes, meta: dict[str, Any], force: bool, queue_bytes: int) -> None: ...
    def begin_sequence(self, name: bytes, prompt: list[int], gen_length: int, regions: list[int]) -> int: ...
    def end_sequence(self, sequence: int, reason: str, text: bytes) -> None: ...
    def append_row(
        self,
        scalars: list[int],
        transfers: tuple[list[int], list[int], list[float], list[int]] | None,
        insertions: tuple[list[int], list[int], list[float], list[int]] | None,
        computed: list[tuple[int, int]],
        arrays: list[tuple[str, int, Any]],
        valid: list[int],
        by_layer: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]],
    ) -> None: ...
    def commit(self) -> None: ...
    def finish(self) -> None: ...
    def suspend(self) -> None: ...
    def committed(self) -> int: ...
    def bytes_appended(self) -> int: ...

class SequenceRegions:
    def __init__(self, count: int, prompt_length: int, block_start: int, block_end: int, parts: bytes) -> None: ...
    def at(self, position: int, mask: bool) -> int: ...
    def places(self, ranges: list[tuple[int, int]], bins: int) -> tuple[bytearray, bytearray, bytearray]: ...

class PromptParts:
    def __init__(self, rules: bytes, where: bytes) -> None: ...
    def region_names(self) -> list[str]: ...
    def regions_of(self, prompt: bytes, ids: list[int], pieces: list[bytes] | None) -> bytes: ...

class StepSource:
    def __init__(self, path: bytes, sizes: list[int], needed: list[str]) -> None: ...
    def close(self) -> None: ...
    def check_model(self, sizes: list[int]) -> None: ...
    def values(
        self, path: str, prompt: list[int], step: list[int], layer: int, heads: list[int]
    ) -> bytearray: ...

reuse_taus: list[float]
region_names: list[str]
distance_bins: int

class KeptCounter:
    def __init__(self, tau: float) -> None: ...
    def reuses(
        self, step: int, changed: int, decided: int, masked: list[bool], changed_rows: list[bool]
    ) -> list[int]: ...

def library_lock() -> int: ...
def parse_index_set(text: str, flag: str, first: int, end: int) -> list[int]: ...
def check_trace_target(path: bytes, force: bool) -> None: ...
def write_results(path: bytes, force: bool, results: list[dict[str, Any]], program: bytes, traces: list[bytes],
                  model_digest: bytes) -> None: ...
def metrics() -> list[dict[str, Any]]: ...
def analyze(
    traces: list[bytes],
    metrics: list[str],
    layers: list[int] | None,
    heads: list[int] | None,
    steps: list[int] | None,
    blocks: list[int] | None,
    sequences: list[int] | None,
    by: list[str],
    taus: list[float],
    count: str,
    set_sizes: list[int],
    sink_factor: float,
    from_summary: bool,
    threads: int,
    memory_mib: int,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]: ...
def compare_backbone(
    trace: bytes,
    backbone: bytes,
    layers: list[int] | None,
    heads: list[int] | None,
    steps: list[int] | None,
    blocks: list[int] | None,
    sequences: list[int] | None,
    from_summary: bool,
    threads: int,
    memory_mib: int,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]: ...
def matrix(
    trace: bytes,
    kind: str,
    field: str,
    layer: int | None,
    head: int | None,
    steps: list[int],
    rows: list[int],
    blocks: list[int] | None,
    sequences: list[int] | None,
) -> dict[str, Any]: ...
def calibrate(
    traces: list[bytes],
    gamma: float | None,
    saving: float | None,
    max_error: float | None,
    tau: int,
    granularity: str,
    from_summary: bool,
    count: str,
    reference: str,
    lse_bound: float | None,
    by_step: str | None,
    provisional: bool,
    threads: int,
    progress: Callable[[int, int], object] | None,
) -> tuple[bytes, list[str]]: ...
def compare(
    a: bytes, b: bytes, absolute: float, relative: float, ignore_timing: bool, ignore_aborted: bool
) -> dict[str, Any]: ...
def figures(
    result: dict[str, Any], threads: int, gnuplot: bytes, search_path: bytes
) -> list[tuple[str, bytes, bytes, bytes]]: ...
def report(
    traces: list[bytes],
    title: bytes,
    layer: int | None,
    head: int | None,
    sequence: int | None,
    block: int | None,
    backbone: bytes,
    own: list[dict[str, Any]],
    threads: int,
    gnuplot: bytes,
    search_path: bytes,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]: ...
