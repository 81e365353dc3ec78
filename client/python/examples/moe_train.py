#!/usr/bin/python3
"""Trains a small language model with experts on several ranks, over railsd, over Gloo, or over both to compare them.

    moe_train.py [--ranks N] [--backend both|rails|gloo] [--steps N] [--text FILE...] [--plot FILE] [--trace FILE]
                 [--json] SOCKET_DIR...

The model reads bytes: two layers of attention, each followed by eight experts of which every byte goes to two. Experts are
spread over the ranks, so each layer does two exchanges forward and two backward; everything else is the same on all ranks.
Rank r uses the daemon in socket directory number r modulo the number of directories. Both backends move the same bytes, so
the losses must be equal to the last bit.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError as missing:
    sys.exit(f"moe_train.py: {missing}; install PyTorch, in Debian the package python3-torch, for {sys.executable}")

ROOT = Path(__file__).resolve().parents[3]
WIDTH, HEADS, HIDDEN, LENGTH, BATCH, LAYERS = 64, 4, 128, 64, 8, 2
EXPERTS, CHOSEN = 8, 2
BYTES = 256


class Meter:
    """Times and reports of the exchanges of a rank."""

    def __init__(self, group):
        self.group, self.seconds, self.reports = group, 0.0, []

    def exchange(self, output, source, rows, to):
        """Rows to each rank, and from each."""
        began = time.perf_counter()
        work = dist.all_to_all_single(output, rows, source, to, group=self.group, async_op=True)
        work.wait()
        self.seconds += time.perf_counter() - began
        if hasattr(work, "report"):  # of the backend rails
            self.reports.append(work.report)
        return output


class Exchange(torch.autograd.Function):
    """An exchange of rows; their gradients take the way back."""

    @staticmethod
    def forward(context, rows, to, source, meter):
        context.way = to, source, meter
        return meter.exchange(rows.new_empty(sum(source), rows.size(1)), source, rows.contiguous(), to)

    @staticmethod
    def backward(context, gradient):
        to, source, meter = context.way
        return meter.exchange(gradient.new_empty(sum(to), gradient.size(1)), to, gradient.contiguous(), source), None, None, None


class Experts(nn.Module):
    """Eight feed-forward networks, of which this rank holds its share; each row goes to the two that the router prefers."""

    def __init__(self, meter, rank, ranks):
        super().__init__()
        self.meter, self.ranks, self.each = meter, ranks, EXPERTS // ranks
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        everyone = [nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(everyone[rank * self.each:(rank + 1) * self.each])
        self.received = 0  # rows of the last call

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)  # by expert, and so by rank
        copies = x.repeat_interleave(CHOSEN, 0)[order]
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        theirs = self.meter.exchange(torch.empty_like(counts), None, counts, None).view(self.ranks, self.each)
        to, source = counts.view(self.ranks, self.each).sum(1).tolist(), theirs.sum(1).tolist()
        rows = Exchange.apply(copies, to, source, self.meter)
        self.received = len(rows)
        expert = torch.arange(self.each).repeat(self.ranks).repeat_interleave(theirs.flatten())
        places = [(expert == number).nonzero().flatten() for number in range(self.each)]
        made = torch.cat([expert(rows[place]) for expert, place in zip(self.experts, places)])
        returned = Exchange.apply(made[torch.cat(places).argsort()], source, to, self.meter)
        return (returned[order.argsort()].view(-1, CHOSEN, WIDTH) * (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)


class Layer(nn.Module):
    def __init__(self, meter, rank, ranks):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.experts = Experts(meter, rank, ranks)

    def forward(self, x, mask):
        y = self.before(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.experts(self.between(x).view(-1, WIDTH)).view(x.shape)


class Model(nn.Module):
    def __init__(self, meter, rank, ranks):
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(meter, rank, ranks) for _ in range(LAYERS))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES))
        self.mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)

    def forward(self, text):
        """The mean loss of the next byte; `text` has the shape (batch, LENGTH + 1)."""
        x = self.bytes(text[:, :-1]) + self.places.weight
        for layer in self.layers:
            x = layer(x, self.mask)
        return nn.functional.cross_entropy(self.last(x).view(-1, BYTES), text[:, 1:].flatten())


def train(options):
    """One rank. Prints a line of JSON for each step, and one at the end."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, ranks = options.rank, options.ranks
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=rank, world_size=ranks)
    if options.backend == "rails":
        import rails.torch
        sockets = options.sockets[rank % len(options.sockets)]
        meter = Meter(dist.new_group(backend="rails", pg_options=rails.torch.Options(socket_dir=sockets)))
    else:
        meter = Meter(dist.group.WORLD)
    torch.manual_seed(options.seed)  # the same first weights on all ranks
    model = Model(meter, rank, ranks)
    own = {id(weight) for layer in model.layers for weight in layer.experts.experts.parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(b"\n".join(Path(file).read_bytes() for file in options.text)), dtype=torch.uint8)
    if len(text) <= LENGTH:
        raise SystemExit(f"moe_train.py: the text has {len(text)} bytes, and a sample {LENGTH + 1}: name more with --text")
    random = torch.Generator().manual_seed(options.seed * 1000 + rank)
    for step in range(options.steps):
        began, meter.seconds = time.perf_counter(), 0.0
        starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=random)
        loss = model(torch.stack([text[start:start + LENGTH + 1] for start in starts]).long())
        received = [layer.experts.received for layer in model.layers]
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            if id(weight) not in own:
                dist.all_reduce(weight.grad)
            weight.grad /= ranks  # those of experts have come from all ranks
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        print(json.dumps({"step": step, "loss": whole.item() / ranks, "seconds": time.perf_counter() - began,
                          "exchanges": meter.seconds, "received": received}), flush=True)
    print(json.dumps({"rails": [sum(rail) for rail in zip(*(report.rail_tx_bytes for report in meter.reports))],
                      "ratios": [(report.elapsed - report.waiting_for_ranks - report.waiting_for_peers) / report.node_bound
                                 for report in meter.reports if report.node_bound > 0]}), flush=True)
    dist.barrier()


def run(options, backend):
    """Runs all ranks, in processes of their own; gives what each printed."""
    with tempfile.TemporaryDirectory() as folder:
        common = [sys.executable, __file__, "--backend", backend, "--ranks", options.ranks, "--steps", options.steps, "--seed",
                  options.seed, "--store", Path(folder) / "store", "--text", *options.text, "--", *options.sockets]
        ranks = [subprocess.Popen([str(word) for word in [*common[:2], "--rank", rank, *common[2:]]], stdout=subprocess.PIPE,
                                  text=True) for rank in range(options.ranks)]
        lines, failed = [[] for _ in ranks], []

        def read(number):
            for line in ranks[number].stdout:
                lines[number].append(json.loads(line))
                if number == 0 and "step" in lines[0][-1]:
                    print(f"\r{backend}: step {lines[0][-1]['step'] + 1} of {options.steps}, loss {lines[0][-1]['loss']:.4f} ",
                          end="", file=sys.stderr, flush=True)
            if ranks[number].wait() != 0:  # the others would wait for it
                failed.append(number)
                for rank in ranks:
                    rank.kill()
        readers = [threading.Thread(target=read, args=(number,)) for number in range(options.ranks)]
        try:
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            print(file=sys.stderr)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if failed:
        raise SystemExit(f"moe_train.py: rank {failed[0]} failed over {backend}")
    return lines


def summary(lines):
    """The outcome of a run. Times are those of rank 0, without the first steps."""
    steps, ends = [line for line in lines[0] if "step" in line], [rank[-1] for rank in lines]
    warm = steps[min(5, len(steps) - 1):]
    made = {"losses": [step["loss"] for step in steps],
            "step_seconds": statistics.median(step["seconds"] for step in warm),
            "exchange_share": sum(step["exchanges"] for step in warm) / sum(step["seconds"] for step in warm)}
    sent = ends[0]["rails"]
    if any(sent):
        made["balance"] = max(sent) * len(sent) / sum(sent)
        made["ratio_to_bound"] = statistics.median(ends[0]["ratios"])
    return made


def write_trace(path, lines):
    """The routing as `railsctl replay` and `plan` read it: rows that the experts of each rank received."""
    with open(path, "w", encoding="ascii") as file:
        file.write("rank,model,layer,iter,tokens\n")
        for rank, said in enumerate(lines):
            for step in said[:-1]:
                for layer, tokens in enumerate(step["received"]):
                    file.write(f"{rank},moe_train,{layer},{step['step']},{tokens}\n")


def write_plot(path, runs):
    """The losses by step as SVG; of equal curves, the later one covers the earlier with a thinner line."""
    width, height, left, top = 640, 320, 48, 24
    highest = max(max(run["losses"]) for run in runs.values())
    shapes = []
    for number, (name, run) in enumerate(runs.items()):
        across = width / max(1, len(run["losses"]) - 1)
        points = " ".join(f"{left + across * step:.1f},{top + height * (1 - loss / highest):.1f}" for step, loss in enumerate(run["losses"]))
        color = ("#9ecae1", "#d62728")[number]
        shapes += [f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{7 - 5 * number}"/>',
                   f'<text x="{left + width - 90}" y="{top + 20 + 18 * number}" fill="{color}">{name}</text>']
    axes = (f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="#888"/>'
            f'<text x="4" y="{top + 10}">{highest:.1f}</text><text x="4" y="{top + height}">0</text>'
            f'<text x="{left}" y="{top - 8}">loss by step</text>'
            f'<text x="{left + width - 30}" y="{top + height + 18}">{max(len(run["losses"]) for run in runs.values())}</text>')
    Path(path).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 60}" height="{height + 56}" font-family="sans-serif" '
                          f'font-size="13">{axes}{"".join(shapes)}</svg>\n', encoding="ascii")


def show(runs, same):
    print(f"\n{'':<8}{'step':>10}  {'in exchanges':>12}  {'last loss':>10}  {'busiest rail over mean':>22}  {'moving over bound':>17}")
    for name, run in runs.items():
        rails = f"{run['balance']:>22.3f}  {run['ratio_to_bound']:>17.2f}" if "balance" in run else f"{'-':>22}  {'-':>17}"
        print(f"{name:<8}{run['step_seconds'] * 1e3:>7.1f} ms  {run['exchange_share']:>12.0%}  {run['losses'][-1]:>10.4f}  {rails}")
    if same is not None:
        print(f"\nthe losses of all steps are {'equal to the last bit' if same else 'NOT EQUAL'}")


def main():
    parser = argparse.ArgumentParser(description="Trains a small mixture-of-experts model over railsd, Gloo, or both.")
    parser.add_argument("--ranks", type=int, default=4, choices=(2, 4, 8), help="processes that share the experts (%(default)s)")
    parser.add_argument("--backend", choices=("both", "rails", "gloo"), default="both", help="backends that exchange the tokens (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first weights and of the samples (%(default)s)")
    parser.add_argument("--text", nargs="+", metavar="FILE", help="files to learn (default: the pages of this project)")
    parser.add_argument("--plot", metavar="FILE", help="the losses, as SVG")
    parser.add_argument("--trace", metavar="FILE", help="the routing, for `railsctl replay`")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("sockets", nargs="*", metavar="SOCKET_DIR", help="the folder of a daemon's sockets (default: /run/railsd)")
    options = parser.parse_args()
    options.text = options.text or sorted(map(str, [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]))
    options.sockets = options.sockets or [os.environ.get("RAILS_SOCKET_DIR", "/run/railsd")]
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; it must be at least 1")
    if options.rank is not None:
        return train(options)
    lines = {backend: run(options, backend) for backend in ("gloo", "rails") if options.backend in (backend, "both")}
    runs = {backend: summary(said) for backend, said in lines.items()}
    same = runs["gloo"]["losses"] == runs["rails"]["losses"] if len(runs) == 2 else None
    if options.trace:
        write_trace(options.trace, next(iter(lines.values())))
    if options.plot:
        write_plot(options.plot, runs)
    if options.json:
        print(json.dumps({"runs": runs, "equal": same}))
    else:
        show(runs, same)
    return 1 if same is False else 0


if __name__ == "__main__":
    sys.exit(main())
