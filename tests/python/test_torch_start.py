"""Ranks of torch as launchers start them: spawned or forked, beside forked children, and again after one of them has died."""

import signal

import pytest
import torch.distributed as dist

import harness
from conftest import programs, status


@pytest.fixture(scope="module")
def all_daemons():
    with harness.clusters.Cluster(harness.clusters.Settings(nodes=4, rails=1, speed="1gbit"), build=harness.BUILD) as cluster:
        yield cluster


@pytest.fixture
def daemons(all_daemons):
    """Four daemons, which must be without sessions in the end."""
    yield all_daemons
    for node in all_daemons.nodes:
        harness.eventually(lambda node=node: not status(all_daemons, node)["sessions"], f"{node.name} has no session", patience=10)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_start_methods(daemons, tmp_path, method, world):
    """Over one daemon and over four, while children are forked."""
    command = "tests/python/torch_start.py", method, world, tmp_path / "store", *(node.sockets for node in daemons.nodes)
    with programs((command, {})) as (process,):
        assert (process.communicate()[0], process.returncode) == ("", 0)


def test_elastic_restart(daemons):
    """The agent's store outlives an attempt in which a rank was killed, and all ranks start again with a higher count."""
    world, lost = 3, 1
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world)}

    def attempt(number):
        return programs(*((["tests/python/torch_elastic_rank.py"], {
            **common, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(number),
            "RAILS_SOCKET_DIR": str(daemons.nodes[rank].sockets)}) for rank in range(world)))
    with attempt(0) as ranks:
        assert [rank.stdout.readline() for rank in ranks] == ["begun\n"] * world
        ranks[lost].kill()
        said = [(rank.communicate()[0], rank.returncode) for rank in ranks]
        assert said == [("", -signal.SIGKILL) if rank == lost else (f"lost {(lost,)}\n", 1) for rank in range(world)]
    with attempt(1) as ranks:
        assert [(rank.communicate()[0], rank.returncode) for rank in ranks] == [("well\n", 0)] * world
