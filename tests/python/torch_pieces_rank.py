"""A rank of test_torch.py: RANK WORLD STORE. Operations that copy much are cut into several jobs; then those of torch_rank.py
are, however short they are."""

import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import rails
import rails.torch
from rails import _torch_channel, _torch_staging

RANK, WORLD, STORE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def check_votes(group):
    """One rank copies much, and all cut from the next operation on: also those whose own parts are short."""
    rows = 6 << 20
    long = [[rows if (source, target) == (0, 1) else 3 for target in range(WORLD)] for source in range(WORLD)]
    out, into = long[RANK], [row[RANK] for row in long]
    sent = torch.cat([torch.arange(count, dtype=torch.int32).add_(100 * RANK + target).to(torch.uint8)
                      for target, count in enumerate(out)])
    expected = torch.cat([torch.arange(count, dtype=torch.int32).add_(100 * source + RANK).to(torch.uint8)
                          for source, count in enumerate(into)])
    copied = [3 * (WORLD - 1), 3 * (WORLD - 1)]  # a rank copies to itself without staging
    copied[0] += rows - 3 if RANK == 0 else 0
    copied[1] += rows - 3 if RANK == 1 else 0
    for turn, jobs in enumerate((0, 3, 3)):
        received = torch.zeros(len(expected), dtype=torch.uint8)
        work = dist.all_to_all_single(received, sent, into, out, group=group, async_op=True)
        assert work.wait() and torch.equal(received, expected), turn
        report = work.report
        assert (report.slices, report.copied_out_bytes, report.copied_in_bytes) == (jobs, *copied), (turn, report)
        assert (report.bytes_sent, report.bytes_received, report.highest_vote) == (sum(out), sum(into), 0), (turn, report)
    dist.barrier(group)
    # Splits that disagree fail at every rank, and the group goes on.
    wrong = dist.all_to_all_single(torch.zeros(WORLD * 100), torch.zeros(WORLD * 100 + RANK), None, [100] * (WORLD - 1) + [100 + RANK],
                                   group=group, async_op=True)
    try:
        wrong.wait()
        raise AssertionError("splits that disagree are not refused")
    except rails.InvalidArgumentError:
        pass
    dist.all_to_all_single(received.zero_(), sent, into, out, group=group)
    assert torch.equal(received, expected)


def check_shared(group):
    """Shared tensors are not copied, and their operations not cut."""
    sent, received = (rails.torch.empty(WORLD << 20, dtype=torch.int64) for _ in range(2))
    for _ in range(3):
        work = dist.all_to_all_single(received.zero_(), sent.fill_(RANK), group=group, async_op=True)
        assert work.wait() and received.view(WORLD, -1)[:, 5].tolist() == list(range(WORLD))
        assert (work.report.slices, work.report.copied_out_bytes, work.report.copied_in_bytes) == (0, 0, 0), work.report


def main():
    dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=WORLD)
    check_shared(dist.new_group(backend="rails"))
    check_votes(dist.new_group(backend="rails", pg_options=rails.torch.Options(urgent=RANK == 0)))
    dist.barrier()
    dist.destroy_process_group()
    _torch_channel.MANY_BYTES, _torch_staging._SHORT_BYTES, _torch_staging._CUT_BYTES = 0, 1, 1
    sys.argv[3] += " again"
    runpy.run_path(str(Path(__file__).parent / "torch_rank.py"), run_name="__main__")


main()
