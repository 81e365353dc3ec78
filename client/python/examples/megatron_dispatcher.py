#!/usr/bin/python3
"""A token dispatcher for Megatron-core's MoE layers on `rails.Buffer`, with gradients, checked against a dense layer.

    megatron_dispatcher.py [--world N] [--tokens N] [--wait SECONDS] SOCKET_DIR...

`RailsTokenDispatcher` has the methods that Megatron-core's MoELayer calls, in the order of the calls. Here N ranks, one thread
each, send tokens through it to experts, and compare outputs and gradients with all experts computed in place. Rank r uses the
daemon in socket directory number r modulo the number of directories.

In Megatron-core (the methods are those of version 0.12 and later): make one dispatcher for each MoELayer after its construction, and
assign it to `layer.token_dispatcher`. Its group must be that of expert parallelism, with the expert e on rank
e // (experts / ranks). A `rails.Buffer` takes tensors of the processor's memory; expert tensor parallelism and shared experts that
overlap with the exchange are not in it.
"""

import argparse
import concurrent.futures
import sys

try:
    import torch
except ImportError as missing:
    sys.exit(f"megatron_dispatcher.py: {missing}; install PyTorch, in Debian the package python3-torch, for {sys.executable}")

import rails

HIDDEN, EXPERTS, CHOSEN = 32, 8, 2


class Dispatch(torch.autograd.Function):
    """Tokens to the ranks of their experts. Gradients take the way back."""

    @staticmethod
    def forward(context, x, experts, weights, num_experts, buffer):
        received, local, theirs, _, handle, _ = buffer.dispatch(x, experts, weights, num_experts=num_experts)
        context.buffer, context.handle = buffer, handle
        context.mark_non_differentiable(local)
        return received, local, theirs, handle

    @staticmethod
    def backward(context, gradient, _, of_weights, __):
        x, weights, _ = context.buffer.combine(gradient, context.handle, topk_weights=of_weights)
        return x, None, weights, None, None


class Combine(torch.autograd.Function):
    """Sums of what became of a token at several ranks, at the token's own rank."""

    @staticmethod
    def forward(context, x, handle, buffer):
        context.buffer, context.handle = buffer, handle
        return buffer.combine(x, handle)[0]

    @staticmethod
    def backward(context, gradient):
        return context.buffer.dispatch(gradient, handle=context.handle)[0], None, None


class RailsTokenDispatcher:
    """Megatron-core's MoETokenDispatcher: between `token_dispatch` and `token_combine` a layer may compute what needs no other rank."""

    def __init__(self, buffer, local_experts, topk):
        """`topk`: the most experts of a token, equal on all ranks."""
        self.buffer, self.local_experts, self.topk = buffer, local_experts, topk

    def dispatch_preprocess(self, hidden_states, routing_map, probs):
        """Args: tokens of shape (..., hidden); whether a token goes to an expert and its weight there, of shape (tokens, experts)."""
        self.shape, self.num_experts = hidden_states.shape, routing_map.size(1)
        chosen, experts = routing_map.int().topk(self.topk, 1)
        self.experts = experts.masked_fill(chosen == 0, -1)
        return hidden_states.reshape(-1, self.shape[-1]), probs.gather(1, experts) * chosen

    def token_dispatch(self, hidden_states, weights):
        received, self.local, theirs, self.handle = Dispatch.apply(hidden_states, self.experts, weights, self.num_experts,
                                                                        self.buffer)
        return received, theirs

    def dispatch_postprocess(self, received, theirs):
        """Returns a row for each token and expert of this rank, by expert; rows of each expert; weights of the rows."""
        token, place = (self.local >= 0).nonzero(as_tuple=True)
        order = self.local[token, place].argsort(stable=True)
        self.rows, self.received = token[order], len(received)
        per_expert = torch.bincount(self.local[token, place], minlength=self.local_experts)
        return received[self.rows], per_expert, theirs[token, place][order]

    def combine_preprocess(self, made):
        """Adds what the experts of this rank have made of one token."""
        return made.new_zeros(self.received, made.size(1)).index_add(0, self.rows, made)

    def token_combine(self, summed):
        return Combine.apply(summed, self.handle, self.buffer)

    def combine_postprocess(self, combined):
        return combined.view(self.shape)


def layer(dispatcher, x, routing_map, probs, experts):
    """The calls of Megatron-core's MoELayer."""
    x, weights = dispatcher.token_dispatch(*dispatcher.dispatch_preprocess(x, routing_map, probs))
    rows, per_expert, weights = dispatcher.dispatch_postprocess(x, weights)
    made = torch.cat([part @ expert for part, expert in zip(rows.split(per_expert.tolist()), experts)])
    summed = dispatcher.combine_preprocess(made * weights.unsqueeze(1))
    return dispatcher.combine_postprocess(dispatcher.token_combine(summed))


def run(rank, options):
    noise = torch.Generator().manual_seed(rank)
    everyone = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1))
    x = torch.randn(options.tokens, 2, HIDDEN, generator=noise).requires_grad_()
    probs = torch.rand(2 * options.tokens, EXPERTS, generator=noise).softmax(1).requires_grad_()
    routing_map = torch.zeros_like(probs, dtype=torch.bool).scatter(1, probs.topk(CHOSEN).indices, True)
    each = EXPERTS // options.world
    with rails.connect(options.sockets[rank % len(options.sockets)], timeout=options.wait) as client:
        with client.join("megatron_dispatcher.py", rank, options.world) as group:
            dispatcher = RailsTokenDispatcher(rails.Buffer(group, num_bytes=64 << 20), each, CHOSEN)
            y = layer(dispatcher, x, routing_map, probs, everyone[rank * each:(rank + 1) * each])
            gradients = torch.autograd.grad(y.square().sum(), (x, probs))
    dense = torch.einsum("nh,ehk,ne->nk", x.reshape(-1, HIDDEN), everyone, probs * routing_map).view(x.shape)
    expected = torch.autograd.grad(dense.square().sum(), (x, probs))
    for what, got, wanted in (("output", y, dense), ("gradient of the tokens", gradients[0], expected[0]),
                              ("gradient of the weights", gradients[1], expected[1])):
        if not torch.allclose(got, wanted, rtol=1e-4, atol=1e-4):
            raise AssertionError(f"rank {rank}: the {what} differs by {(got - wanted).abs().max()}")


def main():
    parser = argparse.ArgumentParser(description="Sends tokens to experts through a dispatcher for Megatron, and checks them.")
    parser.add_argument("--world", type=int, default=4, help="number of ranks, which divides 8 (default 4)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a rank in each of two sequences (default 64)")
    parser.add_argument("--wait", type=float, default=10, help="seconds to wait for a daemon (default 10)")
    parser.add_argument("sockets", nargs="+", metavar="SOCKET_DIR", help="the folder of a daemon's sockets")
    options = parser.parse_args()
    if options.world < 1 or EXPERTS % options.world:
        parser.error(f"--world {options.world} does not divide the {EXPERTS} experts")
    with concurrent.futures.ThreadPoolExecutor(options.world) as threads:
        try:
            list(threads.map(lambda rank: run(rank, options), range(options.world)))
        except rails.RailsError as error:
            print(error, file=sys.stderr)
            return 1
    print("outputs and gradients are those of the dense layer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
