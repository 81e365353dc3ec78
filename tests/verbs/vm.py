"""A virtual machine with Debian's stock kernel, because RDMA needs a kernel that has it.

qemu emulates the processors, so no virtualisation support is needed. The machine's own root file system lies
read-only underneath, so that programs built here run unchanged; what the guest writes goes to its memory, and to
`out`, a folder shared with this side.
"""

import contextlib
import fcntl
import hashlib
import os
import selectors
import shlex
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
STORE = ROOT / "build/verbs-vm"
# For the initial file system: what it takes to mount the host's root. The rest is loaded from there.
MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay"]
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "modprobe": "kmod",
         "ibv_rc_pingpong": "ibverbs-utils", "rdma": "iproute2", "apt-get": "apt", "dpkg": "dpkg"}
MARK = "@@ "  # begins the lines of the console that are for us


class VmError(Exception):
    """Why there is no virtual machine, in words for people."""


def _output(command, **options):
    """Standard output of a command that must succeed."""
    run = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                         **options)
    if run.returncode != 0:
        raise VmError(f"{' '.join(map(str, command))} ended with {run.returncode}: "
                      f"{run.stderr.decode(errors='replace').strip()}")
    return run.stdout


def _check_tools():
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool, path=path)]
    if missing:
        raise VmError(f"missing: {', '.join(missing)}; `./dev setup verbs` installs them")


def _kernel_version():
    """Version of the kernel in the store; downloads and unpacks Debian's current one when there is none."""
    note = STORE / "kernel.version"
    if note.exists():
        version = note.read_text().strip()
        if (STORE / f"boot/vmlinuz-{version}").exists():
            return version
    # The meta package names the current kernel. The cloud kernels have neither Soft-RoCE nor 9p.
    depends = _output(["apt-cache", "depends", "linux-image-amd64"]).decode()
    names = [line.split()[1] for line in depends.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise VmError("apt knows no package linux-image-amd64; as root run `apt-get update`")
    print(f"verbs-vm: downloading {names[0]} into {STORE}", flush=True)
    try:
        _output(["apt-get", "download", "-q", names[0]], cwd=STORE)
    except VmError as error:
        raise VmError(f"the guest's kernel could not be downloaded (it needs the network once; as root `apt-get "
                      f"update` may help): {error}") from error
    package = next(STORE.glob(f"{names[0]}_*.deb"))
    _output(["dpkg", "-x", package, STORE])
    package.unlink()
    if not (STORE / "lib").exists():
        (STORE / "lib").symlink_to("usr/lib")  # since Debian 13 the modules lie in /usr/lib
    version = names[0].removeprefix("linux-image-")
    note.write_text(version + "\n")
    return version


def _module_files(version):
    """Files of MODULES and what they depend on, in the order of loading."""
    if not (STORE / f"lib/modules/{version}/modules.dep.bin").exists():
        _output(["/usr/sbin/depmod", "-b", STORE, version])
    files = []
    for module in MODULES:
        for line in _output(["/usr/sbin/modprobe", "-d", STORE, "-S", version, "-D", module]).decode().splitlines():
            if line.startswith("insmod ") and line.split()[1] not in files:
                files.append(line.split()[1])
    return [Path(name) for name in files]


def _initrd(version):
    """The initial file system: busybox, MODULES and guest/init.sh."""
    init = (HERE / "guest/init.sh").read_bytes()
    out = STORE / f"initrd-{version}-{hashlib.sha256(init).hexdigest()[:12]}"
    if out.exists():
        return out
    folder = STORE / "initrd.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "mod", "proc", "sys", "dev", "host"):
        (folder / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), folder / "bin/busybox")
    order = []
    for file in _module_files(version):
        unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-qdc"]}.get(file.suffix)
        name = file.stem if unpack else file.name
        (folder / "mod" / name).write_bytes(_output([*unpack, file]) if unpack else file.read_bytes())
        order.append(name)
    (folder / "mod/order").write_text("\n".join(order) + "\n")
    (folder / "init").write_bytes(init)
    (folder / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))).encode()
    archive = _output(["cpio", "-o", "-H", "newc", "--quiet"], cwd=folder, input=names)
    partial = out.with_suffix(".partial")
    partial.write_bytes(archive)
    partial.rename(out)
    shutil.rmtree(folder)
    return out


def prepare():
    """Makes sure of tools, kernel and initial file system; returns (kernel, initrd). Needs the network once."""
    _check_tools()
    STORE.mkdir(parents=True, exist_ok=True)
    with open(STORE / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = _kernel_version()
        return STORE / f"boot/vmlinuz-{version}", _initrd(version)


class Vm:
    """One run of the machine: it starts guest/main.sh with `settings` (shell variables), and powers off after it."""

    def __init__(self, out, settings, processors=2, memory="3G"):
        kernel, initrd = prepare()
        self.out = Path(out)
        settings = {"ROOT": ROOT, "STORE": STORE, **settings}
        self.out.joinpath("settings.sh").write_text(
            "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()))
        self.command = [
            "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp",
            str(processors), "-m", memory, "-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot", "-nic", "none",
            "-kernel", kernel, "-initrd", initrd,
            "-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr",
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            "-virtfs", f"local,path={self.out},mount_tag=out,security_model=none"]

    def lines(self, patience):
        """Yields the lines of the console until the machine has powered off. Ends it (and says so, as a last line that
        begins with "vm: ") when nothing came for `patience` seconds."""
        process = subprocess.Popen([str(part) for part in self.command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            yield from self._read(process, patience)
            if process.wait(30) != 0:
                yield f"vm: qemu ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            yield "vm: qemu did not end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            process.stdout.close()

    @staticmethod
    def _read(process, patience):
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        rest, last = b"", time.monotonic()
        while True:
            if not selector.select(5):
                if time.monotonic() - last > patience:
                    yield f"vm: no sign of life for {patience:.0f} s"
                    process.kill()
                    return
                continue
            data = os.read(process.stdout.fileno(), 65536)
            last = time.monotonic()
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
            if not data:
                return


if __name__ == "__main__":
    prepare()
