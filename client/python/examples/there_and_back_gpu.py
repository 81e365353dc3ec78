#!/usr/bin/python3
"""Tokens to the memory of GPUs and back, every element checked.

    there_and_back_gpu.py [--driver LIBRARY] RANK WORLD SOCKET_DIR

Each rank is a process with GPU 0. A first job brings tokens from shared memory of each rank into arrays on the GPUs of all
ranks, a second one brings them back. The second one begins on the GPU's stream, when the first one has ended. A trainer
gives its own tensors and stream instead: torch.cuda.current_stream().
"""

import argparse
import sys

import numpy as np

import rails

HIDDEN = 256  # elements of a token
STREAM = 0  # the default stream


def counts(world):
    """Tokens from each rank to each, of shape (world, world): unequal, like a router of experts."""
    source, target = np.indices((world, world))
    return 20 * ((7 * source + 5 * target) % 4) + source


def run(rank, world, options):
    to, source = counts(world)[rank], counts(world)[:, rank]
    with rails.connect(options.sockets, name=f"there_and_back_gpu.py rank {rank}", timeout=30) as client:
        device = client.open_device(driver=options.driver)
        tokens, returned = (client.empty((to.sum(), HIDDEN), np.float32) for _ in range(2))
        experts = device.empty((source.sum(), HIDDEN), np.float32)
        tokens[:] = np.random.default_rng(rank).random(tokens.shape, np.float32)
        with client.join("there_and_back_gpu.py", rank, world, device=device, timeout=30) as group:
            there = group.all_to_all_v(tokens, to, experts, source, stream=STREAM)
            there.wait_on(STREAM)  # kernels that work on `experts` would come now
            back = group.all_to_all_v(experts, source, returned, to, stream=STREAM)
            for work in (there, back):
                report = work.wait(timeout=30)
                print(f"rank {rank} job {report.seq}: sent {report.bytes_sent} bytes, received {report.bytes_received}")
        if not (returned == tokens).all():
            raise AssertionError(f"rank {rank} got wrong tokens back")
    print(f"rank {rank}: every token is right")


def main():
    parser = argparse.ArgumentParser(description="Moves tokens to GPUs and back, and checks them.")
    parser.add_argument("--driver", default="libcuda.so.1", metavar="LIBRARY", help="library of the driver (default libcuda.so.1)")
    parser.add_argument("rank", type=int, metavar="RANK", help="rank of this process")
    parser.add_argument("world", type=int, metavar="WORLD", help="number of ranks")
    parser.add_argument("sockets", metavar="SOCKET_DIR", help="the folder of a daemon's sockets")
    options = parser.parse_args()
    if not 0 <= options.rank < options.world:
        parser.error("RANK must be from 0 to WORLD - 1")
    try:
        run(options.rank, options.world, options)
    except rails.RailsError as error:
        print(f"rank {options.rank}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
