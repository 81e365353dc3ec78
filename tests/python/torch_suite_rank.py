"""A rank of test_torch.py: RANK WORLD STORE. PyTorch's own tests of all-to-all and barrier, which it ships, over rails."""

import logging
import os
import sys
import types
import unittest
import warnings

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
# Its tests of all-to-all on a CPU are for this backend alone; its barrier's ranks are told the time by broadcast.
os.environ.update(BACKEND="mpi", WORLD_SIZE=str(WORLD), TEMP_DIR=os.path.dirname(sys.argv[3]))
warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 under Python 3.13
# PyTorch's test classes import this package, which Debian 12 does not have. It compares long texts.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False))

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

import rails.torch  # noqa: E402,F401

broadcast, twins = dist.broadcast, {}


def new_group(ranks):
    """A group of rails, and one of Gloo for broadcasts, which expert groups do not have."""
    ours = dist.new_group(ranks, backend="rails")
    twin = dist.new_group(ranks)
    if RANK in ranks:
        twins[ours] = twin
    return ranks if RANK in ranks else [], ours if RANK in ranks else None, RANK


class Suite(distributed_test.DistributedTest._DistTestBase, TestCase):
    rank, world_size = RANK, WORLD

    def _barrier(self, *_, **__):
        dist.barrier()

    def _init_global_test(self):
        return new_group(list(range(WORLD)))

    def _init_group_test(self, **_):
        return new_group([1, 2])

    def _init_full_group_test(self, **_):
        return new_group(list(range(WORLD)))


def main():
    logging.disable(logging.INFO)  # which distributed_test turns on
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=RANK, world_size=WORLD)
    distributed_test.PROFILING_SUPPORTED_BACKENDS = []  # by the default group's name, which is Gloo's
    distributed_test.dist.broadcast = lambda tensor, source, group: broadcast(tensor, source, twins[group])
    names = [name for name in sorted(dir(Suite)) if name.startswith(("test_all_to_all", "test_barrier"))
             and "cuda" not in name and "timeout" not in name]
    result = unittest.TextTestRunner(stream=open(os.devnull, "w"), failfast=True).run(unittest.TestSuite(map(Suite, names)))
    for test, text in result.failures + result.errors + result.skipped:
        print(test, text)
    assert result.testsRun == len(names) and len(names) >= 13, names
    dist.destroy_process_group()


main()
