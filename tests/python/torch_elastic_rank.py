"""A rank of test_torch_start.py, started with the variables that torchelastic gives its workers. In its first attempt it waits for an
exchange in which rank 1 is missing, and says what comes of it."""

import datetime
import os
import signal
import sys

import torch.distributed as dist

import rails
import rails.torch
from torch_start import Exchange

LIMIT = datetime.timedelta(seconds=100)


def main():
    dist.init_process_group("gloo", timeout=LIMIT)
    group = dist.new_group(backend="rails", timeout=LIMIT)
    Exchange(group).check()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        exchange = None if dist.get_rank() == 1 else Exchange(group)
        print("begun", flush=True)
        if exchange is None:
            signal.pause()  # until the test kills it
        try:
            exchange.work.wait()
        except rails.UnavailableError as error:
            print("lost", error.ranks)
        sys.exit(1)
    dist.barrier(group)
    print("well")
    dist.destroy_process_group()


main()
