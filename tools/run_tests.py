#!/usr/bin/env python3
"""Runs the test suites side by side and counts their cases. `./dev test` calls this.

The last line of the output is `N passed, N failed`, summed over the suites. The exit status is 0 when nothing failed, 1 when
something did, 2 for a command line that is wrong, 130 after Ctrl-C, which ends every step.
"""

import argparse
import signal
import sys
import time

import test_steps
import test_times
from scheduler import Scheduler
from test_steps import SUITES


def say(text):
    print(text, flush=True)


def report(steps, notes, seconds):
    """The table of suites, then everything that was skipped or failed; returns how many failed."""
    suites = {}
    for step in steps:
        passed, failed, wall, cpu = suites.get(step.suite, (0, 0, 0.0, 0.0))
        suites[step.suite] = (passed + step.outcome.passed, failed + step.outcome.failed, wall + step.outcome.seconds,
                              cpu + step.outcome.cpu_seconds)
        notes = notes + [f"{step.suite}: {note}" for note in step.outcome.notes]
    say(f"\n{'suite':<14}{'passed':>8}{'failed':>8}{'wall s':>9}{'cpu s':>9}")
    for suite, (passed, failed, wall, cpu) in suites.items():
        say(f"{suite:<14}{passed:>8}{failed:>8}{wall:>9.0f}{cpu:>9.0f}")
    say(f"took {seconds:.0f} s")
    for note in notes:
        say(note)
    failed = sum(failed for _, failed, _, _ in suites.values())
    say(f"{sum(passed for passed, _, _, _ in suites.values())} passed, {failed} failed")
    return failed


def main():
    parser = argparse.ArgumentParser(prog="./dev test", description="Runs the test suites side by side.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES) + "; without a name all of them")
    parser.add_argument("--minutes", type=float, help="minutes of the soak (default 1) and of each fuzz program (default: 5 seconds)")
    parser.add_argument("--seed", type=int, help="seed of the soak (default: another one each time, printed) and of the "
                        "fuzz programs (default: 1)")
    parser.add_argument("--json", action="store_true", help="prints the report of the soak as one JSON object")
    parser.add_argument("--times", action="store_true", help="adds a table of every step and every compiled target, longest first")
    options = parser.parse_args()
    for suite in options.suites:
        if suite not in SUITES:
            parser.error(f"no suite '{suite}': {', '.join(SUITES)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    begin = time.monotonic()
    steps, notes = test_steps.steps_of(options.suites or SUITES, options)
    scheduler = Scheduler(say)
    scheduler.add(steps)
    try:
        scheduler.run()
    except (KeyboardInterrupt, SystemExit):
        ended = [step for step in scheduler.steps if step.outcome]
        say(f"interrupted: {len(ended)} of {len(scheduler.steps)} steps had come to their end, the others count as nothing")
        report(ended, notes, time.monotonic() - begin)
        return 130
    if options.times:
        say("\n" + test_times.table(scheduler.steps))
    return 1 if report(scheduler.steps, notes, time.monotonic() - begin) else 0


if __name__ == "__main__":
    sys.exit(main())
