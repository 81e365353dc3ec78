"""One runner for each way of moving the same matrices: the daemons, Open MPI, MPICH and Gloo."""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from cluster import Cluster, ClusterError, Settings, die_with_parent
from peers.cells import BLOCK, BROKEN_NODE, BROKEN_RAIL, NODES, RAILS, bound, node_matrix, total
from peers.fabric import installed

HERE = Path(__file__).resolve().parent
SYSTEM_PYTHON = "/usr/bin/python3"  # the only one that sees Debian's torch
START_SECONDS = 20  # for a launcher, and for Python to import torch

IDLE_TALK = ("Warning", "help message", "help_aggregate", "potentially your MPI job")  # lines that hold no reason


@dataclasses.dataclass
class Outcome:
    """The jobs of one cell in one round. `stopped`: why jobs are missing; empty if all have run."""

    seconds: list
    wrong: int = 0
    processor_seconds: float = 0
    processor_bytes: int = 0
    stopped: str = ""


@dataclasses.dataclass
class Task:
    """A cell with its matrix, as rows and as a file."""

    cell: object
    rows: list
    path: Path

    def limit(self, jobs):
        """Seconds after which a program that says nothing counts as stopped."""
        least = bound(self.cell, self.rows)
        if self.cell.state == "unshaped":
            least /= 20
        patience = 5 if self.cell.state == "dying" else 8  # the slowest peer needs 6.5 times the bound
        return 10 + jobs * (total(self.rows) / 200e6 + patience * least)


def rails_of(state, tuned):
    """The rails that a peer is told to use. Tuning leaves out the rail that is dead from the start."""
    return ",".join(f"rail{r}" for r in range(RAILS) if not (tuned and state == "dead" and r == BROKEN_RAIL))


class Program:
    """A way that starts one process for each rank and a launcher, for a list of matrices. The base of all peers."""

    def __init__(self, name, label, tuned):
        self.name, self.label, self.tuned = name, label, tuned

    def command(self, fabric, ranks, steps, warmup, paths):
        raise NotImplementedError

    def open(self, fabric, batch):
        """Called before the rounds of a batch."""

    def close(self):
        """Called after them."""

    def run(self, fabric, tasks, steps, warmup, spared):
        """Runs all tasks. If the program stops at a task, ends it and starts it again for the tasks after that one.
        `spared`: ids of processes in the nodes that must live."""
        outcomes, left = {}, list(tasks)
        while left:
            answers, why = self._launch(fabric, left, steps, warmup, spared)
            for task, answer in zip(left, answers):
                outcomes[task.cell] = Outcome(answer["seconds"], answer["wrong_words"], answer["processor_seconds"],
                                              steps * total(task.rows))
            if len(answers) < len(left):
                outcomes[left[len(answers)].cell] = Outcome([], stopped=why)
            left = left[len(answers) + 1:]
        return outcomes

    def _launch(self, fabric, tasks, steps, warmup, spared):
        cut = Cut(fabric, tasks[0], warmup) if tasks[0].cell.state == "dying" else contextlib.nullcontext()
        command = self.command(fabric, tasks[0].cell.ranks, steps, warmup, [task.path for task in tasks])
        with tempfile.TemporaryFile("w+") as errors, cut:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=errors, start_new_session=True, preexec_fn=die_with_parent,
                                       env={**os.environ, "TMPDIR": str(fabric.folder)})
            try:
                answers, why = self._answers(process, tasks, steps + warmup)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process.stdout.close()
                fabric.end_programs(spared)
                if tasks[0].cell.state == "dying":
                    fabric.mend()
            errors.seek(0)
            said = [line.strip() for line in errors.read().splitlines()
                    if line.strip(" -\n") and not any(word in line for word in IDLE_TALK)]
        return answers, f"{why}: {said[-1][-160:]}" if why and said else why

    @staticmethod
    def _answers(process, tasks, jobs):
        """Reads an answer for each task. Returns the answers, and the reason if some are missing or else an empty text.
        Does not wait for the end of the program, because MPICH over UCX sometimes hangs in MPI_Finalize."""
        answers, pending = [], b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            for number, task in enumerate(tasks):
                deadline = time.monotonic() + task.limit(jobs) + (START_SECONDS if number == 0 and task.cell.state != "dying" else 0)
                while b"\n" not in pending:
                    if not selector.select(max(0, deadline - time.monotonic())):
                        return answers, "hangs"
                    piece = os.read(process.stdout.fileno(), 1 << 16)
                    if not piece:
                        return answers, "ends"
                    pending += piece
                    while b"\n" in pending and not pending.startswith(b"{"):  # UCX prints warnings to standard output
                        pending = pending.partition(b"\n")[2]
                line, _, pending = pending.partition(b"\n")
                answers.append(json.loads(line))
        return answers, ""


class Cut:
    """A context manager that lets a rail die while the program inside it runs: in its second job after the warm-up."""

    def __init__(self, fabric, task, warmup):
        # Bytes that the node where the rail dies sends in one job.
        ranks = task.cell.ranks
        sent = sum(map(sum, task.rows[BROKEN_NODE * ranks:(BROKEN_NODE + 1) * ranks]))
        self._fabric, self._stop = fabric, threading.Event()
        self._thread = threading.Thread(target=fabric.cut_after, args=((warmup + 1.5) * sent, self._stop))

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Mpi(Program):
    """A way through alltoallv.c, compiled for the MPI."""

    kind = "collective"

    def build(self, folder):
        self.program = folder / f"alltoallv_{self.suffix}"
        if not self.program.exists():
            subprocess.run([f"mpicc.{self.suffix}", "-O2", "-o", self.program, HERE / "alltoallv.c"], check=True)

    def available(self):
        return installed(f"mpicc.{self.suffix}") and installed(f"mpirun.{self.suffix}")

    def work(self, steps, warmup, paths):
        return [self.program, steps, warmup, self.kind, "steps", *paths]


class OpenMpi(Mpi):
    suffix = "openmpi"

    def flags(self, state):
        raise NotImplementedError

    def command(self, fabric, ranks, steps, warmup, paths):
        hosts = ",".join(f"{fabric.management(node)}:{ranks}" for node in range(NODES))
        return fabric.command_inside(
            ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--host", hosts, "-n", NODES * ranks,
             "--mca", "plm_rsh_agent", fabric.agent, "--mca", "oob_tcp_if_include", "mgmt", "--mca", "mpi_yield_when_idle", "1",
             "--mca", "btl_vader_backing_directory", fabric.folder, *self.flags(fabric.state), *self.work(steps, warmup, paths)])


class OpenMpiTcp(OpenMpi):
    def flags(self, state):
        flags = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include",
                 rails_of(state, self.tuned)]
        if self.tuned:
            flags += ["--mca", "btl_tcp_flags", "1"]  # no put
        if self.tuned and state == "slow":
            for rail in range(RAILS):
                flags += ["--mca", f"btl_tcp_bandwidth_rail{rail}", "100" if rail == BROKEN_RAIL else "200"]
        return flags


UCX_HERE = {"UCX_TLS": "tcp,self"}  # if UCX may use shared memory, it sends bytes between these nodes through it
UCX_TUNED = {"UCX_MAX_EAGER_RAILS": "4", "UCX_MAX_RNDV_RAILS": "4", "UCX_RNDV_THRESH": "inf"}


def ucx(state, tuned):
    return {**UCX_HERE, "UCX_NET_DEVICES": rails_of(state, tuned), **(UCX_TUNED if tuned else {})}


class OpenMpiUcx(OpenMpi):
    @property
    def kind(self):
        return "isend" if self.tuned else "collective"

    def flags(self, state):
        flags = ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]
        for name, value in ucx(state, self.tuned).items():
            flags += ["-x", f"{name}={value}"]
        return flags


class Mpich(Mpi):
    suffix = "mpich"

    def command(self, fabric, ranks, steps, warmup, paths):
        hosts = ",".join(f"{fabric.management(node)}:{ranks}" for node in range(NODES))
        flags = ["-genv", "MPIR_CVAR_POLLS_BEFORE_YIELD", "1"]
        for name, value in ucx(fabric.state, self.tuned).items():
            flags += ["-genv", name, value]
        return fabric.command_inside(
            ["mpirun.mpich", "-localhost", fabric.management(0), "-iface", "mgmt", "-launcher", "ssh", "-launcher-exec",
             fabric.agent, "-hosts", hosts, "-n", NODES * ranks, *flags, *self.work(steps, warmup, paths)])


class Gloo(Program):
    def available(self):
        return subprocess.run([SYSTEM_PYTHON, "-c", "import torch.distributed"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def build(self, _folder):
        pass

    def command(self, fabric, ranks, steps, warmup, paths):
        return [SYSTEM_PYTHON, HERE / "gloo_ranks.py", "--prefix", fabric.prefix, "--ranks-per-node", ranks, "--jobs", steps,
                "--warmup", warmup, "--at-once", RAILS if self.tuned else 1, "--rails", rails_of(fabric.state, self.tuned),
                *paths]


class Railsd:
    """The daemons of this build, with default settings except for the rails' speed."""

    name, label, tuned = "railsd", "railsd", False

    def __init__(self, build):
        self._build, self._cluster = build, None

    def available(self):
        return True

    def build(self, _folder):
        pass

    def open(self, fabric, batch):
        speed = "10gbit" if batch[0] == "unshaped" else fabric.rate
        needed = RAILS - 1 if batch[0] == "dead" else RAILS
        self._cluster = Cluster(Settings(NODES, RAILS, speed, rails_up=needed), build=self._build, addresses=fabric)
        self._cluster.__enter__()

    def close(self):
        if self._cluster:
            self._cluster.__exit__(None, None, None)
            self._cluster = None

    def pids(self):
        return [node.pid for node in self._cluster.nodes] if self._cluster else []

    def _replay(self, task, path, steps, warmup, *more):
        """Returns the seconds of each step and the number of wrong bytes."""
        report = self._cluster.replay(path, "--no-combine", "--bytes-per-rank", 0, "--verify", "--ranks-per-node",
                                      task.cell.ranks, "--steps", steps, "--warmup", warmup, *more,
                                      timeout=START_SECONDS + task.limit(warmup + steps))
        return [step["seconds"] for step in report["per_step"]], report["wrong_bytes"]

    def _jobs(self, task, steps, warmup):
        trace = as_trace(task, steps)
        if trace:
            path = task.path.with_suffix(f".{steps}.trace.csv")
            path.write_text(trace, encoding="ascii")
            return self._replay(task, path, steps, warmup, "--trace-ranks-per-node", NODES, "--bytes-per-token", BLOCK)
        runs = [self._replay(task, task.path, 1, warmup) for _ in range(steps)]
        return [seconds[0] for seconds, _ in runs], sum(wrong for _, wrong in runs)

    def _processor_seconds(self):
        return sum(sum(node.cpu_seconds()) for node in self._cluster.nodes)

    def run(self, fabric, tasks, steps, warmup, _spared):
        outcomes = {}
        for task in tasks:
            outcome, before = Outcome([]), self._processor_seconds()
            dying = task.cell.state == "dying"
            try:
                with Cut(fabric, task, warmup) if dying else contextlib.nullcontext():
                    outcome.seconds, outcome.wrong = self._jobs(task, steps, warmup)
            except ClusterError as error:
                outcome.stopped = str(error).splitlines()[0]
            if dying:
                fabric.mend()
            # The measured processor time includes the warm-up, so only a part of it counts.
            outcome.processor_seconds = (self._processor_seconds() - before) * steps / (steps + warmup)
            outcome.processor_bytes = steps * total(task.rows)
            outcomes[task.cell] = outcome
        return outcomes


def as_trace(task, steps):
    """A routing trace of equal steps, which a replay runs in one session. The matrix must be even over the ranks of
    each node. Returns "" for other matrices, of which a replay runs one step."""
    ranks, nodes = task.cell.ranks, node_matrix(task.rows, task.cell.ranks)
    for a, row in enumerate(task.rows):
        for b, length in enumerate(row):
            if length * ranks * ranks != nodes[a // ranks][b // ranks]:
                return ""
    lines = ["rank,model,layer,iter,tokens"]
    for step in range(steps):
        lines += [f"{NODES * i + j},matrix,0,{step},{nodes[i][j] // BLOCK}" for i in range(NODES) for j in range(NODES)]
    return "\n".join(lines) + "\n"


def all_ways(build):
    return [
        Railsd(build),
        OpenMpiTcp("ompi_tcp", "Open MPI, TCP", False),
        OpenMpiTcp("ompi_tcp_tuned", "Open MPI, TCP, tuned", True),
        OpenMpiUcx("ompi_ucx", "Open MPI, UCX", False),
        OpenMpiUcx("ompi_ucx_tuned", "Open MPI, UCX, tuned", True),
        Mpich("mpich_ucx", "MPICH, UCX", False),
        Mpich("mpich_ucx_tuned", "MPICH, UCX, tuned", True),
        Gloo("gloo", "Gloo", False),
        Gloo("gloo_tuned", "Gloo, tuned", True),
    ]
