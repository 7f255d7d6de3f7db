"""Recording in a process group of torch.distributed. Each rank computes a part of the heads (tensor parallelism) or of
the layers (pipeline), and one trace has all of them. Or each rank decodes its own sequences into its own file (data
parallelism)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import _core
from ..errors import RankError, UsageError
from .model import NUM_HEADS, NUM_KV_HEADS
from .settings import Settings, config_value
from .shapes import LayerShape
from .steps import PassInput

SAME_ARGUMENTS = "HINT: every rank calls record(...) with the same arguments"
WORD_SECONDS = 5.0  # that a rank waits for the reasons of the others, if its own may be theirs
_opened: collections.Counter[tuple[int, ...]] = collections.Counter()  # recordings of each group, the same on its ranks


def axis_of(path: str, shared: str) -> int | None:
    """The axis of a row's dataset that counts ``heads`` (query heads or KV heads) or ``layers``. None: every rank has
    the same values."""
    if path.startswith("/prediction/"):
        return None
    layer = 1 if path.startswith("/prefix/") or path in ("/summary/reuse_error", "/summary/kept_pair") else 0
    if shared == "layers":
        return layer
    return None if path.startswith("/hidden/") or path == "/summary/hidden_gap" else layer + 1


def _group(group: Any) -> Any:
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError("ranks: expected a process group, found none in this process. HINT: start the program with "
                         "torchrun, and call torch.distributed.init_process_group() before record(...); or leave "
                         "ranks= out")
    if dist.get_rank(group) < 0:
        raise UsageError(f"group: rank {dist.get_rank()} of all is no member of it. HINT: only members call "
                         "record(...)")
    return dist.group.WORLD if group is None else group


def path_of_rank(path: str | os.PathLike[str], group: Any) -> str | os.PathLike[str]:
    """run.h5 -> run.r0003.h5, as ``blockscope capture`` names the files of ranks."""
    group = _group(group)
    if dist.get_world_size(group) == 1:
        return path
    root, extension = os.path.splitext(os.fsdecode(path))
    return f"{root}.r{dist.get_rank(group):04d}{extension}"


class Ranks:
    """The processes that record one trace together, as one of them sees them. Without a group it is alone."""

    def __init__(self, model: torch.nn.Module, shared: str | None, group: Any, timeout: float) -> None:
        """shared: ``heads`` or ``layers``, of which each rank computes a part. timeout: seconds that a rank waits for
        another one."""
        self.index, self.count, self._shared = 0, 1, shared
        self._timeout = timeout
        self._heads = config_value(model, *NUM_HEADS)
        self._kv_heads = config_value(model, *NUM_KV_HEADS) or self._heads
        self._model = type(model).__name__
        self._links: Any = None  # connections to the other ranks, of this recording alone
        self._reasons: Any = None  # the store in which a rank says why it ended
        self._contributes = True
        self._layers: list[int] = []  # of a pipeline, those of this rank
        self._num_layers = 0
        self._members: tuple[int, ...] = ()
        if shared is None and group is not None:
            raise UsageError("group: does nothing without ranks=. HINT: add that, or leave group= out")
        if shared not in ("heads", "layers"):
            return
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise UsageError(f"rank_timeout: expected seconds, more than 0, got {timeout!r}")
        group = _group(group)
        self._members = tuple(dist.get_process_group_ranks(group))
        self.index, self.count = dist.get_rank(group), dist.get_world_size(group)

    @property
    def first(self) -> bool:
        """Whether this rank writes the file."""
        return self.index == 0

    @property
    def left(self) -> bool:
        """Whether other ranks can't be reached any more."""
        return self.count > 1 and self._links is None

    # --- this rank's part ---------------------------------------------------------------------------------------------

    def own(self, settings: Settings, recorded: list[int],
            layers: list[tuple[str, torch.nn.Module]]) -> tuple[Settings, list[int]]:
        """The settings and the recorded layers of this rank. Its heads count from its first one. layers: all of the
        model's; those of other ranks have no weights."""
        if self.count == 1 or not settings.at_least("summary"):
            return settings, recorded
        if self._shared == "heads":
            return self._own_heads(settings), recorded
        here = [index for index, (_, layer) in enumerate(layers)
                if next(itertools.chain(layer.parameters(), layer.buffers()), None) is not None]
        if not here:
            raise UsageError(f"ranks: {self._model}: expected layers with weights in rank {self.index} of "
                             f"{self.count}, found none. HINT: fewer ranks")
        self._layers, self._num_layers = here, len(layers)
        mine = [layer for layer in recorded if layer in here]
        self._contributes = bool(mine)
        maps = settings.maps
        if maps is not None:
            mapped = [layer for layer in maps.layers if layer in here]
            maps = dataclasses.replace(maps, layers=mapped) if mapped else None
        # A rank of which nothing is recorded computes something, because the other arrays need its passes.
        return dataclasses.replace(settings, maps=maps), mine or here[:1]

    def _own_heads(self, settings: Settings) -> Settings:
        if self._heads is None:
            raise UsageError(f"ranks: {self._model}: its configuration doesn't say how many heads the whole model has. "
                             f"HINT: model.config.{NUM_HEADS[0]} = ...")
        if self._heads % self.count != 0:
            raise UsageError(f"ranks: expected heads that {self.count} ranks share evenly, got the {self._heads} of "
                             f"{self._model}. HINT: another number of ranks")
        if settings.heads and settings.heads[-1] >= self._heads:
            raise UsageError(f"heads: expected 0 to {self._heads - 1}, got {settings.heads[-1]}")
        share = self._heads // self.count
        begin = self.index * share

        def mine(heads: list[int] | None) -> list[int] | None:
            return None if heads is None else [head - begin for head in heads if begin <= head < begin + share]

        heads, maps = mine(settings.heads), settings.maps
        self._contributes = heads != []
        if maps is not None:
            mapped = mine(maps.heads)
            maps = dataclasses.replace(maps, heads=mapped) if mapped != [] and self._contributes else None
        return dataclasses.replace(settings, heads=[0] if heads == [] else heads, maps=maps)

    def check(self, shape: LayerShape, where: str) -> None:
        """Whether the heads of a layer's call are the share of the whole model's that this rank has."""
        if self.head_shares == 1:
            if self._heads is not None and shape.heads < self._heads and dist.is_available() and \
                    dist.is_initialized() and dist.get_world_size() > 1:
                raise UsageError(
                    f"{where}: attends with {shape.heads} heads in this rank of {dist.get_world_size()}, expected the "
                    f"{self._heads} of the model's configuration. HINT: if the ranks share the heads alone, every "
                    "rank calls record(..., ranks=\"heads\")")
            return
        for name, found, whole in (("heads", shape.heads, self._heads), ("KV heads", shape.kv_heads, self._kv_heads)):
            if whole is not None and found * self.count != whole:
                shared = " KV heads that ranks share aren't recorded: their sets need all of their query heads." \
                    if found * self.count > whole and name == "KV heads" else ""
                raise UsageError(
                    f"{where}: attends with {found} {name} in rank {self.index} of {self.count}, together "
                    f"{found * self.count}, expected the {whole} of the model's configuration.{shared} HINT: "
                    f"a model of which each rank has {name} of its own, or record(..., level=\"trajectory\")")

    @property
    def head_shares(self) -> int:
        """The number of ranks that share the heads."""
        return self.count if self._shared == "heads" else 1

    def whole(self, shape: LayerShape) -> LayerShape:
        """The whole model's shape, from this rank's."""
        shares = self.head_shares
        return dataclasses.replace(shape, heads=shape.heads * shares, kv_heads=shape.kv_heads * shares)

    # --- meeting the other ranks --------------------------------------------------------------------------------------

    def open(self, path: bytes, settings: Settings) -> None:
        """Connects the ranks. All of them must have the same settings."""
        if self.count == 1:
            return
        _opened[self._members] += 1
        name = f"blockscope.record/{','.join(map(str, self._members))}/{_opened[self._members]}"
        self._reasons = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        try:
            self._links = dist.ProcessGroupGloo(self._reasons, self.index, self.count,
                                                datetime.timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise RankError(f"rank {self.index} of {self.count} couldn't connect to the others within "
                            f"{self._timeout:g} s (rank_timeout)", SAME_ARGUMENTS) from error
        mine = {"path": os.fsdecode(path), **{field.name: repr(getattr(settings, field.name))
                                              for field in dataclasses.fields(settings)}}
        self._agree("opens the recording", (mine, self._layers), self._same_settings)

    def meet(self, what: str) -> None:
        """Waits until every rank does the same."""
        if self.count > 1:
            self._agree(what, None, lambda said: None)

    def begin_pass(self, number: int, given: PassInput) -> PassInput:
        """Waits until every rank begins this pass, and gives the first one's view of it. The other ranks of a pipeline
        have no keys of the first layer, which show the length of the cache."""
        if self.count == 1:
            return given
        place = {name: getattr(given, name) for name in ("start", "past", "positions", "computed", "placed")}
        what, tokens = f"begins pass {number}", hashlib.blake2b(repr(given.ids).encode()).digest()
        of_first = self._agree(what, (tokens, place), lambda said: self._same_pass(what, said))
        return dataclasses.replace(given, **of_first)

    def finish(self, work: Callable[[], None]) -> None:
        """Runs the first rank's last work. The others wait for it."""
        self._agree("closes the trace", None, lambda said: work())

    def _same_settings(self, said: list[tuple[dict[str, str], list[int]]]) -> None:
        for rank, (theirs, _) in enumerate(said):
            for name, value in said[0][0].items():
                if theirs.get(name) != value:
                    raise UsageError(f"{name}: rank 0 has {value}, rank {rank} has {theirs.get(name)}. "
                                     f"{SAME_ARGUMENTS}")
        layers = [layers for _, layers in said]
        if sum(layers, []) != list(range(self._num_layers)):
            raise UsageError(f"ranks: expected each layer in one rank, and the layers in the order of the ranks, got "
                             f"{', '.join(f'{one} in rank {rank}' for rank, one in enumerate(layers))}. HINT: a "
                             "pipeline whose ranks hold no weights of other ranks' layers")

    def _same_pass(self, what: str, said: list[tuple[bytes, dict[str, Any]]]) -> dict[str, Any]:
        for rank, (tokens, place) in enumerate(said):
            if tokens != said[0][0] or self._shared == "heads" and place != said[0][1]:
                raise UsageError(
                    f"rank {rank} {what} over other tokens or positions than rank 0, expected the same ones. HINT: "
                    "draw the same tokens on every rank, as with one seed; if each rank decodes sequences of its own, "
                    "record(..., ranks=\"sequences\")")
        return said[0][1]

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, on the first one; nothing on the others."""
        if self.index > 0:
            self._send(0, (what, value))
            return []
        return [value, *(self._receive(rank, what) for rank in range(1, self.count))]

    def _agree(self, what: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """What the first rank's judge finds in the values of all, on every rank. If it raises an error, every rank
        does."""
        said = self.gather(what, value)
        if self.index > 0:
            found, error = self._receive(0, what)
        else:
            found = error = None
            try:
                found = judge(said)
            except Exception as raised:
                error = raised
            for rank in range(1, self.count):
                self._send(rank, (what, (found, error)))
        if error is not None:
            raise error
        return found

    def _send(self, rank: int, value: Any) -> None:
        data = torch.from_numpy(np.frombuffer(bytearray(pickle.dumps(value, protocol=5)), np.uint8))
        for message in (torch.tensor([len(data)], device="cpu"), data):
            self._wait(rank, lambda: self._links.send([message], rank, 0))

    def _receive(self, rank: int, what: str) -> Any:
        size = torch.empty(1, dtype=torch.int64, device="cpu")  # the loop may have another default
        self._wait(rank, lambda: self._links.recv([size], rank, 0))
        data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        self._wait(rank, lambda: self._links.recv([data], rank, 0))
        theirs, value = pickle.loads(data.numpy())
        if theirs != what:
            raise self._error(f"rank {rank} {theirs} while rank {self.index} {what}, expected the same passes on every "
                              "rank")
        return value

    def _wait(self, rank: int, begin: Callable[[], Any]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            reason = None
            with contextlib.suppress(RuntimeError):
                reason = self._reason_of(rank)
            raise self._error(reason or (
                f"rank {rank} wasn't heard of for {self._timeout:g} s (rank_timeout)" if "imed out" in str(error) else
                f"rank {rank} is gone without a reason: its process was killed or ended")) from error

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _error(self, reason: str) -> RankError:
        return RankError(reason, f"Rank {self.index} of {self.count} stops, too, because a row needs the arrays of "
                                 "every rank. The unfinished trace has all rows before. HINT: once that rank runs, "
                                 "record(..., force=True) replaces the trace")

    def _reason_of(self, rank: int) -> str | None:
        """Raises RuntimeError if the store's process is gone, which is rank 0 of all without torchrun."""
        return self._reasons.get(str(rank)).decode() if self._reasons.check([str(rank)]) else None

    def leave(self, error: BaseException) -> None:
        """Ends with an error: tells the other ranks why, and wakes those that wait for this one."""
        if self._links is None:
            return
        first_line = next(iter(str(error).splitlines()), "")  # torch's errors have pages
        reason = error.reason if isinstance(error, RankError) else (
            f"rank {self.index} ended its recording with {type(error).__name__}: {first_line}")
        with contextlib.suppress(RuntimeError):
            self._reasons.set(str(self.index), reason)
        self.close()

    def close(self) -> None:
        self._links = None

    def reasons(self) -> str:
        """Why the other ranks ended, as far as they say so within some seconds."""
        if self.count == 1 or self._reasons is None:
            return ""
        silent, end = [rank for rank in range(self.count) if rank != self.index], time.monotonic() + WORD_SECONDS
        said: dict[str, None] = {}
        with contextlib.suppress(RuntimeError):
            while silent and time.monotonic() < end:
                for rank in list(silent):
                    reason = self._reason_of(rank)
                    if reason is not None:
                        silent.remove(rank)
                        said[reason] = None
                time.sleep(0.05)
        if silent:
            said[f"no word of rank {', '.join(map(str, silent))}: killed, or still running"] = None
        return "; ".join(said)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def writer(self, shape: LayerShape, begin: Callable[[], _core.TraceWriter]) -> Any:
        """What takes the rows. shape: the whole model's. begin: begins the file."""
        if self.count == 1:
            return begin()
        self._agree("begins the trace", shape, _same_shape)
        return SharedWriter(self, begin() if self.first else None)

    def join(self, what: str, arrays: list[tuple[str, int, Any]]) -> list[tuple[str, int, Any]]:
        """A row's arrays with the parts of all ranks, on the first one; nothing on the others."""
        mine = {path: array for path, _, array in arrays
                if (self.first if axis_of(path, self._shared) is None else self._contributes)}
        said = self.gather(what, mine)
        joined = []
        for path in dict.fromkeys(path for one in said for path in one):
            parts, axis = [one[path] for one in said if path in one], axis_of(path, self._shared)
            joined.append((path, -1, parts[0] if axis is None else np.concatenate(parts, axis)))
        return joined


def _same_shape(said: list[LayerShape]) -> None:
    if len(set(said)) > 1:
        raise UsageError("layers of different shapes, and a trace has one: "
                         f"{'; '.join(f'{shape} in rank {rank}' for rank, shape in enumerate(said))}. HINT: record one "
                         "shape at a time with layers=...")


class SharedWriter:
    """Takes the place of the file's writer. The file is the first rank's; the others only send their arrays."""

    def __init__(self, ranks: Ranks, file: _core.TraceWriter | None) -> None:
        self._ranks, self._file = ranks, file
        self._sequences = self._rows = 0

    def begin_sequence(self, *given: Any) -> int:
        self._sequences += 1
        return self._sequences - 1 if self._file is None else self._file.begin_sequence(*given)

    def end_sequence(self, *given: Any) -> None:
        if self._file is not None:
            self._file.end_sequence(*given)

    def append_row(self, scalars: list[int], transfers: Any, insertions: Any, computed: Any,
                   arrays: list[tuple[str, int, Any]], valid: Any, by_layer: Any, timestep: float) -> None:
        if self._ranks.left:  # the other ranks' arrays are lost
            return
        joined = self._ranks.join(f"writes row {self._rows}", arrays)
        self._rows += 1
        if self._file is not None:
            self._file.append_row(scalars, transfers, insertions, computed, joined, valid, by_layer,
                                  timestep)

    def commit(self) -> None:
        if self._file is not None:
            self._file.commit()

    def finish(self) -> None:
        self._ranks.finish(lambda: None if self._file is None else self._file.finish())

    def suspend(self) -> None:
        if self._file is not None:
            self._file.suspend()

