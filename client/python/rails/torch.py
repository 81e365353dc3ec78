"""The backend "rails" of torch.distributed, for the exchanges of expert groups.

    import rails.torch                                    # registers the backend

    dist.init_process_group("gloo")                       # for everything else
    experts = dist.new_group(ranks, backend="rails")
    dist.all_to_all_single(output, input, output_splits, input_splits, group=experts)

A group has all_to_all_single, all_to_all, all_gather, all_gather_into_tensor, barrier, send and recv, for tensors of every
type in the memory of the processor. Tensors of `rails.torch.empty()` are sent from where they are and received where they are; others
are copied once, through memory that the group keeps. Operations of a group are serial in effect: one begins when the one
before it has ended. Errors are those of `rails`; `rails.errors.RailsError` also names the ranks and the node.

Tensors of a GPU may be given to the collectives, but not to barrier, send and recv. An operation begins when the current
stream of the GPU has come to it. `wait()` makes the current stream wait for the output, and returns at once; then an
error that comes later is raised by the next operation on the GPU.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import math
import os
import secrets
import zlib
from typing import Any, Callable, NoReturn, Sequence

import numpy as np
import torch
import torch.distributed as dist

import rails
from rails._torch_channel import Channel, Work
from rails._torch_cuda import CudaChannel, CudaWork
from rails._torch_staging import Parts, Pool, tensor_of

_clients: dict[tuple[int, str | None], rails.Client] = {}  # by process, because a forked child needs its own
_gpus: dict[tuple[rails.Client, int, str], rails.Device] = {}


@dataclasses.dataclass
class Options:
    """`pg_options` of `dist.new_group(backend="rails")`. Equal on all ranks but for `socket_dir` and `urgent`.

    Attributes:
        socket_dir: folder of the sockets of this node's daemon. Default: RAILS_SOCKET_DIR, or /run/railsd.
        recovery: "fail": an operation fails when a daemon or a rank is lost; "wait": it waits for a daemon that is away, and
            is made again; "degrade": it goes on without the ranks that were lost.
        wait_limit: with "wait", seconds for a daemon that does not answer. Required.
        restart_limit: with "wait", seconds for one that has ended to run again. Default: 120.
        blocking: `wait()` for an operation on a GPU lets the calling thread wait, and errors are raised there.
        slice_bytes, slices: as of `rails.Client.join()`, for operations on a GPU.
        driver: library of the GPU's driver.
        urgent: this rank sends the group's operations before other jobs of its tenant, which wait.
        pieces: operations may be cut into three jobs after a rank has copied 4 MiB or more in one.
    """

    socket_dir: str | None = None
    recovery: str = "fail"
    wait_limit: float | None = None
    restart_limit: float | None = None
    blocking: bool = False
    slice_bytes: int | None = None
    slices: int | None = None
    driver: str = "libcuda.so.1"
    urgent: bool = False
    pieces: bool = True


def client(socket_dir: str | None = None, timeout: float = 10) -> rails.Client:
    """The client that the groups of this process share. Connects at the first call, and again if the daemon has exited.

    Args:
        socket_dir: as of Options.
        timeout: seconds to try while no daemon answers.
    """
    place = os.getpid(), socket_dir
    known = _clients.get(place)
    if known is None:
        name = " ".join(["torch", *(["rank", os.environ["RANK"]] if "RANK" in os.environ else [])])  # torchrun sets it
        known = _clients.setdefault(place, rails.connect(socket_dir, name=name, timeout=timeout))
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
    return tensor_of(memory, dtype, shape)


class ProcessGroup(dist.ProcessGroup):
    """A group of the backend "rails". torch.distributed makes it and calls it."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, options: Options, name: str):
        super().__init__(rank, size)
        self._ranks = size  # as size(), which asks torch
        self._name, self._timeout = name, timeout.total_seconds()
        self._detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        shared = client(options.socket_dir, min(10, self._timeout))
        restarts = 120.0 if options.restart_limit is None else options.restart_limit
        self._pool = Pool(shared, restarts if options.recovery == "wait" else 0)
        if rank == 0:
            # Operators see torch's name of the group.
            store.set("rails", f"{secrets.token_hex(16)} torch {name[:64]} {secrets.token_hex(8)}")
        key, joined = store.get("rails").decode().split(" ", 1)
        # No methods: what this object keeps must not keep this object, because the groups are left when it is gone.
        self._join = functools.partial(_join, shared, joined, key, self._timeout)  # options, suffix, rank, size
        self._options = options
        self._pairs: dict[tuple[int, int], Channel] = {}  # by source and destination
        self._aborted: rails.CancelledError | None = None
        # After the loss of a rank the others may see different votes.
        self._how = {"timeout": self._timeout, "urgent": options.urgent}
        self._channel = Channel(functools.partial(self._join, options, "", rank, size), self._pool, self._how,
                                options.pieces and options.recovery != "degrade")
        self._channel.open()
        self._cuda = CudaChannel(functools.partial(_join_gpu, self._join, options, rank, size), self._how, options.blocking)

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
        return self._begin("all_to_all_single", [output], Parts({}, input, out), Parts({}, output, into))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """all_to_all: a tensor to each rank and from each."""
        for name, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self.size():
                raise ValueError(f"{name}_tensor_list has {len(tensors)} tensors, and the group {self.size()} ranks")
        return self._begin("all_to_all", outputs, _parts(inputs), _parts(outputs))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """all_gather: one tensor to every rank."""
        if len(outputs[0]) != self.size():
            raise ValueError(f"tensor_list has {len(outputs[0])} tensors, and the group {self.size()} ranks")
        return self._begin("all_gather", outputs[0], _parts(inputs * self.size(), inputs[0]), _parts(outputs[0]))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """all_gather_into_tensor."""
        if not output.is_contiguous():
            raise ValueError(f"output_tensor of shape {tuple(output.shape)} must be contiguous")
        flat, rows = output.view(-1), input.reshape(-1)
        each = self._counts(flat, [], "output")
        if each[0] != input.numel():
            raise ValueError(f"output_tensor has {output.numel()} numbers, and {self.size()} ranks give {input.numel()} each")
        return self._begin("all_gather_into_tensor", [output], _parts([rows] * self.size(), rows), _parts(flat.split(each), output))

    def barrier(self, opts: Any = None) -> Work:
        return self._begin("barrier", [], Parts({}), Parts({}))

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Work:
        """send and isend: the n-th tensor to a rank is the n-th that it receives from this one."""
        return self._begin_pair(f"send to rank {rank} (1 of the two)", rank, self.rank(), rank, tag, [], Parts({1: tensors[0]}), Parts({}))

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Work:
        """recv and irecv. A tag other than the sender's is an error."""
        return self._begin_pair(f"recv from rank {rank} (0 of the two)", rank, rank, self.rank(), tag, tensors, Parts({}), Parts({0: tensors[0]}))

    def abort(self) -> None:
        """Ends all operations of the group at every rank, and leaves it. Waits at most 10 s for the daemon."""
        self._aborted = rails.CancelledError(f"this rank has aborted the group {self._name}")
        for channel in (self._channel, self._cuda, *list(self._pairs.values())):
            channel.close(self._aborted)

    shutdown = abort

    def _start_coalescing(self, *_: Any) -> None:
        """batch_isend_irecv: operations of pairs need no order of their own."""

    def _end_coalescing(self, *_: Any) -> None:
        pass

    def _set_sequence_number_for_group(self) -> None:
        """Numbers begin with 0 on every rank."""

    def _get_sequence_number_for_group(self) -> int:
        """How many operations other than send and recv have begun."""
        return self._channel.begun + self._cuda.begun

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int], name: str) -> list[int]:
        """Rows of a tensor for each rank."""
        shape, ranks = tensor.shape, self._ranks
        if not shape:
            raise ValueError(f"{name} is a single number; its first axis must be rows")
        length = shape[0]
        if not splits:
            if length % ranks:
                raise ValueError(f"{name} has {length} rows, which do not divide evenly by {ranks} ranks")
            return [length // ranks] * ranks
        if len(splits) != ranks or sum(splits) != length or min(splits) < 0:
            raise ValueError(f"{name}_split_sizes {list(splits)} are not {ranks} counts that add up to {length} rows")
        return list(splits)

    def _begin(self, name: str, outputs: list[torch.Tensor], sends: Parts, receives: Parts) -> Work | CudaWork:
        """Begins an operation of all ranks."""
        gpu = _gpu_of(name, sends, receives)
        tag = 0
        if self._detail:  # the daemons compare tags
            name += "".join(sorted({f" of {tensor.dtype}" for tensor in (*sends.tensors, *outputs)}))
            tag = zlib.crc32(name.encode())
        if gpu is not None:
            return self._cuda.begin(name, outputs, sends, receives, tag, gpu)
        return self._channel.begin(Work(name, outputs, sends, receives, tag))

    def _begin_pair(self, name: str, peer: int, source: int, destination: int, tag: int, outputs: list[torch.Tensor],
                    sends: Parts, receives: Parts) -> Work:
        """Begins a send or recv: a job of a group of two, the source and the destination."""
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ValueError(f"{name} must be another one of the {self.size()} ranks of the group, and this is rank {self.rank()}")
        gpu = _gpu_of(name, sends, receives)
        if gpu is not None:
            raise ValueError(f"{name}: a tensor on {gpu}; the backend rails sends and receives only tensors on cpu: copy it there, or use all_to_all")
        pair = source, destination
        channel = self._pairs.get(pair)
        if channel is None:
            options = self._options
            if options.recovery == "degrade":  # nothing is left to go on with
                options = dataclasses.replace(options, recovery="fail")
            join = functools.partial(self._join, options, f" {source} to {destination}", pair.index(self.rank()), 2)
            channel = self._pairs.setdefault(pair, Channel(join, self._pool, self._how, options.pieces))
            if self._aborted is not None:
                channel.close(self._aborted)
        return channel.begin(Work(name, outputs, sends, receives, tag, pair))


def _join(shared: rails.Client, name: str, key: str, timeout: float, options: Options, suffix: str, rank: int,
          size: int, **gpu: Any) -> rails.Group:
    return shared.join(name + suffix, rank, size, key=key, timeout=timeout, recovery=options.recovery,
                       wait_limit=options.wait_limit, restart_limit=options.restart_limit, **gpu)


def _join_gpu(join: Callable[..., rails.Group], options: Options, rank: int, size: int, device: torch.device) -> rails.Group:
    """Joins the group for tensors of a GPU."""
    if options.recovery == "degrade":
        raise rails.InvalidArgumentError("Options(recovery='degrade'): a group on GPUs cannot lose ranks; use 'fail' or 'wait'")
    place = client(options.socket_dir), device.index, options.driver
    gpu = _gpus.get(place)
    if gpu is None:  # kept: the driver gives the memory of its waits back at the exit only
        gpu = _gpus.setdefault(place, place[0].open_device(device.index, driver=options.driver))
    return join(options, " cuda", rank, size, device=gpu, slice_bytes=options.slice_bytes, slices=options.slices)


def _parts(tensors: Sequence[torch.Tensor], whole: torch.Tensor | None = None) -> Parts:
    """A tensor for each rank."""
    return Parts(dict(enumerate(tensors)), whole)


def _gpu_of(name: str, sends: Parts, receives: Parts) -> torch.device | None:
    """The GPU on which the tensors are. None: they are in the processor's memory."""
    tensors = sends.tensors + receives.tensors
    for tensor in tensors:
        if not tensor.is_cpu:
            return _one_gpu(name, tensors)
    return None


def _one_gpu(name: str, tensors: list[torch.Tensor]) -> torch.device:
    for tensor in tensors:
        if not tensor.is_cpu and not tensor.is_cuda:
            raise ValueError(f"{name}: a tensor on {tensor.device}; the backend rails takes tensors on cpu and cuda")
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise ValueError(f"{name}: tensors on {' and '.join(devices)} in one operation; all must be on one device")
    return tensors[0].device


def _refuse(operation: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"the backend rails has no {operation}: it is for expert groups only. Build the default group with "
                           "gloo or nccl, and use it for that")
    return refuse


for _name in ("allreduce", "allreduce_coalesced", "broadcast", "gather", "recv_anysource", "reduce", "reduce_scatter",
              "_reduce_scatter_base", "scatter"):
    setattr(ProcessGroup, _name, _refuse(_name))


def _create(given: Any, options: Options | None) -> ProcessGroup:
    return ProcessGroup(given.store, given.group_rank, given.group_size, given.timeout, options or Options(), given.group_id)


_devices = {"devices": ["cpu", "cuda"]} if "devices" in inspect.signature(dist.Backend.register_backend).parameters else {}  # torch 2
dist.Backend.register_backend("rails", _create, extended_api=True, **_devices)
