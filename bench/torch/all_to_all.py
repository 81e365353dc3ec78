"""All ranks of the same `all_to_all_single` through the backend rails and through Gloo, in turns. Enters the nodes of a
fabric if it is given one, which needs root.

Prints one JSON object a line for each matrix: seconds of the operations by way, and the words that were wrong. Ways: `gloo`;
`shared`, rails with tensors of rails.torch.empty(); `ordinary`, rails with other tensors.
"""

import argparse
import ctypes
import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

CLONE_NEWNET = 0x40000000
MULTIPLIER = 2654435761
WORD = 8
LEAD = 0.02  # seconds until an operation begins
PATIENCE = datetime.timedelta(minutes=5)


def content(turn, source, destination, words):
    return torch.arange(words, dtype=torch.int64) * MULTIPLIER + (turn << 48) + (source << 40) + (destination << 32)


def reduced(value, how):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=how)
    return float(tensor[0])


class Way:
    """One way to exchange a matrix of words."""

    def __init__(self, empty, group, rank, rows):
        self.group, self.rank = group, rank
        self.sends, self.receives = [length // WORD for length in rows[rank]], [row[rank] // WORD for row in rows]
        self.sent, self.received = empty(sum(self.sends)), empty(sum(self.receives))

    def seconds(self, turn):
        """The time of one operation, the same at all ranks."""
        parts = [content(turn, self.rank, other, words) for other, words in enumerate(self.sends)]
        torch.cat(parts, out=self.sent)
        self.received.fill_(0x5555555555555555)
        # Ranks leave a barrier milliseconds apart. They begin at one time instead, because the machine has one clock.
        start = reduced(time.monotonic(), dist.ReduceOp.MAX) + LEAD
        time.sleep(max(start - time.monotonic(), 0))
        begin = time.monotonic()
        dist.all_to_all_single(self.received, self.sent, self.receives, self.sends, group=self.group)
        end = time.monotonic()
        return reduced(end, dist.ReduceOp.MAX) - reduced(begin, dist.ReduceOp.MIN)

    def wrong_words(self, turn):
        parts = [content(turn, other, self.rank, words) for other, words in enumerate(self.receives)]
        return int((self.received != torch.cat(parts)).sum())


def run(path, rank, groups, options):
    import rails.torch  # pylint: disable=import-outside-toplevel
    with open(path, encoding="ascii") as file:
        rows = [[int(float(cell)) for cell in line.split(",")] for line in file]

    def ordinary(words):
        return torch.empty(words, dtype=torch.int64)

    def shared(words):
        return rails.torch.empty(words, dtype=torch.int64)

    ways = {"shared": Way(shared, groups["shared"], rank, rows), "ordinary": Way(ordinary, groups["ordinary"], rank, rows),
            "gloo": Way(ordinary, groups["gloo"], rank, rows)}
    seconds, wrong = {name: [] for name in ways}, 0
    for turn in range(options.warmup + options.turns):
        for name, way in ways.items():
            took = way.seconds(turn)
            wrong += way.wrong_words(turn)
            if turn >= options.warmup:
                seconds[name].append(took)
    wrong = reduced(wrong, dist.ReduceOp.SUM)
    if rank == 0:
        print(json.dumps({"wrong_words": int(wrong), "seconds": seconds}), flush=True)


def one_rank(rank, options):
    node = rank // options.ranks_per_node
    if options.prefix:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{options.prefix}n{node}", "rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the node")
    import rails.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    world = len(options.sockets) * options.ranks_per_node
    os.environ["GLOO_SOCKET_IFNAME"] = options.management  # barriers and times
    host, port = options.store.split(":")
    store = dist.TCPStore(host, int(port), world, rank == 0, PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface  # read when the next group is made
    os.environ["RAILS_SOCKET_DIR"] = options.sockets[node]
    backends = {"gloo": "gloo", "shared": "rails", "ordinary": "rails"}
    groups = {way: dist.new_group(backend=backend, timeout=PATIENCE) for way, backend in backends.items()}
    for path in options.matrix:
        run(path, rank, groups, options)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sockets", action="append", required=True, help="socket folder of a node's daemon; once for each node")
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--prefix", help="prefix of the fabric's namespaces")
    parser.add_argument("--store", required=True, help="HOST:PORT for the rendezvous")
    parser.add_argument("--management", default="lo")
    parser.add_argument("--interface", default="lo", help="the one that Gloo's exchanges use")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("matrix", nargs="+")
    options = parser.parse_args()
    children = []
    for rank in range(len(options.sockets) * options.ranks_per_node):  # torch is imported once for all
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
