"""The backend "rails" of torch.distributed, for the exchanges of expert groups.

    import rails.torch                                    # registers the backend

    dist.init_process_group("gloo")                       # for everything else
    experts = dist.new_group(ranks, backend="rails")
    dist.all_to_all_single(output, input, output_splits, input_splits, group=experts)

A group has all_to_all_single, all_to_all, all_gather, all_gather_into_tensor and barrier, for tensors of every type in the
memory of the processor. Tensors of `rails.torch.empty()` are sent from where they are and received where they are; others
are copied once, through memory that the group keeps. Operations of a group are serial in effect: one begins when the one
before it has ended. Errors are those of `rails`; `rails.errors.RailsError` also names the ranks and the node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import inspect
import math
import os
import secrets
import threading
from typing import Any, Callable, NamedTuple, NoReturn, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _TorchWork

import rails

_ALIGNMENT = 64  # of tensors in memory for staging
_Memory = npt.NDArray[np.uint8]
_clients: dict[tuple[int, str | None], rails.Client] = {}  # by process, because a forked child needs its own


@dataclasses.dataclass
class Options:
    """`pg_options` of `dist.new_group(backend="rails")`. Equal on all ranks but for `socket_dir`."""

    socket_dir: str | None = None  # of the daemon of this node; default: as of `rails.connect()`
    recovery: str = "fail"  # this and the following: as of `rails.Client.join()`
    wait_limit: float | None = None
    restart_limit: float | None = None


def client(socket_dir: str | None = None) -> rails.Client:
    """The client that the groups of this process share. Connects at the first call, and again if the daemon has exited."""
    place = os.getpid(), socket_dir
    known = _clients.get(place)
    if known is None:
        known = _clients.setdefault(place, rails.connect(socket_dir, name="torch"))
    if not known.connected:
        known.reconnect()
    return known


def empty(*shape: int, dtype: torch.dtype | None = None, socket_dir: str | None = None) -> torch.Tensor:
    """A tensor of zeros in memory that the daemon shares. Its views need no copy either. Keep it, as the arrays of
    `rails.Client.empty()`.

    Args:
        shape: length of each axis.
        dtype: any type. Default: torch's.
        socket_dir: as of the group's Options.
    """
    dtype = dtype or torch.get_default_dtype()
    size = torch.empty(0, dtype=dtype).element_size()
    memory = client(socket_dir).empty(size * math.prod(shape), np.uint8)
    return _tensor(memory, dtype, shape)


def _tensor(memory: _Memory, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of the bytes, without a copy."""
    if len(memory) == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.from_numpy(memory).view(dtype).reshape(shape)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a tensor of the same type and length. Several threads of torch would only be in each other's way: the ranks of a
    node copy at the same time."""
    if target.is_contiguous() and source.is_contiguous() and target.numel():
        target, source = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (target, source))
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source.view_as(target))


class Work(_TorchWork):
    """An operation under way, as torch.distributed returns it with async_op=True."""

    def __init__(self, work: rails.Work, outputs: list[torch.Tensor], finish: Callable[[bool], None]):
        super().__init__()
        self._work, self._outputs, self._finish = work, outputs, finish
        self._lock, self._finished = threading.Lock(), False

    def is_completed(self) -> bool:
        """True if the operation has ended, well or not, and its output is there. Local."""
        if not self._work.done():
            return False
        self._land()
        return True

    def is_success(self) -> bool:
        return self._work.done() and self.exception() is None

    def exception(self) -> rails.RailsError | None:
        """Why the operation has failed; None: it has not, or is under way."""
        try:
            self._work.wait(0)
        except rails.UnfinishedError:
            return None
        except rails.RailsError as error:
            return error
        return None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        """Waits until the output is there. A `timeout` of zero is none: the group's limits the operation.

        Raises:
            rails.RailsError: as `rails.Work.wait()`.
        """
        try:
            self._work.wait(timeout.total_seconds() or None)
        finally:
            if self._work.done():
                self._land()
        return True

    def _land(self) -> None:
        """Brings the output from shared memory to where it belongs, once."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._finish(self.exception() is None)

    @property
    def report(self) -> rails.Report:
        """The report of the operation, which has ended."""
        return self._work.report

    def end(self) -> None:
        """Waits until the operation has ended, well or not."""
        with contextlib.suppress(rails.RailsError):
            self.wait()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output, which a thread of its own completes."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def run() -> None:
            try:
                self.wait()
                future.set_result(self._outputs)
            except Exception as error:  # whoever waits for the future must hear of it
                future.set_exception(error)
        threading.Thread(target=run, name="rails-future", daemon=True).start()
        return future


class _Parts(NamedTuple):
    """Tensors that go to the ranks, or come from them, by rank."""

    tensors: Sequence[torch.Tensor]
    whole: torch.Tensor | None = None  # all are views of it


class _Staging:
    """Memory of one operation for tensors that are not shared. Comes from the memory that the group keeps."""

    def __init__(self, shared: rails.Client, free: list[_Memory]):
        self._client, self._free = shared, free
        self._taken: list[_Memory] = []
        self._landing: list[tuple[torch.Tensor, torch.Tensor]] = []

    def shares(self, parts: _Parts) -> bool:
        """True if all of them are shared."""
        return all(map(self._client.shares, parts.tensors if parts.whole is None else [parts.whole]))

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Shared copies of them, one of each tensor."""
        places = self._places(tensors)
        for tensor, place in places.values():
            _copy(place, tensor)
        return [places[id(tensor)][1] for tensor in tensors]

    def outputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Shared ones that finish() copies to them."""
        places = self._places(tensors)
        self._landing += places.values()
        return [places[id(tensor)][1] for tensor in tensors]

    def finish(self, well: bool) -> None:
        """The operation has ended: gives the memory back."""
        for tensor, memory in self._landing if well else ():
            _copy(tensor, memory)
        self._free += self._taken

    def _places(self, tensors: Sequence[torch.Tensor]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """By identity, each tensor and a shared one like it. They lie in one piece of memory, each aligned for its type."""
        sizes = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}
        memory, begin, places = self._take(sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())), 0, {}
        for tensor in tensors:
            if id(tensor) not in places:
                size = sizes[id(tensor)]
                places[id(tensor)] = tensor, _tensor(memory[begin:begin + size], tensor.dtype, tensor.shape)
                begin += -(-size // _ALIGNMENT) * _ALIGNMENT
        return places

    def _take(self, length: int) -> _Memory:
        if length == 0:
            return np.empty(0, np.uint8)
        fitting = [number for number, memory in enumerate(self._free) if len(memory) >= length]
        if fitting:
            memory = self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
        else:
            self._free.clear()  # what is too small would pile up
            memory = self._client.empty(max(1 << (length - 1).bit_length(), 4096), np.uint8)
        self._taken.append(memory)
        return memory


class ProcessGroup(dist.ProcessGroup):
    """A group of the backend "rails". torch.distributed makes it and calls it."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, options: Options, name: str):
        super().__init__(rank, size)
        self._name = name
        self._client, self._timeout = client(options.socket_dir), timeout.total_seconds()
        if rank == 0:
            store.set("rails", f"{secrets.token_hex(8)} {secrets.token_hex(16)}")
        nonce, key = store.get("rails").decode().split()
        self._group = self._client.join(f"torch {nonce}", rank, size, key=key, timeout=self._timeout, recovery=options.recovery,
                                        wait_limit=options.wait_limit, restart_limit=options.restart_limit)
        self._beginning = threading.Lock()  # autograd calls from threads of its own
        self._free: list[_Memory] = []  # memory for staging
        self._last: Work | None = None

    @property
    def group_name(self) -> str:
        """torch's name of the group, which torch 2 asks for."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return "rails"

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], opts: Any = None) -> Work:
        """all_to_all_single: consecutive rows of `input` to each rank, of `output` from each. No splits: even."""
        into = self._counts(output, output_splits, "output")
        out = self._counts(input, input_splits, "input")
        return self._begin([output], _Parts(output.split(into), output), _Parts(input.split(out), input))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """all_to_all: a tensor to each rank and from each."""
        for name, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self.size():
                raise ValueError(f"{name}_tensor_list has {len(tensors)} tensors, and the group {self.size()} ranks")
        return self._begin(outputs, _Parts(outputs), _Parts(inputs))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """all_gather: one tensor to every rank."""
        if len(outputs[0]) != self.size():
            raise ValueError(f"tensor_list has {len(outputs[0])} tensors, and the group {self.size()} ranks")
        return self._begin(outputs[0], _Parts(outputs[0]), _Parts(inputs * self.size(), inputs[0]))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """all_gather_into_tensor."""
        each = self._counts(output.view(-1), [], "output")
        if each[0] != input.numel():
            raise ValueError(f"output_tensor has {output.numel()} numbers, and {self.size()} ranks give {input.numel()} each")
        return self._begin([output], _Parts(output.view(-1).split(each), output), _Parts([input.view(-1)] * self.size(), input))

    def barrier(self, opts: Any = None) -> Work:
        return self._begin([], _Parts([]), _Parts([]))

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int], name: str) -> list[int]:
        """Rows of a tensor for each rank."""
        if tensor.dim() == 0:
            raise ValueError(f"{name} is a single number; its first axis must be rows")
        length, ranks = tensor.size(0), self.size()
        if not splits:
            if length % ranks:
                raise ValueError(f"{name} has {length} rows, which do not divide evenly by {ranks} ranks")
            return [length // ranks] * ranks
        if len(splits) != ranks or sum(splits) != length or min(splits) < 0:
            raise ValueError(f"{name}_split_sizes {list(splits)} are not {ranks} counts that add up to {length} rows")
        return list(splits)

    def _begin(self, outputs: list[torch.Tensor], receives: _Parts, sends: _Parts) -> Work:
        """Submits an operation."""
        for tensor in (*outputs, *sends.tensors):
            if tensor.device.type != "cpu":
                raise ValueError(f"a tensor on {tensor.device}: the backend rails takes tensors on cpu")
        with self._beginning:
            if self._last is not None:
                self._last.end()
            staging = _Staging(self._client, self._free)
            try:
                work = self._group.all_to_all_ranges(*self._flows(staging, sends, receives), timeout=self._timeout)
            except BaseException:
                staging.finish(False)
                raise
            self._last = Work(work, outputs, staging.finish)
            return self._last

    def _flows(self, staging: _Staging, sends: _Parts, receives: _Parts) -> tuple[dict[int, list[torch.Tensor]], ...]:
        """By rank, shared tensors that go to it, and that come from it."""
        shared = staging.shares(sends), staging.shares(receives)
        ranks = list(range(len(sends.tensors)))
        if ranks and not all(shared):  # the part for this rank itself takes the short way
            ranks.remove(self.rank())
            _copy(receives.tensors[self.rank()], sends.tensors[self.rank()])
        out, into = ([parts.tensors[rank] for rank in ranks] for parts in (sends, receives))
        out, into = out if shared[0] else staging.inputs(out), into if shared[1] else staging.outputs(into)
        return tuple({rank: [tensor] for rank, tensor in zip(ranks, tensors)} for tensors in (out, into))


def _refuse(operation: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"the backend rails has no {operation}: it is for expert groups only. Build the default group with "
                           "gloo or nccl, and use it for that")
    return refuse


for _name in ("allreduce", "allreduce_coalesced", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter",
              "_reduce_scatter_base", "scatter", "send"):
    setattr(ProcessGroup, _name, _refuse(_name))


def _create(given: Any, options: Options | None) -> ProcessGroup:
    return ProcessGroup(given.store, given.group_rank, given.group_size, given.timeout, options or Options(), given.group_id)


_devices = {"devices": ["cpu"]} if "devices" in inspect.signature(dist.Backend.register_backend).parameters else {}  # torch 2
dist.Backend.register_backend("rails", _create, extended_api=True, **_devices)
