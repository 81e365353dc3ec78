"""All ranks of the same all-to-all jobs through Gloo, as torch.distributed offers it. Needs root, to enter the nodes.

Prints one JSON object a line for each matrix, as alltoallv.c does. `--at-once K` cuts each job into K operations that
start together. Gloo gives each operation one of its devices in turn, so one operation uses only one rail.
"""

import argparse
import ctypes
import datetime
import json
import os
import resource
import signal
import sys
import time

import torch
import torch.distributed

CLONE_NEWNET = 0x40000000
STORE = ("10.250.0.1", 29500)
MULTIPLIER = 2654435761
WORD = 8


def content(job, part, source, destination, words):
    first = (job << 48) + (part << 46) + (source << 40) + (destination << 32)
    return torch.arange(words, dtype=torch.int64) * MULTIPLIER + first


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Part:
    """One operation of a job: a share of each pair's bytes."""

    def __init__(self, number, parts, rank, rows):
        def share(length):
            words = length // WORD
            return words * (number + 1) // parts - words * number // parts

        self.number, self.rank = number, rank
        self.sends, self.receives = [share(length) for length in rows[rank]], [share(row[rank]) for row in rows]
        self.sent = torch.empty(sum(self.sends), dtype=torch.int64)
        self.received = torch.empty(sum(self.receives), dtype=torch.int64)

    def fill(self, job):
        at = 0
        for other, words in enumerate(self.sends):
            self.sent[at:at + words] = content(job, self.number, self.rank, other, words)
            at += words
        self.received.fill_(0x5555555555555555)

    def start(self, group):
        return torch.distributed.all_to_all_single(self.received, self.sent, self.receives, self.sends, group=group,
                                                   async_op=True)

    def wrong_words(self, job):
        at = wrong = 0
        for other, words in enumerate(self.receives):
            wrong += int((self.received[at:at + words] != content(job, self.number, other, self.rank, words)).sum())
            at += words
        return wrong


def reduced(value, how):
    tensor = torch.tensor([value], dtype=torch.float64)
    torch.distributed.all_reduce(tensor, op=how)
    return float(tensor[0])


def run(path, rank, group, options):
    with open(path, encoding="ascii") as file:
        rows = [[int(float(cell)) for cell in line.split(",")] for line in file]
    parts = [Part(number, options.at_once, rank, rows) for number in range(options.at_once)]
    seconds, wrong, used = [], 0, 0
    for job in range(options.warmup + options.jobs):
        for part in parts:
            part.fill(job)
        torch.distributed.barrier()
        used_before, begin = processor_seconds(), time.monotonic()
        for work in [part.start(group) for part in parts]:
            work.wait()
        end = time.monotonic()
        begin = reduced(begin, torch.distributed.ReduceOp.MIN)
        duration = reduced(end, torch.distributed.ReduceOp.MAX) - begin
        if job >= options.warmup:
            seconds.append(duration)
            used += processor_seconds() - used_before
        wrong += sum(part.wrong_words(job) for part in parts)
    wrong, used = reduced(wrong, torch.distributed.ReduceOp.SUM), reduced(used, torch.distributed.ReduceOp.SUM)
    if rank == 0:
        print(json.dumps({"wrong_words": int(wrong), "processor_seconds": used, "seconds": seconds}), flush=True)


def one_rank(rank, options):
    libc = ctypes.CDLL(None, use_errno=True)
    node = rank // options.ranks_per_node
    with open(f"/run/netns/{options.prefix}n{node}", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the node")
    torch.set_num_threads(1)
    world, patience = options.nodes * options.ranks_per_node, datetime.timedelta(minutes=5)
    os.environ["GLOO_SOCKET_IFNAME"] = "mgmt"  # barriers and times
    store = torch.distributed.TCPStore(*STORE, world, rank == 0, patience)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)
    os.environ["GLOO_SOCKET_IFNAME"] = options.rails  # read when the group below is made
    group = torch.distributed.new_group(timeout=patience)
    for path in options.matrix:
        run(path, rank, group, options)
    torch.distributed.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--rails", required=True)
    parser.add_argument("matrix", nargs="+")
    options = parser.parse_args()
    children = []
    for rank in range(options.nodes * options.ranks_per_node):  # torch is imported once for all
        child = os.fork()
        if child == 0:
            try:
                one_rank(rank, options)
            except BaseException as error:  # pylint: disable=broad-except
                print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    status = 0
    for _ in children:
        _, ended = os.wait()
        if ended != 0 and status == 0:
            status = 1
            for child in children:
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    return status


if __name__ == "__main__":
    sys.exit(main())
