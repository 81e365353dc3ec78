"""Clusters of real daemons for the tests of the Python client, and ranks in threads.

    /usr/bin/python3 -m pytest tests/python [--build build/release] [-k NAME]
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/integration")]

import harness  # noqa: E402  (found by the line above)


def pytest_addoption(parser):
    parser.addoption("--build", default=str(ROOT / "build/release"), help="the build that is tested")


def pytest_configure(config):
    harness.BUILD = Path(config.getoption("--build")).resolve()
    os.environ.setdefault("RAILS_LIBRARY", str(harness.BUILD / "client/c/librails.so"))
    os.environ["PYTHONPATH"] = str(ROOT / "client/python")  # of programs that tests start


def start_cluster():
    return harness.clusters.Cluster(harness.clusters.Settings(nodes=2, rails=2, speed="1gbit"), build=harness.BUILD)


@pytest.fixture(scope="session")
def shared_cluster():
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    """Two daemons, which must be without sessions in the end."""
    yield shared_cluster
    gc.collect()
    for node in shared_cluster.nodes:
        harness.eventually(lambda node=node: not status(shared_cluster, node)["sessions"],
                           lambda node=node: f"{node.name} has no session: {status(shared_cluster, node)['sessions']}", patience=10)


@pytest.fixture
def own_cluster():
    """Two daemons that the test may end."""
    with start_cluster() as cluster:
        yield cluster


def status(cluster, node):
    return cluster.overview(node)["status"]


def sockets(cluster, rank=0, nodes=2):
    """The socket directory of a rank's node."""
    return cluster.nodes[rank % nodes].sockets


@contextlib.contextmanager
def programs(*commands, limit=150):
    """Starts Python programs, each given by its command line and more variables of the environment. They end with the block, or after
    `limit` seconds, as does what they have started."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, env={**variables, **more}, text=True, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command, more in commands]

    def kill():
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    timer = threading.Timer(limit, kill)
    timer.start()
    try:
        yield started
    finally:
        timer.cancel()
        kill()
        for process in started:
            process.wait()
            process.stdout.close()


def run_ranks(cluster, world, body, nodes=2, driver=None, **options):
    """Calls body(client, group) for each rank in a thread of its own; rank r is on node r % nodes. Returns the results.
    `driver`: of the device with which each rank joins; default: without."""
    import rails
    results, failures = [None] * world, []

    def run(rank):
        try:
            with rails.connect(sockets(cluster, rank, nodes)) as client:
                device = {} if driver is None else {"device": client.open_device(driver=driver)}
                with client.join(run_ranks.group, rank, world, **device, **options) as group:
                    results[rank] = body(client, group)
        except BaseException as error:  # raised below
            failures.append(error)
    run_ranks.number += 1
    run_ranks.group = f"group {run_ranks.number}"
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(harness.PATIENCE)
        assert not thread.is_alive(), "a rank hangs"
    if failures:
        raise failures[0]
    return results


run_ranks.number = 0
