"""rails.Buffer, held against what NumPy alone makes of the tokens of all ranks."""

import gc
import random
import threading

import numpy as np
import pytest
import torch

import harness
import rails
from conftest import run_ranks

WORLD, EXPERTS, TOPK, HIDDEN = 4, 8, 3, 24
EACH = EXPERTS // WORLD
MIB = 1 << 20


class Case:
    """Tokens of each rank: skewed, with masked choices, tokens that go nowhere, and one rank without tokens."""

    def __init__(self, seed, dtype=np.float32):
        random = np.random.default_rng(seed)
        self.x, self.idx, self.weights = [], [], []
        for rank in range(WORLD):
            tokens = (0, 37, 5, 120)[(rank + seed) % WORLD]
            self.x.append(random.integers(-50, 50, (tokens, HIDDEN)).astype(dtype))
            skew = random.permuted(np.tile(np.arange(EXPERTS), (tokens, 1)), axis=1)[:, :TOPK]
            skew[random.random(skew.shape) < 0.3] = -1
            skew[: tokens // 4] = -1  # go nowhere
            skew[tokens // 2:, 0] = 1
            skew[:, 1:][skew[:, 1:] == 1] = -1
            self.idx.append(skew)
            self.weights.append(random.integers(1, 9, skew.shape).astype(np.float32))

    def received(self, rank):
        """(source, row, experts and weights as rank `rank` sees them), in order."""
        for source in range(WORLD):
            for row, experts in enumerate(self.idx[source]):
                here = (experts >= 0) & (experts // EACH == rank)
                if here.any():
                    yield source, row, np.where(here, experts - rank * EACH, -1), np.where(here, self.weights[source][row], 0)

    def check_dispatch(self, rank, recv_x, recv_idx, recv_weights, per_expert, alignment=1):
        want = list(self.received(rank))
        np.testing.assert_array_equal(recv_x, np.array([self.x[s][r] for s, r, _, _ in want]).reshape(-1, HIDDEN))
        np.testing.assert_array_equal(recv_idx, np.array([e for _, _, e, _ in want]).reshape(-1, TOPK))
        np.testing.assert_array_equal(recv_weights, np.array([w for _, _, _, w in want]).reshape(-1, TOPK))
        counts = [int((recv_idx == expert).sum()) for expert in range(EACH)]
        assert per_expert == [-(-count // alignment) * alignment for count in counts]

    def ranks_of(self, source):
        """How many ranks each token of a rank goes to."""
        return np.array([len({e // EACH for e in experts if e >= 0}) for experts in self.idx[source]], int)


@pytest.mark.parametrize("shared", [False, True])
def test_there_and_back(cluster, shared):
    case = Case(1)

    def body(client, group):
        me, x = group.rank, case.x[group.rank]
        buffer = rails.Buffer(group, MIB, timeout=30)
        if shared:
            x = client.empty(x.shape, x.dtype)
            x[:] = case.x[me]
        recv_x, idx, weights, per_expert, handle, _ = buffer.dispatch(x, case.idx[me], case.weights[me], num_experts=EXPERTS,
                                                                      expert_alignment=4)
        case.check_dispatch(me, recv_x, idx, weights, per_expert, alignment=4)
        bias = np.full(x.shape, 0.5, np.float32)
        combined, sums, _ = buffer.combine(recv_x, handle, topk_weights=weights, bias=bias)
        np.testing.assert_array_equal(combined, x * case.ranks_of(me)[:, None] + bias)
        np.testing.assert_array_equal(sums, np.where(case.idx[me] >= 0, case.weights[me], 0))
        # The same way once more, while the first results are in use: of another type, with scales, and later.
        halves, scales = x.astype(np.float16)[:, :8], x[:, :1].copy()
        (again, scaled), none, _, _, same, event = buffer.dispatch((halves, scales), handle=handle, async_finish=True)
        event.wait(30)
        event.current_stream_wait()
        assert none is None and same is handle and event.done()
        np.testing.assert_array_equal(again, recv_x.astype(np.float16)[:, :8])
        np.testing.assert_array_equal(scaled, recv_x[:, :1])
        back, _, event = buffer.combine(again, handle, async_finish=True)
        event.wait()
        assert back.dtype == np.float16
        np.testing.assert_array_equal(back, (halves.astype(np.float32) * case.ranks_of(me)[:, None]).astype(np.float16))
        case.check_dispatch(me, recv_x, idx, weights, per_expert, alignment=4)
    run_ranks(cluster, WORLD, body)


def test_tensors(cluster):
    """Tensors of a type that NumPy lacks, which want gradients."""
    case = Case(4)

    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, MIB)
        x = torch.from_numpy(case.x[me]).to(torch.bfloat16).requires_grad_()
        recv_x, idx, weights, per_expert, handle, _ = buffer.dispatch(x, torch.from_numpy(case.idx[me]),
                                                                      torch.from_numpy(case.weights[me]), num_experts=EXPERTS)
        assert (recv_x.dtype, idx.dtype, weights.dtype) == (torch.bfloat16, torch.int64, torch.float32)
        case.check_dispatch(me, recv_x.float().numpy(), idx.numpy(), weights.numpy(), per_expert)
        combined, sums, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        assert combined.dtype == torch.bfloat16 and sums.dtype == torch.float32
        expected = (x.float() * torch.from_numpy(case.ranks_of(me))[:, None]).to(torch.bfloat16)
        assert torch.equal(combined, expected)
        rounded = torch.from_numpy(case.weights[me]).to(torch.bfloat16)
        landed = buffer.dispatch(x, torch.from_numpy(case.idx[me]), rounded, num_experts=EXPERTS)[2]
        assert torch.equal(landed, weights.to(torch.bfloat16))
    run_ranks(cluster, WORLD, body)


def test_values_of_one_byte_and_their_scales(cluster):
    """Tokens go out in one byte each with a scale for every eight, as the experts of a layer get them, and come back in two."""
    narrow = getattr(torch, "float8_e4m3fn", torch.int8)  # torch 2.1 and later have it
    case = Case(5)

    def narrowed(x):
        blocks = x.view(len(x), HIDDEN // 8, 8)
        scales = blocks.abs().amax(-1).clamp(min=1) / 100
        return (blocks / scales[..., None]).to(narrow).view(x.shape), scales

    def widened(values, scales):
        return (values.float().view(len(values), HIDDEN // 8, 8) * scales[..., None]).view(values.shape)

    def outputs(x, weights, experts):
        """Expert e multiplies by e + 1; weighted, in two bytes."""
        return (x * (weights * (experts + 1)).sum(1, keepdim=True)).to(torch.bfloat16)
    sent = [narrowed(torch.from_numpy(x)) for x in case.x]
    case.x = [widened(*each).numpy() for each in sent]

    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, MIB)
        chosen, given = torch.from_numpy(case.idx[me]), torch.from_numpy(case.weights[me])
        (values, scales), idx, weights, per_expert, handle, _ = buffer.dispatch(sent[me], chosen, given, num_experts=EXPERTS)
        assert (values.dtype, scales.dtype, tuple(scales.shape[1:])) == (narrow, torch.float32, (HIDDEN // 8,))
        case.check_dispatch(me, widened(values, scales).numpy(), idx.numpy(), weights.numpy(), per_expert)
        combined, sums, _ = buffer.combine(outputs(widened(values, scales), weights, idx + me * EACH), handle, topk_weights=weights)
        expected = torch.zeros(combined.shape)
        for rank in range(WORLD):  # in the order in which combine() adds
            there = (chosen >= 0) & (chosen // EACH == rank)
            expected += outputs(torch.from_numpy(case.x[me]), given * there, chosen)
        assert torch.equal(combined, expected.to(torch.bfloat16)) and torch.equal(sums, given * (chosen >= 0))
    run_ranks(cluster, WORLD, body)


def test_a_layout_made_before(cluster):
    case = Case(2, np.int32)

    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, MIB)
        per_rank, _, per_expert, is_in_rank, event = buffer.get_dispatch_layout(case.idx[me], EXPERTS)
        assert event.done()
        np.testing.assert_array_equal(is_in_rank.sum(1), case.ranks_of(me))
        np.testing.assert_array_equal(per_rank, is_in_rank.sum(0))
        assert per_expert.tolist() == [int((case.idx[me] == expert).sum()) for expert in range(EXPERTS)]
        recv_x, idx, weights, counts, handle, _ = buffer.dispatch(
            case.x[me], num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert)
        want = list(case.received(me))
        assert idx is None and weights is None and len(recv_x) == len(want) == handle.received.sum()
        assert counts == [sum(int((e == expert).sum()) for _, _, e, _ in want) for expert in range(EACH)]
    run_ranks(cluster, WORLD, body)


def test_experts_without_a_sign(cluster):
    def body(_, group):
        experts = rails.Buffer(group, MIB).dispatch(np.zeros((1, 2)), np.array([[0, 1]], np.uint8), num_experts=2)[1]
        assert experts.tolist() == [[0, -1], [-1, 0]][group.rank:][:1] * 2
    run_ranks(cluster, 2, body)


def test_a_wrong_bias_and_a_second_wait(cluster):
    def body(_, group):
        buffer, x = rails.Buffer(group, MIB), np.ones((3, 4))
        handle = buffer.dispatch(x, np.zeros((3, 1), int), num_experts=2)[4]
        y = np.ones((6 if group.rank == 0 else 0, 4))
        for bias in (np.zeros((3, 5)), np.zeros((1, 3, 4))):
            with pytest.raises(rails.InvalidArgumentError, match="bias has the shape"):
                buffer.combine(y, handle, bias=bias)
        sums, _, event = buffer.combine(y, handle, bias=np.ones(4), async_finish=True)
        for _ in range(2):
            event.wait()
            assert (sums == 2).all()
    run_ranks(cluster, 2, body)


def unused(pool):
    """Bytes of a pool that nobody uses."""
    return sum(room for slab in pool._slabs for _, room in slab.free) + sum(length for _, _, length in pool.returned)


def test_memory_that_the_daemon_refused_is_not_in_use(cluster, monkeypatch):
    def body(client, group):
        pool = rails.Buffer(group, MIB)._pool
        with monkeypatch.context() as patch:
            patch.setattr(client, "empty", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                pool.take(MIB)
        assert len(pool.take(MIB)) == MIB
    run_ranks(cluster, 1, body)


def test_memory_is_used_again(cluster):
    """A hundred dispatches take as much memory as one, and results that are kept take their own."""
    case = Case(3)

    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, MIB)
        kept, sizes = [], set()
        for turn in range(100):
            recv_x, idx, weights, per_expert, handle, _ = buffer.dispatch(case.x[me], case.idx[me], case.weights[me], num_experts=EXPERTS)
            buffer.combine(recv_x, handle)
            if turn in (10, 20):
                kept.append((recv_x, idx, weights, per_expert))
            if turn in (30, 99):
                sizes.add(buffer._pool._held())
        assert len(sizes) == 1, sizes
        for result in kept:
            case.check_dispatch(me, *result)
        del kept, result, recv_x, idx, weights
        gc.collect()
        assert unused(buffer._pool) == buffer._pool._held()
    run_ranks(cluster, WORLD, body)


def test_many_layers_keep_their_results(cluster):
    """More arrays than a session may have segments; they come back in any order, and then one takes all."""
    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, 32 * MIB)
        idx, kept = np.zeros((50, 1), np.int64), []
        for layer in range(100):
            x = np.full((50, 1000), 100 * layer + me, np.int16)
            kept.append(buffer.dispatch(x, idx, num_experts=2)[0])
        for layer, came in enumerate(kept):
            assert len(came) == (100 if me == 0 else 0)
            assert (came == np.repeat([100 * layer, 100 * layer + 1], 50).astype(np.int16)[:len(came), None]).all(), layer
        random.Random(1).shuffle(kept)
        while kept:
            del came
            came = kept.pop()
        del came
        gc.collect()
        buffer._pool.release()
        assert unused(buffer._pool) == buffer._pool._held()
        assert len(buffer._pool.take(32 * MIB)) == 32 * MIB
    run_ranks(cluster, 2, body)


def test_memory_is_kept_for_a_job_whose_event_was_dropped(cluster):
    """A rank goes on without waiting for its dispatches, too long to go along with a message; the other has not begun them."""
    dropped = threading.Event()

    def body(_, group):
        me, buffer = group.rank, rails.Buffer(group, 4 * MIB)
        idx = np.full((1000, 1), 1)
        handle = buffer.dispatch(np.zeros((1000, 8)), idx, num_experts=2)[4]
        if me == 1:
            assert dropped.wait(harness.PATIENCE)
        for number in range(3):
            came = buffer.dispatch(np.full((1000, 8), 10.0 * number + me), handle=handle, async_finish=me == 0)[0]
            if me == 1:
                np.testing.assert_array_equal(came, np.repeat([10.0 * number, 10.0 * number + 1], 1000)[:, None] + np.zeros(8))
        dropped.set()
        del came
        group.barrier()
        gc.collect()

        def free():  # the barrier may end before the jobs that began before it
            buffer._pool.release()
            return unused(buffer._pool) == buffer._pool._held()
        harness.eventually(free, "the memory is free")
    run_ranks(cluster, 2, body)


@pytest.mark.parametrize("room", [64, 2048])
def test_no_room_for_counts_is_an_error_everywhere(cluster, room):
    def body(_, group):
        idx = np.full((5, 1), group.rank)
        with pytest.raises(rails.ResourceExhaustedError if group.rank == 0 else rails.RailsError, match="rank 0 of group|cancelled|bytes"):
            rails.Buffer(group, room if group.rank == 0 else MIB, timeout=60).dispatch(np.zeros((5, 2)), idx, num_experts=200)
        group.barrier()
    run_ranks(cluster, 2, body)


def test_too_many_tokens_are_an_error_everywhere(cluster):
    """Every rank fails, the one without room says why, and the group goes on."""
    case = Case(1)

    def body(_, group):
        me = group.rank
        buffer = rails.Buffer(group, 8192 if me == 0 else MIB, timeout=30)
        kind = rails.ResourceExhaustedError if me == 0 else rails.RailsError
        with pytest.raises(kind) as raised:
            buffer.dispatch(case.x[me].repeat(10, 0), case.idx[me].repeat(10, 0), num_experts=EXPERTS)
        if me == 0:
            assert "rank 0 of group" in str(raised.value) and "num_bytes" in str(raised.value)
        large = rails.Buffer(group, MIB)
        result = large.dispatch(case.x[me], case.idx[me], case.weights[me], num_experts=EXPERTS)
        case.check_dispatch(me, *result[:4])
    run_ranks(cluster, WORLD, body)


def test_wrong_arguments(cluster):
    def body(_, group):
        buffer = rails.Buffer(group, MIB)
        x, idx = np.zeros((3, 4), np.float32), np.zeros((3, 2), np.int64)
        for call, text in (
                (lambda: buffer.dispatch(x, idx, num_experts=3), "multiple of the group's 2 ranks"),
                (lambda: buffer.dispatch(x, idx + 4, num_experts=4), "from 4 to 4"),
                (lambda: buffer.dispatch(x, idx - 2, num_experts=4), "from -2"),
                (lambda: buffer.dispatch(x, idx), "num_experts is missing"),
                (lambda: buffer.dispatch(x, num_experts=4), "topk_idx is missing"),
                (lambda: buffer.dispatch(x, idx[:, 0], num_experts=4), "shape"),
                (lambda: buffer.dispatch(x, idx.astype(float), num_experts=4), "float64"),
                (lambda: buffer.dispatch(x[:2], idx, num_experts=4), "x has 2 tokens, and the handle has 3"),
                (lambda: buffer.dispatch(x, idx, np.zeros((2, 2)), num_experts=4), "topk_weights has the shape"),
                (lambda: buffer.dispatch(x, idx, num_experts=4, expert_alignment=0), "expert_alignment is 0")):
            with pytest.raises(rails.InvalidArgumentError, match=text):
                call()
        handle = buffer.dispatch(x, idx, num_experts=2)[4]
        with pytest.raises(ValueError, match="x has 2 tokens, and the handle has 3"):
            buffer.dispatch(x[:2], handle=handle)
        with pytest.raises(ValueError, match="x has 5 rows, and [06] tokens were received"):
            buffer.combine(np.zeros((5, 4), np.float32), handle)
    run_ranks(cluster, 2, body)
