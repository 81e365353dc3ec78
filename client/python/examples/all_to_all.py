#!/usr/bin/python3
"""An all-to-all(v) of N ranks through running daemons, every element checked.

    all_to_all.py [--world N] [--rank R] [--rounds M] [--wait SECONDS] SOCKET_DIR...

Rank r uses the daemon in socket directory number r modulo the number of directories. Without --rank all N ranks run here,
one thread each. With --rank only that rank runs here; the others run in other processes or on other nodes.
"""

import argparse
import concurrent.futures
import sys

import numpy as np

import rails

HIDDEN = 256  # elements of a token


def counts(world):
    """Tokens from each rank to each, of shape (world, world): unequal, like a router of experts."""
    source, target = np.indices((world, world))
    return 20 * ((7 * source + 5 * target) % 4) + source


def token(source, target, number, turn):
    """The token `number` from a rank to another; arrays of them broadcast."""
    return 1000 * source + 100 * target + number + 10000 * turn


def run(rank, options):
    tokens = counts(options.world)
    to, source = tokens[rank], tokens[:, rank]
    sockets = options.sockets[rank % len(options.sockets)]
    with rails.connect(sockets, name=f"all_to_all.py rank {rank}", timeout=options.wait) as client:
        send = client.empty((to.sum(), HIDDEN), np.float32)
        receive = client.empty((source.sum(), HIDDEN), np.float32)
        with client.join("all_to_all.py", rank, options.world) as group:
            for turn in range(options.rounds):
                for peer, rows in enumerate(np.split(send, to.cumsum()[:-1])):
                    rows[:] = token(rank, peer, np.arange(to[peer]), turn)[:, None]
                work = group.all_to_all_v(send, to, receive, source, tag=turn)
                report = work.wait(timeout=60)
                for peer, rows in enumerate(np.split(receive, source.cumsum()[:-1])):
                    if not (rows == token(peer, rank, np.arange(source[peer]), turn)[:, None]).all():
                        raise AssertionError(f"round {turn}: rank {rank} has wrong tokens from rank {peer}")
                print(f"rank {rank} job {report.seq}: sent {report.bytes_sent} bytes, received {report.bytes_received}, "
                      f"{report.elapsed * 1e3:.3f} ms")


def main():
    parser = argparse.ArgumentParser(description="Exchanges tokens between ranks and checks them.")
    parser.add_argument("--world", type=int, default=4, help="number of ranks (default 4)")
    parser.add_argument("--rank", type=int, help="the only rank to run here")
    parser.add_argument("--rounds", type=int, default=2, help="exchanges (default 2)")
    parser.add_argument("--wait", type=float, default=10, help="seconds to wait for a daemon (default 10)")
    parser.add_argument("sockets", nargs="+", metavar="SOCKET_DIR", help="the folder of a daemon's sockets")
    options = parser.parse_args()
    ranks = range(options.world) if options.rank is None else [options.rank]
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as threads:
        try:
            list(threads.map(lambda rank: run(rank, options), ranks))
        except rails.RailsError as error:
            print(error, file=sys.stderr)
            return 1
    print("every token is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
