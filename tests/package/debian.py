"""Clean Debian roots in which packages are tried, and machines that boot from them (systemd-nspawn)."""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/integration")]

import debian_root  # noqa: E402  (found by the line above)
import doc_blocks  # noqa: E402
import harness  # noqa: E402

PACKAGES = ROOT / "build/packages"
NAMES = ["railsd", "railsctl", "librailsd-client", "librailsd-client-dev", "python3-rails", "railsd-dashboards"]
# Packages of a machine that boots and compiles trainers.
TOOLS = ["systemd", "systemd-sysv", "g++", "cmake", "make", "pkg-config"]
APT = ["apt-get", "-q", "-y", "--no-install-recommends", "-o", "APT::Sandbox::User=root"]


def packages():
    """The packages of build/packages, by name."""
    found = {deb.name.split("_")[0]: deb for deb in PACKAGES.glob("*.deb")}
    if sorted(found) != sorted(NAMES):
        raise AssertionError(f"build/packages holds {sorted(found)}: ./dev package makes {NAMES}")
    return found


def run(*command, **options):
    """Runs a command to its end; returns its standard output, and raises with all that it said when it failed."""
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-6000:]}\n"
                             f"{done.stderr[-6000:]}")
    return done.stdout


class Root:
    """A root file system of its own, gone at the end. It has TOOLS, and what our packages depend on lies in apt's cache."""

    def __init__(self):
        debian_root.ROOTS.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="root-", dir=debian_root.ROOTS)
        self.path = Path(self._folder.name) / "root"

    def __enter__(self):
        archive = tools_tar()
        self.path.mkdir()
        run("tar", "-C", self.path, "--numeric-owner", "-xpf", archive)
        self.add_packages(packages().values())
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def add_packages(self, debs):
        """Puts packages where apt inside finds them: the folder /packages."""
        (self.path / "packages").mkdir(exist_ok=True)
        for deb in debs:
            shutil.copy(deb, self.path / "packages")

    def run(self, *command, network=False):
        """Runs a command inside, where nothing else runs, to its end; returns what it printed."""
        return inside(self.path, *command, network=network)

    def apt(self, *arguments):
        return self.run("env", "DEBIAN_FRONTEND=noninteractive", *APT, *arguments, network=True)

    def exists(self, path):
        return os.path.lexists(self.path / path.lstrip("/"))

    def read(self, path):
        return (self.path / path.lstrip("/")).read_text()

    def write(self, path, text):
        (self.path / path.lstrip("/")).write_text(text)


def page_blocks(label):
    """The blocks of commands in the pages of documentation that have this label; doc_blocks.py."""
    pages = [*sorted((harness.ROOT / "docs").glob("*.md")), harness.ROOT / "deploy/RUNBOOK.md"]
    return [block for page in pages for block in doc_blocks.blocks(page, label, harness.ROOT)]


def inside(path, *command, network=False):
    with machine_name() as name:
        nspawn = ["systemd-nspawn", "-q", "-D", path, f"--machine={name}", "--register=no", "--keep-unit", "--pipe",
                  "--as-pid2"]
        nspawn += ["--resolv-conf=copy-host"] if network else ["--private-network"]
        return run(*nspawn, *command)


@contextlib.contextmanager
def machine_name():
    """A name that no other machine has. systemd-nspawn does not remove what it keeps under it."""
    name = f"railsd-{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(f"/run/systemd/nspawn/propagate/{name}")


def tools_tar():
    """Path of the archive of a root with TOOLS and what our packages depend on; made again when that changes."""
    base = debian_root.base_tar()
    depends = {name for deb in packages().values() for name in run("dpkg-deb", "-f", deb, "Depends").strip().split(", ")
               if not name.startswith(tuple(NAMES))}
    archive = debian_root.ROOTS / f"package-{hashlib.sha256(repr((TOOLS, sorted(depends))).encode()).hexdigest()[:12]}.tar"
    with open(debian_root.ROOTS / "tools.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in debian_root.ROOTS.glob("package-*.tar"):
                old.unlink()
            with tempfile.TemporaryDirectory(prefix="tools-", dir=debian_root.ROOTS) as folder:
                root = Path(folder) / "root"
                root.mkdir()
                run("tar", "-C", root, "--numeric-owner", "-xpf", base)
                apt = ["env", "DEBIAN_FRONTEND=noninteractive", *APT]
                inside(root, *apt, "update", network=True)
                inside(root, *apt, "install", *TOOLS, network=True)
                inside(root, *apt, "clean")
                (root / "packages").mkdir()
                for deb in packages().values():
                    shutil.copy(deb, root / "packages")
                inside(root, *apt, "install", "--download-only", *inner(packages().values()), network=True)
                shutil.rmtree(root / "packages")
                run("tar", "-C", root, "--numeric-owner", "--one-file-system", "-cf", f"{folder}/root.tar", ".")
                os.replace(f"{folder}/root.tar", archive)
    return archive


def inner(debs):
    """Where packages that were added lie inside."""
    return [f"/packages/{deb.name}" for deb in debs]


def repacked(deb, version, folder):
    """The same package as another version; returns its path in `folder`."""
    tree = Path(folder) / f"{deb.name}.tree"
    run("dpkg-deb", "-R", deb, tree)
    control = tree / "DEBIAN/control"
    old = run("dpkg-deb", "-f", deb, "Version").strip()
    control.write_text(control.read_text().replace(f"Version: {old}", f"Version: {version}")
                       .replace(f"(= {old})", f"(= {version})"))
    path = Path(folder) / f"{deb.name.split('_')[0]}_{version}_amd64.deb"
    run("dpkg-deb", "--root-owner-group", "-b", tree, path)
    return path


class Machine:
    """A machine that booted from a root, with a network of its own that has loopback addresses only."""

    def __init__(self, root, binds=()):
        self._names = contextlib.ExitStack()
        name = self._names.enter_context(machine_name())
        command = ["systemd-nspawn", "-q", "-D", str(root.path), f"--machine={name}", "--boot", "--register=no", "--keep-unit",
                   "--private-network", "--drop-capability=CAP_SYS_RESOURCE", "--console=pipe",
                   *(f"--bind-ro={path}" for path in binds)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, start_new_session=True,
                                         preexec_fn=harness.clusters.die_with_parent)
        self.root = root
        os.set_blocking(self._process.stdout.fileno(), False)
        self._console = b""

    def __enter__(self):
        try:
            harness.eventually(self._booted, lambda: f"the machine boots; its console:\n{self.console()}", patience=240)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()  # which systemd-nspawn makes a shutdown of
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._names.close()

    def console(self):
        with contextlib.suppress(OSError, TypeError):
            self._console += self._process.stdout.read() or b""
        return self._console[-4000:].decode(errors="replace")

    def _leader(self):
        """The machine's first process, as this side numbers it."""
        if self._process.poll() is not None:
            raise AssertionError(f"the machine ended with {self._process.returncode}\n{self.console()}")
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                numbers = [line for line in Path(f"/proc/{child}/status").read_text().split("\n")
                           if line.startswith("NSpid:")]
                if numbers[0].split()[1:] == [child, "1"]:
                    return int(child)
        return None

    def _booted(self):
        self.console()  # keeps the pipe from filling
        if self._leader() is None:
            return False
        return self.try_("systemctl", "is-system-running")[1].strip() in ("running", "degraded")

    def command(self, *command, user=None):
        """The command line that starts a command inside, as root or as a user with the groups of that user."""
        become = ["setpriv", "--reuid", user, "--regid", "users", "--init-groups"] if user else []
        return ["nsenter", "-t", str(self._leader()), "-m", "-u", "-i", "-n", "-p", "-r", "-w", *become,
                *map(str, command)]

    def try_(self, *command, user=None):
        """Runs a command inside; returns its exit status and what it printed."""
        done = subprocess.run(self.command(*command, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False, timeout=240)
        return done.returncode, done.stdout

    def run(self, *command, user=None):
        status, output = self.try_(*command, user=user)
        if status != 0:
            raise AssertionError(f"{shlex.join(map(str, command))} ended with {status}\n{output}\n{self.journal()}")
        return output

    def journal(self):
        self.try_("journalctl", "--sync")  # or else what a service has just said may not be stored
        return self.try_("journalctl", "-u", "railsd", "-n", "60", "--no-pager", "-o", "cat")[1]

    def show(self, prop, unit="railsd"):
        """A property of a unit, as `systemctl show` has it."""
        return self.run("systemctl", "show", "-P", prop, unit).strip()

    def ctl(self, *arguments, user=None, **options):
        return json.loads(self.run("railsctl", *arguments, "--json", user=user, **options))

    def outer_pid(self, pid):
        """The number that this side has for a process of the machine."""
        space = os.readlink(f"/proc/{self._leader()}/ns/pid")
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == space:
                    status = (entry / "status").read_text()
                    if status.split("NSpid:")[1].split("\n")[0].split()[-1] == str(pid):
                        return int(entry.name)
        raise AssertionError(f"no process {pid} in the machine")


class MachineTrainer(harness.Trainer):
    """A trainer (tests/integration/trainer.cc) in a machine, run by a user of it."""

    def __init__(self, machine, program, user, socket_dir):
        self.process = subprocess.Popen(machine.command(program, user=user), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.input, self.output, self.pid = self.process.stdin, self.process.stdout, self.process.pid
        self.must(do="connect", socket_dir=socket_dir)


class RootTest(unittest.TestCase):
    """Tests that share a root; they run in the order of their names."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("packages are installed into a root of their own: that needs root")
        cls.root = cls.enterClassContext(Root())
