"""A rank of test_torch.py: RANK WORLD STORE. Every operation runs over Gloo and over rails, with the same result."""

import datetime
import functools
import importlib.util
import math
import os
import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

import rails
import rails.torch

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
LATE = 3  # seconds that a group allows for joining it, and for an operation in which a rank is missing
DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.complex64]


def tensors(shape, dtype):
    """The same values in private memory, in shared memory, and in private memory that is not contiguous."""
    values = torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)
    scattered = torch.empty((*shape, 2), dtype=dtype)[..., 0]
    return values, rails.torch.empty(*shape, dtype=dtype).copy_(values), scattered.copy_(values)


def expect(error, text, call, *arguments, **options):
    """The error that a call raises."""
    try:
        call(*arguments, **options)
    except error as caught:
        assert text in str(caught), caught
        return caught
    raise AssertionError(f"{call} is not refused")


def check_all_to_all(gloo, group):
    splits = torch.tensor([[(3 * source + 2 * target) % 4 for target in range(WORLD)] for source in range(WORLD)])
    for dtype in DTYPES:
        for out, into in (([], []), (splits[RANK].tolist(), splits[:, RANK].tolist()), ([0] * WORLD, [0] * WORLD)):
            send, receive = ((sum(counts) if counts else 3 * WORLD, 5) for counts in (out, into))
            expected = torch.zeros(receive, dtype=dtype)
            inputs, outputs = tensors(send, dtype), tensors(receive, dtype)
            dist.all_to_all_single(expected.view(torch.uint8), inputs[0].view(torch.uint8), into, out, group=gloo)  # Gloo lacks types
            for given in inputs:
                for output in outputs:
                    if dtype is torch.complex64 and not output.is_contiguous():
                        continue  # torch refuses it
                    dist.all_to_all_single(output.zero_(), given, into, out, group=group)
                    assert torch.equal(output, expected), (dtype, output, expected)
    for name in ("float64", "float16", "int8", "int16", "int32", "int64", "uint8", "complex128", "float8_e4m3fn", "uint16"):
        if hasattr(torch, name):  # those of torch 2 are numbers without arithmetic
            dtype, bits = getattr(torch, name), torch.randint(0, 256, (16 * WORLD,), dtype=torch.uint8)
            outputs = [torch.zeros(16 * WORLD, dtype=torch.uint8) for _ in range(2)]
            dist.all_to_all_single(outputs[0], bits, group=gloo)
            dist.all_to_all_single(outputs[1].view(dtype), bits.view(dtype), group=group)
            assert torch.equal(*outputs), name
    lists = [[torch.full((2 + source, peer + 1), 10 * source + peer) for peer in range(WORLD)] for source in range(WORLD)]
    outputs = [torch.zeros_like(lists[peer][RANK]) for peer in range(WORLD)]
    dist.all_to_all(outputs, lists[RANK], group=group)
    assert all(torch.equal(output, lists[peer][RANK]) for peer, output in enumerate(outputs))
    for dtype in DTYPES[:3]:
        for size in (1, 0):  # rank 0 sends less to itself than it expects
            counts = [[size if RANK == 0 else 0] + [0] * (WORLD - 1), [4 if RANK == 0 else 0] + [0] * (WORLD - 1)]
            for given in tensors((counts[0][0],), dtype):
                expect(rails.InvalidArgumentError, "rank 0 on n0 sends", dist.all_to_all_single, torch.zeros(counts[1][0], dtype=dtype), given,
                       *counts[::-1], group=group)
    values = torch.arange(WORLD) + 10.0 * RANK
    for given in (values, rails.torch.empty(WORLD).copy_(values)):
        landed = torch.zeros(WORLD)
        dist.all_to_all_single(landed, torch._neg_view(given), group=group)  # its memory has other values
        assert torch.equal(landed, -(10.0 * torch.arange(WORLD) + RANK)), landed
    same = torch.arange(WORLD * (WORLD + 1) // 2) + 100 * RANK  # output and input, with parts of different lengths
    counts = [1 + (peer + RANK) % WORLD for peer in range(WORLD)]
    expected = torch.zeros_like(same)
    dist.all_to_all_single(expected, same.clone(), counts, counts, group=gloo)
    shared = rails.torch.empty(len(same), dtype=same.dtype).copy_(same)
    beyond = rails.torch.empty(len(same) + 1, dtype=same.dtype)
    beyond[:-1] = same
    dist.all_to_all_single(same, same, counts, counts, group=group)
    dist.all_to_all_single(shared, shared, counts, counts, group=group)
    dist.all_to_all_single(beyond[1:], beyond[:-1], counts, counts, group=group)
    assert torch.equal(same, expected) and torch.equal(shared, expected) and torch.equal(beyond[1:], expected), (same, shared, beyond)
    memory = rails.torch.empty(WORLD, 4)  # the own part lands where another part is sent from
    memory[:] = 10.0 * RANK + torch.arange(WORLD)[:, None]
    outputs = [torch.zeros(4) for _ in range(WORLD)]
    outputs[RANK] = memory[(RANK + 1) % WORLD]
    dist.all_to_all(outputs, list(memory), group=group)
    assert all(bool((output == 10 * peer + RANK).all()) for peer, output in enumerate(outputs)), outputs
    for _ in range(20):  # the own part is sent from where another part lands, and others from memory that is not shared
        memory[:] = -1
        memory[(RANK + 1) % WORLD] = 1000.0 + RANK
        inputs = [torch.full((4,), 10.0 * RANK + peer) for peer in range(WORLD)]
        inputs[RANK] = memory[(RANK + 1) % WORLD]
        dist.all_to_all(list(memory), inputs, group=group)
        assert all(bool((part == (1000 + RANK if peer == RANK else 10 * peer + RANK)).all()) for peer, part in enumerate(memory)), memory
    expect(ValueError, "single number", dist.all_to_all_single, torch.tensor(1.0), torch.empty(WORLD), group=group)
    expect(ValueError, "divide evenly", dist.all_to_all_single, torch.empty(WORLD), torch.empty(WORLD + 1), group=group)
    expect(ValueError, "add up", dist.all_to_all_single, torch.empty(WORLD), torch.empty(WORLD), [1] * WORLD, [2] * WORLD, group=group)


def check_overlaps(group):
    """Parts that overlap parts of the other side at other lengths, where some are shared."""
    lengths = [[120 + 60 * ((source + 2 * target) % 3) for target in range(WORLD)] for source in range(WORLD)]

    def part(source, target):
        return torch.arange(lengths[source][target]) % 7 + 10 * target + 100 * source

    def views(memory, sizes, private):
        """One part after the other; those of `private` ranks are elsewhere."""
        return [part.clone() if rank in private else part for rank, part in enumerate(memory[:sum(sizes)].split(sizes))]
    into = [row[RANK] for row in lengths]
    for private_inputs, private_outputs in (({0}, ()), ((), {1}), ({1, 2}, ()), ((), {0, 3}), ((), ())):
        memory = rails.torch.empty(2000, dtype=torch.int64)
        memory[:sum(lengths[RANK])] = torch.cat([part(RANK, target) for target in range(WORLD)])
        inputs, outputs = views(memory, lengths[RANK], private_inputs), views(memory[37:], into, private_outputs)
        dist.all_to_all(outputs, inputs, group=group)
        assert all(torch.equal(output, part(source, RANK)) for source, output in enumerate(outputs)), (private_inputs, private_outputs)


def check_outputs_that_cannot_be_written(group):
    """The operation fails where its output is, and the group goes on. Threads of a group have not the caller's modes."""
    twice = torch.zeros(1).expand(3)
    inputs = [torch.full((3,), 10.0 * RANK + peer) for peer in range(WORLD)]
    for number in range(WORLD):  # the own output among others
        outputs = [torch.zeros(3) for _ in range(WORLD)]
        outputs[number] = twice if RANK == 0 else outputs[number]
        work = dist.all_to_all(outputs, inputs, group=group, async_op=True)
        if RANK:
            work.wait()
            assert [int(output[2]) for output in outputs] == [10 * peer + RANK for peer in range(WORLD)]
        elif number == RANK or torch.__version__ < "2":
            error = expect(RuntimeError, "", work.wait)
            assert work.is_completed() and not work.is_success() and work.exception() is error
    with torch.inference_mode():
        kept = torch.arange(2.0 * WORLD).view(WORLD, 2) + 100 * RANK
        landed = torch.zeros(WORLD, 2)
        works = [dist.all_to_all_single(output[:, 0], given[:, 0], group=group, async_op=True)
                 for output, given in ((landed, kept), (landed[:, 1:], kept[:, 1:]))]
        for work in works:
            work.wait()
        assert landed[:, 1].tolist() == [100.0 * peer + 2 * RANK + 1 for peer in range(WORLD)]
    shared = rails.torch.empty(3)  # one rank's own mistake
    outputs = [shared if RANK == 0 and peer < 2 else torch.zeros(3) if RANK else rails.torch.empty(3) for peer in range(WORLD)]
    if RANK == 0:
        expect(rails.InvalidArgumentError, "overlap", dist.all_to_all, outputs, inputs, group=group)
        outputs = [rails.torch.empty(3) for _ in range(WORLD)]
    dist.all_to_all(outputs, inputs, group=group)
    assert [int(output[2]) for output in outputs] == [10 * peer + RANK for peer in range(WORLD)]


def check_lists(gloo, group):
    """all_gather, and all_to_all of tensors of different shapes, which Gloo has only as all_to_all_single."""
    for dtype in DTYPES:
        inputs = tensors((3, 2), dtype)
        expected = [torch.zeros((3, 2), dtype=dtype) for _ in range(WORLD)]
        dist.all_gather([part.view(torch.uint8) for part in expected], inputs[0].view(torch.uint8), group=gloo)  # Gloo lacks types
        for given in inputs:
            for kind in range(3):
                outputs = [tensors((3, 2), dtype)[kind] for _ in range(WORLD)]
                dist.all_gather(outputs, given, group=group)
                assert all(map(torch.equal, outputs, expected)), (dtype, outputs, expected)
        shapes = [[((source + peer) % 3, source + 1, peer + 2) for peer in range(WORLD)] for source in range(WORLD)]
        out, into = shapes[RANK], [shapes[peer][RANK] for peer in range(WORLD)]
        lists = list(zip(*(tensors(shape, dtype) for shape in out)))
        counts = [[math.prod(shape) for shape in each] for each in (into, out)]
        whole = torch.zeros(sum(counts[0]), dtype=dtype)
        size = whole.element_size()
        dist.all_to_all_single(whole.view(torch.uint8), torch.cat([given.reshape(-1) for given in lists[0]]).view(torch.uint8),
                               *([count * size for count in each] for each in counts), group=gloo)
        expected = [part.view(shape) for part, shape in zip(whole.split(counts[0]), into)]
        for given in lists:
            for kind in range(3):
                outputs = [tensors(shape, dtype)[kind] for shape in into]
                dist.all_to_all(outputs, list(given), group=group)
                assert all(map(torch.equal, outputs, expected)), (dtype, outputs, expected)


def check_others(group):
    mine = torch.arange(6).reshape(2, 3) + 100 * RANK
    gathered = [torch.zeros_like(mine) for _ in range(WORLD)]
    dist.all_gather(gathered, mine, group=group)
    assert all(torch.equal(part, torch.arange(6).reshape(2, 3) + 100 * peer) for peer, part in enumerate(gathered))
    whole = torch.zeros((2 * WORLD, 3), dtype=torch.int64)
    dist.all_gather_into_tensor(whole, mine, group=group)
    assert torch.equal(whole, torch.cat(gathered))
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * RANK}, group=group)
    assert objects == [{"rank": peer, "text": "x" * peer} for peer in range(WORLD)]
    dist.all_gather_into_tensor(whole.zero_(), mine.T.contiguous().T, group=group)  # not contiguous
    assert torch.equal(whole, torch.cat(gathered))
    expect(ValueError, "ranks give 6 each", dist.all_gather_into_tensor, whole[:WORLD], mine, group=group)
    for scattered in (whole.view(3, -1).T, torch.zeros((2 * WORLD, 6), dtype=mine.dtype)[:, ::2]):
        expect(ValueError, f"({2 * WORLD}, 3) must be contiguous", dist.all_gather_into_tensor, scattered, mine, group=group)
    dist.barrier(group)
    for call, arguments in ((dist.all_reduce, (mine,)), (dist.broadcast, (mine, 0)), (dist.recv, (mine,))):
        expect(RuntimeError, "expert groups only", call, *arguments, group=group)


def check_pairs(gloo, group):
    """send and recv: all pairs, both directions at once, several under way, sizes and types."""
    peers = [peer for peer in range(WORLD) if peer != RANK]

    def message(source, target, number):
        return torch.arange(number * 1000 + 7).to([torch.bfloat16, torch.int64, torch.bool][number]) * (source + 2 * target)
    for each in (gloo, group):
        works, landed = [], {}
        for number in range(3):
            for peer in peers:  # no rank receives before all have sent: sends must not wait for the other rank to begin
                works.append(dist.isend(message(RANK, peer, number), peer, each, tag=number))
            for peer in peers:
                blank = torch.zeros_like(message(peer, RANK, number))
                landed[peer, number] = blank if number or each is gloo else torch.zeros((len(blank), 2), dtype=blank.dtype)[:, 0]
                works.append(dist.irecv(landed[peer, number], peer, each, tag=number))
        for work in works:
            work.wait()
        for (peer, number), tensor in landed.items():
            assert torch.equal(tensor, message(peer, RANK, number)), (peer, number)
    before, after, given = (RANK - 1) % WORLD, (RANK + 1) % WORLD, rails.torch.empty(5)
    requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((5,), float(RANK)), after, group),
                                       dist.P2POp(dist.irecv, given, before, group)])
    for request in requests:
        request.wait()
    assert given.tolist() == [before] * 5
    first, second = (dist.send, dist.recv) if RANK % 2 == 0 else (dist.recv, dist.send)
    for call in (first, second):
        call(given, RANK ^ 1, group)
    assert given.tolist() == [(RANK - 1 if RANK % 2 == 0 else (RANK ^ 1) - 1) % WORLD] * 5
    for peer in (RANK, WORLD):
        if peer == RANK:
            expect(ValueError, f"rank {RANK}", group.send, [given], peer)
        expect(ValueError, f"this is rank {RANK}", group.recv, [given], peer)


def check_pairs_that_disagree():
    group = dist.new_group(backend="rails")
    if RANK < 2:
        call, name = (dist.send, "send to rank 1 (1 of the two)") if RANK == 0 else (dist.recv, "recv from rank 0 (0 of the two)")
        expect(rails.InvalidArgumentError, f"operation 1, {name}: tag", call, torch.zeros(4), 1 - RANK, group, tag=RANK)
        expect(rails.InvalidArgumentError, f"operation 2, {name}: ", call, torch.zeros(4 + RANK), 1 - RANK, group)
        call(torch.zeros(4), 1 - RANK, group)
    dist.barrier()
    late = dist.new_group(backend="rails", timeout=datetime.timedelta(seconds=LATE))
    if RANK == 1:
        works = [dist.irecv(torch.zeros(4), 3, late) for _ in range(2)]
        for work in works:
            expect(rails.DeadlineExceededError, "recv from rank 3 (0 of the two)", work.wait)
            assert work.exception().ranks == (3,) and work.is_completed() and not work.is_success()
        expect(rails.DeadlineExceededError, "", dist.recv, torch.zeros(4), 3, late)
    dist.barrier()


def check_asynchronous(group):
    """Operations in a row on the same memory are serial in effect."""
    a, b = rails.torch.empty(WORLD), rails.torch.empty(WORLD)
    c = torch.empty(WORLD)
    a[:] = torch.arange(WORLD) + 10.0 * RANK
    works = [dist.all_to_all_single(b, a, group=group, async_op=True), dist.all_to_all_single(c, b, group=group, async_op=True),
             dist.all_to_all_single(a, c, group=group, async_op=True)]
    polled = torch.zeros(WORLD)
    work = dist.all_to_all_single(polled, torch.arange(WORLD) + 10.0 * RANK, group=group, async_op=True)
    while not work.is_completed():
        pass
    assert torch.equal(polled, 10.0 * torch.arange(WORLD) + RANK)  # without wait()
    future = works[2].get_future()
    assert future.wait()[0] is a
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(c, torch.arange(WORLD) + 10.0 * RANK)
    assert torch.equal(a, b) and torch.equal(b, 10.0 * torch.arange(WORLD) + RANK)


def check_order(group):
    """Operations that wait for those before them let the caller go on, also to another group that the others use first."""
    other = dist.new_group(backend="rails")
    chain = [torch.arange(WORLD) + 10 * RANK] + [torch.zeros(WORLD, dtype=torch.int64) for _ in range(9)]
    if RANK == 0:
        dist.barrier(other)
    before = group._get_sequence_number_for_group()
    works = [dist.all_to_all_single(into, out, group=group, async_op=True) for out, into in zip(chain, chain[1:])]
    if RANK != 0:
        dist.barrier(other)
    assert works[-1].wait(datetime.timedelta(seconds=60)) and all(work.is_completed() for work in works)
    for number, tensor in enumerate(chain):
        assert torch.equal(tensor, torch.arange(WORLD) + 10 * RANK if number % 2 == 0 else 10 * torch.arange(WORLD) + RANK)
    group._set_sequence_number_for_group()
    assert group._get_sequence_number_for_group() == before + len(works)


def check_threads():
    """Two groups at once: a thread of each goes forward and backward."""
    groups, gradients = [dist.new_group(backend="rails") for _ in range(2)], [None] * 2

    def run(number, group):
        weights = torch.arange(8.0 * WORLD).add(number + RANK).requires_grad_()
        total = 0
        for _ in range(10):
            landed = differentiable.all_to_all_single(torch.zeros(8 * WORLD), weights * weights, group=group)
            total = total + (landed * (RANK + 1)).sum()
        total.backward()
        gradients[number] = weights.grad
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scale = torch.arange(1.0, WORLD + 1).repeat_interleave(8)
    for number in range(2):
        assert torch.equal(gradients[number], 20 * scale * (torch.arange(8.0 * WORLD) + number + RANK))


def check_detail():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL finds ranks that call different operations."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(backend="rails")  # looks for the level once
    a, b = torch.zeros(WORLD), torch.zeros(WORLD)
    dist.all_to_all_single(a, b, group=group)
    dtype = torch.int32 if RANK == 1 else torch.float32
    error = expect(rails.InvalidArgumentError, f"operation 2, all_to_all_single of {dtype}", dist.all_to_all_single, a.to(dtype),
                   b.to(dtype), group=group)
    assert ": tag: rank" in error.text, error
    name, call, arguments = (("barrier", dist.barrier, []) if RANK else
                             ("all_gather_into_tensor of torch.float32", dist.all_gather_into_tensor, [a[:0], b[:0]]))
    assert ": tag: rank" in expect(rails.InvalidArgumentError, f"operation 3, {name}", call, *arguments, group=group).text
    dist.barrier(group)
    dist.set_debug_level(dist.DebugLevel.OFF)


def check_abort():
    """A rank aborts an operation, then the group, with operations that wait and a pair that nobody else has joined."""
    group = dist.new_group(backend="rails")
    exchange = functools.partial(dist.all_to_all_single, torch.zeros(WORLD), torch.zeros(WORLD), group=group)
    first = "operation 1, all_to_all_single"
    if RANK == 0:
        works = [exchange(async_op=True) for _ in range(3)]
        works[0].abort()
        expect(rails.CancelledError, first, works[0].wait)
        dist.barrier()
        works.append(dist.irecv(torch.zeros(3), 1, group))
        dist.barrier()
        group.abort()
        dist.barrier()
        for work in works[1:]:
            expect(rails.RailsError, "operation", work.wait)
        expect(rails.CancelledError, "operation 3, all_to_all_single: this rank has aborted the group", works[2].wait)
        for call, arguments in ((dist.barrier, ()), (dist.recv, (torch.zeros(3), 1)), (dist.send, (torch.zeros(3), 1))):
            expect(rails.CancelledError, "this rank has aborted the group", call, *arguments, group=group)
    else:
        dist.barrier()
        expect(rails.CancelledError, first, exchange)
        # The last rank joins when rank 0 has gone: an operation that all have joined may be over before the abort.
        late = RANK == WORLD - 1
        work = None if late else exchange(async_op=True)
        dist.barrier()
        dist.barrier()
        expect(rails.RailsError, "rank 0", exchange if late else work.wait)


def check_loss():
    """The last rank dies; the others hear of it in what is under way and in what comes, as members and as receivers."""
    group, last = dist.new_group(backend="rails"), WORLD - 1
    if RANK == last:
        for peer in range(last):
            dist.send(torch.ones(3), peer, group)
    else:
        dist.recv(torch.zeros(3), last, group)
        works = [dist.barrier(group, async_op=True), dist.irecv(torch.zeros(3), last, group)]
    dist.barrier()
    if RANK == last:
        os._exit(0)
    for work in works:
        expect(rails.UnavailableError, "is gone", work.wait)
        assert work.exception().ranks == (last,), work.exception()
    for error in (expect(rails.FailedPreconditionError, f"rank {last}", dist.barrier, group),
                  expect(rails.RailsError, f"recv from rank {last}", dist.recv, torch.zeros(3), last, group)):
        assert error.ranks == (last,) and "join again" not in error.text, error
    assert "make a new group (dist.new_group)" in expect(rails.FailedPreconditionError, "", dist.barrier, group).text


def check_gradients(gloo, group):
    out, into = [RANK + 1] * WORLD, list(range(1, WORLD + 1))
    results = []
    for each in (gloo, group):
        torch.manual_seed(RANK)
        weights = torch.randn((sum(out), 8), requires_grad=True)
        landed = differentiable.all_to_all_single(torch.zeros((sum(into), 8)), weights, into, out, group=each)
        (landed * torch.arange(8) * (RANK + 1)).sum().backward()
        results.append((landed.detach(), weights.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results))


def check_functional(group):
    """The collectives of torch 2 for compilers."""
    if importlib.util.find_spec("torch.distributed._functional_collectives") is None:
        return
    from torch.distributed import _functional_collectives as functional
    landed = functional.all_to_all_single(torch.arange(WORLD) + 10 * RANK, None, None, group)
    assert torch.equal(functional.wait_tensor(landed), 10 * torch.arange(WORLD) + RANK)


def check_groups():
    """Subgroups, many groups, a rank that does not come."""
    pairs = [dist.new_group([first, first + 1], backend="rails") for first in range(0, WORLD, 2)]
    output = torch.zeros(2)
    dist.all_to_all_single(output, torch.tensor([RANK, RANK + 100.0]), group=pairs[RANK // 2])
    first = RANK // 2 * 2
    assert output.tolist() == [first + 100 * (RANK % 2), first + 1 + 100 * (RANK % 2)]
    dist.recv(output, first, pairs[RANK // 2]) if RANK % 2 else dist.send(output, RANK + 1, pairs[RANK // 2])
    assert output.tolist() == [first, first + 1]
    for number in range(200):  # more than a daemon may have at a time
        group = dist.new_group(backend="rails", pg_options=rails.torch.Options(recovery="degrade"))
        dist.barrier(group)
        if number < 20 and RANK < 2:
            (dist.recv if RANK else dist.send)(output, 1 - RANK, group)
        dist.destroy_process_group(group)
    late = dist.new_group(backend="rails", timeout=datetime.timedelta(seconds=LATE))
    if RANK != 1:
        missing = expect(rails.DeadlineExceededError, "", dist.barrier, late).ranks
        assert 1 in missing and missing in [(1,), (1, 3)], missing  # another node may know no more than that ranks of n1 are missing
    dist.barrier()


def main():
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=RANK, world_size=WORLD)
    gloo, group = dist.group.WORLD, dist.new_group(backend="rails")
    assert dist.get_backend(group) == "rails" and dist.get_rank(group) == RANK
    torch.manual_seed(RANK)
    check_all_to_all(gloo, group)
    check_overlaps(group)
    check_outputs_that_cannot_be_written(group)
    check_lists(gloo, group)
    check_others(group)
    check_pairs(gloo, group)
    check_pairs_that_disagree()
    check_asynchronous(group)
    check_order(group)
    check_gradients(gloo, group)
    check_threads()
    check_functional(group)
    check_detail()
    check_abort()
    check_groups()
    check_loss()
    dist.destroy_process_group()


main()
