"""The page docs/peers.md with its plot docs/peers.svg."""

from peers import cells as matrices
from peers.plot import plot
from peers.scores import best_peer

HEAD = """# railsd beside its peers

For those who choose how their all-to-all traffic travels over several rails. Afterwards you know how long the same jobs take
through railsd, Open MPI, MPICH and Gloo, with which settings, and how to repeat it. `./dev bench peers` writes this page.

{run}

{summary}

![Time over the bound of all ways]({plot})

A value is the **time of a job over its physical bound**: the bytes in or out of the busiest node over the sum of its rails'
line rates. 1.007 is the least that TCP can reach; at 1 MiB a rank it can be less, because a part of the job fits into the bursts
that the shapers let through. Values are medians of all steps; **bold** is the first of a row and what is within 3 % of it.
Differences under 5 % are noise, under 10 % for Open MPI over TCP, and more where the load before the run was above 1: other work
then took the processors from all ways. *stops*: the job hangs or the program ends; the reasons are [below](#what-stopped).

"""

METHOD = """
## How it is measured

The fabric is emulated on one machine (`bench/lab.py`): {nodes} nodes with {rails} rails each in network namespaces, both
directions of every rail shaped to 200 Mbit/s. All ways get the same matrix of bytes between ranks; ranks of one node exchange
nothing. All ranks meet before each job; the time runs from the first rank's begin to the last rank's end. Every process start
has a warm-up job (four where a rail is slow), then the jobs that count; the ways take turns. Every byte of every job is
compared, and wrong ones count as *stops*.

| workload | what it is |
|---|---|
{workloads}
| `mixtral` here | {trace} |

| rails | how they are |
|---|---|
{states}

Where a rail dies in mid-run, the bound lets it take part in half of the struck job and in none of the later ones.
railsd runs as it comes: the rails' speed is in its configuration, and nothing tells it that one is slow or dead.

## Which flags

The emulation needs these everywhere. They name the rails, keep the ranks off the management network, and make the ranks yield,
because {nodes} nodes share the processors of one machine.

| peer | flags |
|---|---|
| Open MPI | `--mca plm_rsh_agent SCRIPT --mca oob_tcp_if_include mgmt --mca mpi_yield_when_idle 1` |
| Open MPI over TCP | `--mca pml ob1 --mca btl tcp,self,vader --mca btl_tcp_if_include rail0,rail1,rail2,rail3` |
| Open MPI over UCX | `--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any` |
| UCX | `UCX_TLS=tcp,self UCX_NET_DEVICES=rail0,rail1,rail2,rail3` |
| MPICH | `-launcher ssh -launcher-exec SCRIPT -iface mgmt`, `MPIR_CVAR_POLLS_BEFORE_YIELD=1` |
| Gloo | `GLOO_SOCKET_IFNAME=rail0,rail1,rail2,rail3`, one `all_to_all_single` |

*Tuned* adds:

| peer | flags | what they do |
|---|---|---|
| Open MPI over TCP | `--mca btl_tcp_flags 1` | sends only, no put: messages go over all rails from the start |
| the same, a slow rail | `--mca btl_tcp_bandwidth_rail2 100`, 200 for the others | shares by speed; somebody must know it |
| UCX | `UCX_MAX_EAGER_RAILS=4 UCX_MAX_RNDV_RAILS=4 UCX_RNDV_THRESH=inf` | all rails; no rendezvous, which pulls one message at a time |
| Open MPI over UCX | `MPI_Isend` and `MPI_Irecv` of all ranks instead of `MPI_Alltoallv` | nobody waits for the order of the collective |
| Gloo | four operations on a quarter of the bytes each, started together | Gloo gives each operation one rail |
| all | the list of rails without the one that is dead from the start | somebody must know it |

Traps: UCX 1.13 pairs local and remote devices in the order in which the kernel lists `/sys/class/net`, and rails of separate
switches cannot reach each other across pairs: nodes must list them in the same order (`bench/peers/fabric.py` draws namespaces
until they do). With `sysv` or `posix` among its transports, UCX sends a share of the bytes between these nodes through
shared memory, because they are on one machine; each run is checked to have sent all bytes over the rails. MPICH over UCX sometimes hangs in `MPI_Finalize` behind the last job; that does not count here.

```sh dev
./dev bench peers                                     # all cells, about an hour, writes docs/peers.md
./dev bench peers --quick                             # a selection, ten minutes, writes build/peers/peers.md
./dev bench peers --cells 'uniform.1rank.*' --repeat 5
```
"""


def aligned(rows):
    """A Markdown table with columns of equal width. The first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def shown(values, least=True):
    """Texts of a row of values. None: the way stopped."""
    good = [value for value in values if value is not None]
    first = (min(good) if least else max(good)) if good else None

    def near(value):
        return value <= 1.03 * first if least else value >= first / 1.03

    return ["stops" if value is None else f"**{value:.3f}**" if near(value) else f"{value:.3f}" for value in values]


def table(cells, ways, scores, label):
    rows = [[""] + [way.label for way in ways]]
    for cell in cells:
        rows.append([label(cell)] + shown([scores[cell][way.name].value for way in ways]))
        if cell.state == "dying":
            rows.append(["later jobs"] + shown([scores[cell][way.name].after for way in ways]))
    return aligned(rows)


def ranks_text(ranks):
    return "1 rank a node" if ranks == 1 else f"{ranks} ranks a node"


def healthy_tables(ways, scores):
    out, panels = [], []
    for ranks in (1, 4):
        line = []
        for mib in (1, 16, 64):
            cells = [cell for cell in scores if cell.batch == ("healthy", ranks, mib)]
            if not cells:
                continue
            title = f"{ranks_text(ranks)}, {mib} MiB a rank"
            out.append(f"## {title}\n\n" + table(cells, ways, scores, lambda cell: f"`{cell.workload}`"))
            line.append((title, [(cell.workload, {way.name: scores[cell][way.name].value for way in ways}) for cell in cells]))
        if line:
            panels.append(line)
    return out, panels


def broken_tables(ways, scores):
    out = []
    titles = {"slow": "One rail at half speed", "dead": "One rail dead from the start", "dying": "One rail dies in mid-run"}
    for state, title in titles.items():
        cells = [cell for cell in scores if cell.state == state]
        if cells:
            out.append(f"## {title}\n\n" + table(cells, ways, scores, lambda cell: f"`{cell.workload}`, {cell.ranks} x {cell.mib} MiB"))
    return out


def unshaped_table(ways, scores):
    out = []
    for cell in scores:
        if cell.state == "unshaped":
            row = scores[cell]
            costs = [row[way.name].per_gigabyte for way in ways]
            out.append(f"## Unshaped: what it costs the processors\n\n{cell.mib} MiB a rank, `{cell.workload}`, {ranks_text(cell.ranks)}; "
                       "bytes between nodes. Processor seconds are those of the daemons or of\nthe ranks during jobs, and of the kernel's ksoftirqd "
                       "meanwhile; MPI ranks spin while they wait, which counts.\n\n" + aligned(
                           [[""] + [way.label for way in ways],
                            ["GB/s"] + shown([row[way.name].value for way in ways], least=False),
                            ["processor seconds per GB"] + shown(costs)]))
    return out


def stopped(ways, scores):
    rows = [["cell", "way", "why"]]
    for cell, row in scores.items():
        for way in ways:
            if row[way.name].stopped:
                rows.append([f"`{cell.name}`", way.label, row[way.name].stopped.replace("|", "/")])
    return "## What stopped\n\n" + (aligned(rows) if len(rows) > 1 else "Nothing.\n")


def summary(scores):
    """How often the daemons come first."""
    shaped = [cell for cell in scores if cell.state != "unshaped" and scores[cell]["railsd"].value is not None]
    first = alone = 0
    for cell in shaped:
        peer = best_peer(scores[cell])
        ratio = scores[cell]["railsd"].value / scores[cell][peer].value if peer else 0
        first += ratio <= 1.03
        alone += ratio < 1
    return f"railsd is first in {alone} of {len(shaped)} shaped cells, and first or within 3 % of the first in {first}."


def write_page(folder, ways, scores, run, trace):
    folder.mkdir(parents=True, exist_ok=True)
    tables, panels = healthy_tables(ways, scores)
    text = HEAD.format(run=run, summary=summary(scores), plot="peers.svg")
    text += "\n".join(tables + broken_tables(ways, scores) + unshaped_table(ways, scores) + [stopped(ways, scores)])
    text += METHOD.format(nodes=matrices.NODES, rails=matrices.RAILS, trace=trace,
                          workloads="\n".join(f"| `{name}` | {what} |" for name, what in matrices.WORKLOADS.items()),
                          states="\n".join(f"| {name} | {what} |" for name, what in matrices.STATES.items()))
    (folder / "peers.md").write_text(text, encoding="utf-8")
    (folder / "peers.svg").write_text(plot(panels, ways) if panels else plot([[("no healthy cell", [])]], ways), encoding="utf-8")
