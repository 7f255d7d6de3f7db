"""The settings of a recording, fixed before its first pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .._arguments import whole_number, whole_numbers
from ..errors import UsageError
from .maps import Maps, read_maps
from .regions import Regions

if TYPE_CHECKING:  # pragma: no cover
    from .intervention import Intervention
    from .video import Video

LEVELS = ("trajectory", "summary", "sets", "outputs", "full")
COMPILED = ("keep", "eager")
ATTENTION = ("observe", "derive", "replace")
RANKS = ("heads", "layers", "sequences")


def config_value(model: Any, *names: str) -> Any:
    """The first of these that the model's configuration has and that isn't None. None if layers differ in it."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in names:
        for source in (config, text):
            try:
                value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
            except RuntimeError:  # transformers' answer where its layers have different ones
                continue
            if value is not None:
                return value
    return None


def whole(name: str, value: Any, least: int) -> int:
    number = whole_number(value)
    if number is None or number < least:
        raise UsageError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def indices(name: str, values: Iterable[int] | int | None, least: int) -> list[int] | None:
    if values is None:
        return None
    found = whole_numbers(values)
    if found is None or any(one < least for one in found):
        raise UsageError(f"{name}: expected whole numbers of at least {least}, got {values!r}")
    if not found:
        raise UsageError(f"{name}: expected at least one, got none")
    return sorted(set(found))


def _check_interventions(attention: str, heads: Any, batch_rows: Any) -> None:
    if attention != "replace":
        raise UsageError(f"interventions: expected attention=\"replace\", because the recorder changes what it gives "
                         f"the model, got \"{attention}\". HINT: record(..., attention=\"replace\")")
    for name, value in (("heads", heads), ("batch_rows", batch_rows)):
        if value is not None:
            raise UsageError(f"interventions: expected a recording of all {name.replace('_', ' ')}, got {name}="
                             f"{value!r}. HINT: leave {name}= out")


def _check_regions(regions: Regions, interventions: tuple[Intervention, ...], at_summary: bool) -> None:
    named = [(given, given.values["region"]) for given in interventions if given.values.get("region") is not None]
    if regions and not at_summary and not named:
        raise UsageError("regions: does nothing without level=\"summary\" or above, or interventions=[\"hide_keys,"
                         "region=...\"]. HINT: add that, or leave regions= out")
    for given, name in named:
        if name not in regions.names:
            raise UsageError(f"interventions '{given.text}': region: expected one of {', '.join(regions.names)}, got "
                             f"\"{name}\". HINT: regions= names parts of the prompts")


@dataclass(frozen=True)
class Settings:
    level: str
    block_length: int
    mask_token_id: int | None  # None: decodes token by token
    gen_length: int | None
    bidirectional: bool | None
    logit_shift: int
    layers: list[int] | None
    heads: list[int] | None
    steps: list[int] | None
    blocks: list[int] | None
    batch_rows: list[int] | None
    set_size: int
    set_normaliser: str
    array_type: str
    compiled: str
    attention: str
    interventions: tuple[Intervention, ...] = ()
    maps: Maps | None = None
    regions: Regions = field(default_factory=Regions)
    ranks: str | None = None  # what the processes of a group share
    canvas: bool = False  # a decoder denoises a canvas without masks
    video: Video | None = None  # of a continuous model
    router: bool = False  # record the routers' choices
    sources: dict[str, str] = field(default_factory=dict)  # sources of values that were not given

    @property
    def autoregressive(self) -> bool:
        return self.mask_token_id is None and not self.canvas and self.video is None

    @property
    def recorded_rows(self) -> list[int] | range:
        """The rows of a block in the trace's arrays."""
        return range(self.block_length) if self.video is None else self.video.rows

    def at_least(self, level: str) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def recorded_layers(self, num_layers: int) -> list[int]:
        if self.layers is None:
            return list(range(num_layers))
        if self.layers[-1] >= num_layers:
            raise UsageError(f"layers: expected 0 to {num_layers - 1}, got {self.layers[-1]}")
        return self.layers

    def within(self, num_layers: int, num_heads: int | None) -> Settings:
        """The same for a model of these sizes. num_heads: None if its configuration doesn't say."""
        recorded = self.recorded_layers(num_layers)
        if self.maps is None:
            return self
        if num_heads is not None and self.heads is None:
            self.maps.among("heads", range(num_heads))
        return replace(self, maps=self.maps.within(recorded))

    @classmethod
    def of(cls, model: Any, tokenizer: Any, *, block_length: int | None, mask_token_id: int | None,
           gen_length: int | None, logit_shift: int | None, layers: Iterable[int] | None,
           heads: Iterable[int] | None, steps: Iterable[int] | None, blocks: Iterable[int] | None,
           batch_rows: Iterable[int] | None, set_size: int, set_normaliser: str, array_type: str, level: str,
           bidirectional: bool | None, compiled: str, attention: str, interventions: tuple[Intervention, ...],
           maps: Any, regions: Regions, ranks: str | None, canvas: bool, video: Video | None = None,
           router: bool = False) -> Settings:
        sources = {}
        if canvas and block_length is None:
            block_length, sources["block_length"] = config_value(model, "canvas_length"), "model.config.canvas_length"
        if mask_token_id is None:
            mask_token_id = config_value(model, "mask_token_id")
            sources["mask_token_id"] = "model.config"
        if mask_token_id is None:
            mask_token_id = getattr(tokenizer, "mask_token_id", None)
            sources["mask_token_id"] = ("tokenizer" if mask_token_id is not None else "none: continuous"
                                        if video is not None else "none: token by token")
        if mask_token_id is not None:
            mask_token_id = whole("mask_token_id", mask_token_id, 0)
            if block_length is None:
                raise UsageError(
                    f"block_length: missing. HINT: the model has a mask ({mask_token_id}, from "
                    f"{sources.get('mask_token_id', 'you')}); say how many positions its loop denoises together")
        elif canvas and block_length is None:
            raise UsageError("block_length: missing. HINT: pass the length of the canvas that the model's decoder "
                             "denoises")
        elif block_length not in (None, 1) and not canvas and video is None:
            raise UsageError(
                f"mask_token_id: missing: block_length is {block_length}, and neither model.config nor the tokenizer "
                "has a mask_token_id. HINT: pass the id that the loop fills its blocks with")
        if set_normaliser not in ("prefix", "prefix+block"):
            raise UsageError(f"set_normaliser: expected prefix or prefix+block, got {set_normaliser!r}")
        if array_type not in ("bf16", "f32"):
            raise UsageError(f"array_type: expected bf16 or f32, got {array_type!r}")
        if compiled not in COMPILED:
            raise UsageError(f"compiled: expected {' or '.join(COMPILED)}, got {compiled!r}")
        if attention not in ATTENTION:
            raise UsageError(f"attention: expected {', '.join(ATTENTION)}, got {attention!r}")
        at_summary = LEVELS.index(level) >= LEVELS.index("summary")
        if ranks not in (None, *RANKS):
            raise UsageError(f"ranks: expected one of {', '.join(RANKS)}, got {ranks!r}")
        if interventions:
            _check_interventions(attention, heads, batch_rows)
            if ranks in ("heads", "layers"):
                raise UsageError("interventions: expected a model that is whole in one process, got "
                                 f"ranks=\"{ranks}\". HINT: leave interventions= out, or load the model in one process")
        _check_regions(regions, interventions, at_summary)
        if router and not at_summary:
            raise UsageError("router: does nothing without level=\"summary\" or above. HINT: add that, or leave "
                             "router= out")
        if router and ranks in ("heads", "layers"):
            raise UsageError(f"router: expected a model that is whole in one process, got ranks=\"{ranks}\". HINT: "
                             "leave router= out, or load the model in one process")
        if logit_shift not in (None, 0, 1):
            raise UsageError(f"logit_shift: expected 0 or 1, got {logit_shift!r}")
        chosen = {"layers": indices("layers", layers, 0), "heads": indices("heads", heads, 0),
                  "steps": indices("steps", steps, 1)}
        return cls(
            level=level, block_length=whole("block_length", block_length or 1, 1), mask_token_id=mask_token_id,
            gen_length=None if gen_length is None else whole("gen_length", gen_length, 1),
            bidirectional=bidirectional,
            logit_shift=int(mask_token_id is None and not canvas and video is None) if logit_shift is None
            else logit_shift,
            **chosen, blocks=indices("blocks", blocks, 0), batch_rows=indices("batch_rows", batch_rows, 0),
            set_size=whole("set_size", set_size, 1) if LEVELS.index(level) >= LEVELS.index("sets") and video is None
            else 0,
            set_normaliser=set_normaliser, array_type=array_type, compiled=compiled, attention=attention,
            interventions=interventions, maps=read_maps(maps, at_summary, **chosen),
            regions=regions, ranks=ranks, canvas=canvas, video=video, router=bool(router), sources=sources)
