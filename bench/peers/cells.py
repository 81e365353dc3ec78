"""The cells of `bench peers`: traffic matrices between ranks, states of the rails, and the physical bound of each."""

import csv
import dataclasses
import gzip
import random

NODES, RAILS = 4, 4
RATE = 25e6  # bytes per second of a rail at 200 Mbit/s
MIB = 1 << 20
BLOCK = 1024  # every pair of ranks exchanges a multiple, so that all programs divide the bytes alike
BROKEN_RAIL, BROKEN_NODE = 2, 1  # the rail that is slow or dead, and the node where it is dead

WORKLOADS = {
    "uniform": "every node sends as much to every other node",
    "zipf": "node k receives in proportion to (k + 1)^-1.2, the order drawn",
    "pair_skew": "80 % of a node's bytes go to one partner, 10 % to each other node",
    "sparse_50": "half of the pairs of ranks exchange, all as much, drawn",
    "sparse_80": "a fifth of the pairs of ranks exchange, all as much, drawn",
    "incast": "three nodes send to one",
    "permutation": "every node sends to one other node",
    "mixtral": "one layer of a routing trace of Mixtral-8x7B",
}
STATES = {
    "healthy": "all rails at 200 Mbit/s",
    "slow": f"rail {BROKEN_RAIL} of every node at 100 Mbit/s, which only tuned Open MPI over TCP is told",
    "dead": f"rail {BROKEN_RAIL} of node {BROKEN_NODE} without a carrier from the start",
    "dying": f"rail {BROKEN_RAIL} of node {BROKEN_NODE} loses its carrier when half of a job's bytes are sent",
    "unshaped": "no shaping: the processors are the limit",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A workload of one size on rails in one state."""

    state: str
    ranks: int  # per node
    mib: int  # what a rank sends on average, in MiB
    workload: str

    @property
    def name(self):
        state = "" if self.state == "healthy" else f"{self.state}."
        return f"{state}{self.workload}.{self.ranks}rank.{self.mib}MiB"

    @property
    def batch(self):
        """Cells of one batch run one after the other in the same processes."""
        return self.state, self.ranks, self.mib


def full():
    """All cells."""
    cells = [Cell("healthy", ranks, mib, workload) for ranks in (1, 4) for mib in (1, 16, 64) for workload in WORKLOADS]
    for state in ("slow", "dead"):
        cells += [Cell(state, ranks, 16, workload) for ranks in (1, 4) for workload in ("uniform", "zipf")]
    return cells + [Cell("dying", 1, 64, "uniform"), Cell("dying", 4, 16, "uniform"), Cell("unshaped", 1, 64, "uniform")]


def quick():
    """Cells that take ten minutes and show every kind."""
    cells = [Cell("healthy", 1, mib, workload) for mib in (1, 16) for workload in WORKLOADS]
    cells += [Cell("healthy", 4, 16, workload) for workload in ("uniform", "zipf", "sparse_80")]
    cells += [Cell(state, 1, 16, workload) for state in ("slow", "dead") for workload in ("uniform", "zipf")]
    return cells + [Cell("dying", 1, 64, "uniform"), Cell("unshaped", 1, 64, "uniform")]


def effort(cell, is_quick):
    """Rounds, steps and warm-up steps of a cell. Small jobs need more of them."""
    if cell.state == "dying":
        return 1, 3, 1
    if cell.state == "unshaped":
        # A job takes 50 ms, and the first use of memory, which training pays once, as long.
        return (2, 12, 2) if is_quick else (3, 20, 2)
    rounds, steps = {1: (3, 5), 16: (2, 3), 64: (2, 1)}[cell.mib]
    if cell.ranks * cell.mib == 256:
        rounds = 1
    if is_quick:
        rounds, steps = (2, 4) if cell.mib == 1 else (1, 3)
    return rounds, steps, 4 if cell.state == "slow" else 1


def node_weights(workload, trace):
    """Traffic between nodes, in any unit."""
    draw = random.Random(7)
    others = [(i, j) for i in range(NODES) for j in range(NODES) if i != j]
    weights = {pair: 0.0 for pair in others}
    popular = list(range(NODES))
    draw.shuffle(popular)
    for i, j in others:
        if workload == "uniform":
            weights[i, j] = 1
        elif workload == "zipf":
            weights[i, j] = (popular[j] + 1) ** -1.2
        elif workload == "pair_skew":
            weights[i, j] = 8 if j == (i + 1) % NODES else 1
        elif workload == "incast":
            weights[i, j] = 1 if j == 0 else 0
        elif workload == "permutation":
            weights[i, j] = 1 if j == (i + 1) % NODES else 0
        elif workload == "mixtral":
            weights[i, j] = trace[i][j] if trace else (1.5, 1.05, 0.8, 0.65)[popular[j]] * draw.uniform(0.88, 1.12)
    return weights


def read_trace(path, layer=16, iteration=5, model="mixtral-8x7b-e8k2", per_node=8):
    """The dispatch of one layer between nodes, as docs/railsctl.md says: expert bin f of a node's ranks is on node f."""
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path, encoding="utf-8")
    matrix = [[0] * NODES for _ in range(NODES)]
    with opened as lines:
        for row in csv.DictReader(lines):
            if (row["model"], int(row["layer"]), int(row["iter"])) == (model, layer, iteration):
                rank = int(row["rank"])
                matrix[rank // per_node][rank % NODES] += int(row["tokens"])
    return matrix


def matrix(cell, trace):
    """Bytes from each rank to each rank; zero between ranks of one node, because the cells compare rails."""
    world = NODES * cell.ranks
    pairs = [(a, b) for a in range(world) for b in range(world) if a // cell.ranks != b // cell.ranks]
    if cell.workload.startswith("sparse"):
        part = 0.5 if cell.workload == "sparse_50" else 0.2
        active = set(random.Random(7).sample(pairs, round(part * len(pairs))))
        weights = {pair: 1 if pair in active else 0 for pair in pairs}
    else:
        nodes = node_weights(cell.workload, trace)
        weights = {(a, b): nodes[a // cell.ranks, b // cell.ranks] for a, b in pairs}
    scale = world * cell.mib * MIB / sum(weights.values())
    rows = [[0] * world for _ in range(world)]
    for (a, b), weight in weights.items():
        rows[a][b] = round(weight * scale / BLOCK) * BLOCK
    return rows


def node_matrix(rows, ranks):
    sums = [[0] * NODES for _ in range(NODES)]
    for a, row in enumerate(rows):
        for b, length in enumerate(row):
            sums[a // ranks][b // ranks] += length
    return sums


def total(rows):
    return sum(map(sum, rows))


def rail_speeds(state, node):
    """Line rates of the rails of a node, in bytes per second."""
    speeds = [RATE] * RAILS
    if state == "slow":
        speeds[BROKEN_RAIL] /= 2
    if state == "dead" and node == BROKEN_NODE:
        speeds[BROKEN_RAIL] = 0
    return speeds


def bound(cell, rows):
    """The least seconds that a job needs: the busiest node's bytes in or out over its rails' line rates. A rail that
    dies takes part in half of the job."""
    if cell.state == "dying":
        return sum(0.5 * bound(dataclasses.replace(cell, state=state), rows) for state in ("healthy", "dead"))
    nodes = node_matrix(rows, cell.ranks)
    return max(max(sum(nodes[i]), sum(row[i] for row in nodes)) / sum(rail_speeds(cell.state, i)) for i in range(NODES))
