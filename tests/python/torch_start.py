"""Processes of test_torch_start.py: METHOD WORLD STORE SOCKETS... starts WORLD ranks with torch.multiprocessing. They exchange over the
first daemon, then over all, and fork children meanwhile."""

import atexit
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader

import rails.torch


class Exchange:
    """An uneven all_to_all_single under way. Rows say where they come from and where they go."""

    def __init__(self, group):
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        out, into = ([(source + 2 * target) % 3 for source, target in pairs] for pairs in
                     ([(self.rank, peer) for peer in range(self.world)], [(peer, self.rank) for peer in range(self.world)]))
        self.expected = torch.tensor([peer * 100 + self.rank for peer in range(self.world)]).repeat_interleave(torch.tensor(into))
        self.output = torch.full((sum(into), 3), -1)
        rows = torch.tensor([self.rank * 100 + peer for peer in range(self.world)]).repeat_interleave(torch.tensor(out))
        self.work = dist.all_to_all_single(self.output, rows[:, None].expand(-1, 3), into, out, group=group, async_op=True)

    def check(self):
        self.work.wait()
        assert torch.equal(self.output, self.expected[:, None].expand(-1, 3)), (self.output, self.expected)


def fork_children():
    """Workers of a DataLoader, and a child that calls what the rank itself calls at its exit."""
    assert torch.cat(list(DataLoader(range(6), 2, num_workers=2, multiprocessing_context="fork"))).tolist() == list(range(6))
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(0)  # as workers do: Gloo's groups hang where none of their threads are
    assert os.waitpid(child, 0)[1] == 0


def run(rank, world, store, sockets):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for daemons in (sockets[:1], sockets):
        group = dist.new_group(backend="rails", pg_options=rails.torch.Options(socket_dir=daemons[rank % len(daemons)]))
        Exchange(group).check()
        exchange = None if rank % 2 else Exchange(group)  # is under way while they fork
        fork_children()
        dist.barrier()
        exchange = exchange or Exchange(group)
        exchange.check()
        dist.barrier(group)
    dist.destroy_process_group()


def main():
    method, world, store, *sockets = sys.argv[1:]
    memory = rails.torch.empty(3, socket_dir=sockets[0]).fill_(5)  # with a client that forked ranks must not use
    torch.multiprocessing.start_processes(run, (int(world), store, sockets), int(world), start_method=method)
    assert rails.torch.client(sockets[0]).connected and memory.tolist() == [5, 5, 5]


if __name__ == "__main__":
    main()
