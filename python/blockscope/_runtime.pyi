"""The extension module of the runtime (python/runtime). It exists in packages that were built with torch."""

from collections.abc import Callable
from typing import Any

class LoadedModel:
    text: str
    json: bytes
    weight_bytes: int

class Step:
    kind: str
    sequence: int
    slot: int
    block: int
    block_start: int
    step: int
    first: bool
    run_step: int
    planned_steps: int
    context_length: int
    masks_left: int
    decided: int
    since_read: int
    masked: list[int]
    changed: list[int]
    scale: float
    memory: dict[Any, Any]

class ExternalKeys:
    key: Any
    value: Any
    length: Any

class StrategyState:
    step: int
    quota: int
    denoising_steps: int
    masked: list[int]
    token: Any
    confidence: Any

class CacheState:
    prompt_length: int
    length: int
    block_start: int
    block_end: int
    block_length: int
    step: int
    run_step: int
    logit_shift: int
    tokens: list[int]
    masked: list[int]

def open_model(words: list[bytes], note: Callable[[str], object]) -> LoadedModel: ...
def run_command(
    words: list[bytes],
    description: str,
    note: Callable[[str], object],
    progress: Callable[[float, str], object],
) -> bytes: ...
def options(command: str) -> list[dict[str, Any]]: ...
def main(words: list[bytes]) -> int: ...
def plugin_cause() -> BaseException | None: ...
def add_policy(facts: dict[str, Any], make: Callable[..., Any]) -> None: ...
def add_strategy(facts: dict[str, Any], choose: Callable[..., Any]) -> None: ...
def add_cache(facts: dict[str, Any], make: Callable[..., Any]) -> None: ...
