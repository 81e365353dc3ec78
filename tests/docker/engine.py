"""A Docker engine for the tests: the one that runs, or else one of their own.

An engine of its own lives in namespaces of its own for the network, mounts and processes, so that whatever it does to
bridges, routes, forwarding and iptables is gone with it; slirp4netns joins it to the outside without touching the
machine's settings. Images and build caches stay under build/docker for the next run.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STATE = ROOT / "build/docker"
DOCKER = "/usr/bin/docker"  # Debian's: another one that lies in the way may know no BuildKit
PATIENCE = 120.0  # seconds until an engine that does not begin is given up
PR_SET_PDEATHSIG = 1
# Settings of the machine that an engine is known to change.
SETTINGS = ["net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding", "net/ipv4/conf/default/forwarding",
            "net/ipv6/conf/all/forwarding", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"]


class EngineError(Exception):
    """A command of Docker that failed, with what Docker printed."""


def run(*command, check=True, **options):
    """A command to its end; gives what it printed."""
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **options)
    if check and done.returncode != 0:
        raise EngineError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout[-4000:].strip()}")
    return done.stdout


def network_settings():
    """The state of the machine's network: interfaces, addresses, routes, rules, switches."""
    settings = {name: path.read_text().strip() for name in SETTINGS if (path := Path("/proc/sys") / name).exists()}
    links = json.loads(run("ip", "-json", "address", "show"))
    settings["addresses"] = sorted((link["ifname"], link["operstate"], address["local"])
                                   for link in links for address in link["addr_info"])
    settings["links"] = sorted(link["ifname"] for link in links)
    for family in ("-4", "-6"):
        settings[f"routes {family}"] = sorted(route["dst"] for route in json.loads(run("ip", family, "-json", "route")))
    for program in ("iptables", "ip6tables"):
        for table in ("filter", "nat"):
            settings[f"{program} {table}"] = run(program, "-t", table, "-S", check=False).splitlines()
    return settings


def _end_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Engine:
    """A context manager. `environment` is what docker and docker-compose need to find the engine, `command` is docker
    with the same as options."""

    def __init__(self):
        self.environment = dict(os.environ, DOCKER_BUILDKIT="1")
        self.command = [DOCKER]
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            before = network_settings()
            if subprocess.run([DOCKER, "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              check=False).returncode != 0:
                self._start(stack)
            # Last of all, when an engine of our own has ended.
            self._stack.callback(self._settings_are, before)
            self._stack.push(stack.pop_all())
        return self

    def __exit__(self, *_):
        self._stack.close()

    def docker(self, *arguments, **options):
        return run(DOCKER, *arguments, env=self.environment, **options)

    def inspect(self, name):
        """All that the engine knows of a container."""
        return json.loads(self.docker("inspect", "--type", "container", name))[0]

    @staticmethod
    def _settings_are(before):
        after = network_settings()
        changed = {name: (before.get(name), after.get(name)) for name in before.keys() | after.keys()
                   if before.get(name) != after.get(name)}
        if changed:
            raise AssertionError(f"the machine's network is not as it was before: {changed}")

    def _start(self, stack):
        STATE.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context(open(STATE / "lock", "w", encoding="ascii"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as the engine is up: it has the folder for itself
        folder = Path(tempfile.mkdtemp(prefix="railsd-docker-"))  # short: the path of a socket has at most 107 bytes
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        groups = [path for path in Path("/sys/fs/cgroup").glob("*") if path.is_dir()] + [Path("/sys/fs/cgroup")]
        stack.callback(_remove_groups, [path / "docker" for path in groups if not (path / "docker").exists()])
        self.environment["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        self.command += ["--host", f"unix://{folder}/docker.sock"]
        # Not even the path of the machine's own engine.
        begin = (f"ip link set lo up && exec /usr/sbin/dockerd --data-root '{STATE}/data' --exec-root '{folder}/exec' "
                 f"--pidfile '{folder}/pid' --host 'unix://{folder}/docker.sock'")
        with open(STATE / "dockerd.log", "wb") as log:
            outer = subprocess.Popen(
                ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", begin],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_parent)
        stack.callback(self._stop, outer)
        inner = self._wait(outer, lambda: _child(outer.pid))
        with open(STATE / "slirp4netns.log", "wb") as log:
            slirp = subprocess.Popen(["slirp4netns", "--configure", "--mtu=65520", str(inner), "tap0"],
                                     stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                     preexec_fn=_end_with_parent)
        stack.callback(slirp.wait)
        stack.callback(slirp.kill)
        self._wait(outer, lambda: subprocess.run([DOCKER, "info"], env=self.environment, stdout=subprocess.DEVNULL,
                                                 stderr=subprocess.DEVNULL, check=False).returncode == 0)
        self._clear()  # of a run that was killed

    def _clear(self):
        """No containers and no networks any more, in an engine of our own."""
        for container in self.docker("ps", "--all", "--quiet", check=False).split():
            self.docker("rm", "--force", "--volumes", container, check=False)
        self.docker("network", "prune", "--force", check=False)

    @staticmethod
    def _wait(outer, condition):
        deadline = time.monotonic() + PATIENCE
        while True:
            value = condition()
            if value:
                return value
            if outer.poll() is not None or time.monotonic() > deadline:
                end = (STATE / "dockerd.log").read_text(errors="replace")[-3000:]
                raise EngineError(f"no Docker engine: dockerd {'ended' if outer.poll() is not None else 'hangs'}: {end}")
            time.sleep(0.1)

    def _stop(self, outer):
        inner = _child(outer.pid)
        if inner and outer.poll() is None:
            self._clear()
            os.kill(inner, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                outer.wait(30)
        outer.kill()  # takes every process of its namespace with it
        outer.wait()


def _child(pid):
    """The only child of a process, or None while it has none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _remove_groups(groups):
    """Control groups that an engine has left, all of them empty."""
    for group in groups:
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def why_not():
    """Why there can be no engine here; empty where there can."""
    return "" if os.geteuid() == 0 else "the Docker tests need root: an engine, namespaces, a root file system"


if __name__ == "__main__":  # to look around by hand
    with Engine() as engine:
        print(f"export DOCKER_HOST={engine.environment.get('DOCKER_HOST', '')}  # until interrupted", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    sys.exit(0)
