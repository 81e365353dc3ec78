"""Runs the steps of `./dev test` side by side: as many at once as there are processors for, never two that need the
same lock, each as soon as the steps that it needs have succeeded.

A step is a program. Compilers run beside everything else at a low priority and count as no load, so they use the time
in which tests wait.
"""

import contextlib
import dataclasses
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKGROUND = 10  # niceness of compilers
MAX_SHOWN = 40_000  # characters at the end of a failed step's output


def give_way(process):
    """Lowers the share of a whole session. With autogroups (sched(7)) the kernel divides the processors among sessions,
    and niceness counts only within one; each step is a session."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/autogroup").write_text(str(BACKGROUND))


@dataclasses.dataclass
class Outcome:
    """The result of a step. `seconds`: wall time. `cpu_seconds`: processor time of the step and of children that it has
    waited for."""

    passed: int = 0
    failed: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    ran: bool = True
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)


@dataclasses.dataclass
class Step:
    """One program to run.

    name:     unique; other steps name it in `after`.
    judge:    makes an Outcome of the exit status and the output; called on the scheduler's thread.
    after:    names of steps that must have succeeded; without them this one is not run and has failed.
    follow:   called when the step has succeeded; gives further steps, such as the test programs of a build.
    load:     processors that it keeps busy, on average.
    locks:    names of things that one step at a time may use, such as the emulated fabric.
    rank:     steps of a lower rank begin first; long ones should.
    live:     its output is shown as it comes; without `live` only if the step fails.
    """

    name: str
    suite: str
    command: list
    judge: Callable
    after: tuple = ()
    follow: Callable = None
    load: float = 1.0
    locks: frozenset = frozenset()
    rank: int = 50
    background: bool = False
    live: bool = False
    timeout_seconds: float = 1800.0
    outcome: Outcome = None


def without_successes(text):
    """The output of a test program without GoogleTest's cases that passed and what they said."""
    return re.sub(r"^\[ RUN      \] (.*)\n(?:(?!\[ RUN      \] ).*\n)*?\[       OK \] \1.*\n", "", text, flags=re.MULTILINE)


def end(processes):
    """Ends process groups: first with SIGINT, as Ctrl-C does, so that they tidy up, then with SIGTERM and SIGKILL."""
    for how, patience_seconds in ((signal.SIGINT, 20), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        deadline = time.monotonic() + patience_seconds
        while any(process.returncode is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.1)


class Scheduler:
    """Runs steps until all have ended. Used by one thread."""

    def __init__(self, say, processors=None):
        self.steps = []
        self._say = say
        self._processors = processors or os.cpu_count() or 1
        self._waiting, self._running, self._ended = [], {}, queue.Queue()
        self._count = 0

    def add(self, steps):
        self.steps += steps
        self._waiting += steps

    def run(self):
        """Runs all steps, and the steps that their `follow` adds. Ends all of them when it is interrupted."""
        try:
            while self._waiting or self._running:
                self._drop_hopeless()
                self._start_ready()
                if self._running:
                    self._finish(*self._ended.get())
        finally:
            if self._running:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
                end(list(self._running.values()))

    def _succeeded(self, name):
        """True, False, or None while it is not known."""
        found = [step.outcome for step in self.steps if step.name == name]
        if not found:
            return False
        return None if found[0] is None else found[0].ran and not found[0].failed

    def _drop_hopeless(self):
        for step in list(self._waiting):
            missing = [name for name in step.after if self._succeeded(name) is False]
            if missing:
                self._waiting.remove(step)
                step.outcome = Outcome(failed=1, notes=[f"{step.name}: not run, because it needs: {', '.join(missing)}"],
                                       ran=False)

    def _start_ready(self):
        running = [step for step in self.steps if step.name in self._running]
        for step in sorted(self._waiting, key=lambda step: step.rank):
            load = sum(other.load for other in running)
            held = frozenset().union(*(other.locks for other in running))
            if all(map(self._succeeded, step.after)) and not held & step.locks and (
                    load == 0 or step.load == 0 or load + step.load <= self._processors):
                self._start(step)
                running.append(step)

    def _start(self, step):
        self._waiting.remove(step)
        output = tempfile.NamedTemporaryFile(prefix="railsd-step-")
        command = ["nice", "-n", str(BACKGROUND)] * step.background + [str(part) for part in step.command]
        try:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            step.outcome = Outcome(failed=1, notes=[f"{step.name}: {error}"], ran=False)
            self._say(f"FAILED {step.name}: {error}")
            return
        if step.background:
            give_way(process)
        self._running[step.name] = process
        threading.Thread(target=self._wait, args=(step, process, output), daemon=True).start()

    def _wait(self, step, process, output):
        """Waits for a step on a thread of its own; ends it when it takes too long."""
        begin, late, ended = time.monotonic(), threading.Event(), threading.Event()

        def give_up():
            late.set()
            end([process])
        timer = threading.Timer(step.timeout_seconds, give_up)
        timer.daemon = True
        timer.start()
        showing = threading.Thread(target=self._show, args=(output.name, ended), daemon=True)
        if step.live:
            showing.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        timer.cancel()
        ended.set()
        if step.live:
            showing.join()
        output.seek(0)
        text = output.read().decode(errors="replace")
        output.close()
        self._ended.put((step, process.returncode, text, late.is_set(), seconds, usage.ru_utime + usage.ru_stime))

    def _show(self, path, ended):
        """Shows what is written to a file, line by line, until the step has ended."""
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            rest, last = "", False
            while True:
                rest += file.read()
                *lines, rest = rest.split("\n")
                for line in lines:
                    self._say(line)
                if last:
                    return
                last = ended.wait(0.5)

    def _finish(self, step, status, text, late, seconds, cpu_seconds):
        del self._running[step.name]
        step.outcome = step.judge(status, text)
        step.outcome.seconds, step.outcome.cpu_seconds = seconds, cpu_seconds
        if late:
            step.outcome.fail(f"{step.name} took longer than {step.timeout_seconds:.0f} s and was ended")
        if step.follow and not step.outcome.failed:
            try:
                self.add(step.follow())
            except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                step.outcome.fail(f"{step.name}: what follows it is not known: {error}")
        if step.outcome.failed and not step.live:
            self._say(without_successes(text)[-MAX_SHOWN:].rstrip())
        self._count += 1
        self._say(f"[{self._count:>3}/{len(self.steps)}] {'FAILED' if step.outcome.failed else 'ok':<7}"
                  f"{step.name:<48}{step.outcome.passed:>5} passed{step.outcome.failed:>4} failed"
                  f"{seconds:>8.1f} s{cpu_seconds:>8.1f} s cpu")
