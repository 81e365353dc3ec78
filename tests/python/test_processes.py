"""The package in a process: forks, exits, the library's structures, installation."""

import concurrent.futures
import ctypes
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import c_library
import rails
from conftest import ROOT, run_ranks, sockets
from rails import _library


def in_child(client, group, work, prepared, directory):
    """Uses the parent's objects in a forked child. Returns an empty string, or what is wrong."""
    refused = {"empty": lambda: client.empty(10), "join": lambda: client.join("child", 0, 1), "reconnect": client.reconnect,
               "barrier": lambda: group.barrier(1), "leave": group.leave, "done": work.done, "wait": lambda: work.wait(1),
               "cancel": work.cancel, "report": lambda: work.report, "submit": prepared.submit}
    for name, call in refused.items():
        try:
            call()
        except rails.FailedPreconditionError as error:
            if "fork" not in error.text:
                return f"{name}: {error}"
        else:
            return f"{name} is not refused"
    if client.connected:
        return "the parent's client is connected"
    client.close()
    with rails.connect(directory) as own, own.join(f"child of {group.name}", 0, 1) as alone:
        memory = own.empty((2, 100))
        memory[0] = 7
        alone.all_to_all_v(memory[0], [100], memory[1], [100]).wait(30)
        return "" if (memory[1] == 7).all() else "wrong bytes"


def test_a_forked_child(cluster):
    fork = multiprocessing.get_context("fork")

    def body(client, group):
        memory = client.empty((2, 2, 1000))
        prepared = group.prepare({0: [memory[0, 0]]}, {0: [memory[0, 1]]})
        if group.rank == 0:
            memory[0, 0, :3] = 1, 2, 3
            work = group.all_to_all_v(memory[0], [1, 1], memory[1], [1, 1])
            answers = fork.SimpleQueue()
            child = fork.Process(target=lambda: answers.put(in_child(client, group, work, prepared, sockets(cluster)) or
                                                            memory[0, 0, :3].tolist()))
            child.start()
            child.join(30)
            assert child.exitcode == 0 and answers.get() == [1, 2, 3]
            forked.set_result(None)
        else:
            forked.result(30)
            work = group.all_to_all_v(memory[0], [1, 1], memory[1], [1, 1])
        work.wait(30)  # the parent goes on
        group.barrier(30)
        assert client.connected and client.empty(5).tolist() == [0] * 5
    forked = concurrent.futures.Future()
    run_ranks(cluster, 2, body)


BEGIN = """
import sys, threading, time
import numpy as np
import rails
clients = [rails.connect(directory) for directory in sys.argv[1:]]
groups = [None, None]
def join(rank):
    groups[rank] = clients[rank].join(f"exit {sys.argv[0]}", rank, 2)
other = threading.Thread(target=join, args=(1,))
other.start()
join(0)
other.join()
array = clients[0].empty((2, 100000))
tensor = np.from_dlpack(array)
work = groups[0].all_to_all_v(array, [1, 1], clients[0].empty((2, 100000)), [1, 1])
"""
ENDS = {
    "unfinished": "",
    "SystemExit": "raise SystemExit(0)",
    "dropped": "del clients, groups, work; clients = []",
    "threads": """
threading.excepthook = lambda _: None  # errors of threads at the exit
def forever(call):
    def loop():
        while True:
            try:
                call()
            except rails.UnfinishedError:
                pass
    threading.Thread(target=loop, daemon=True).start()
forever(lambda: work.wait(0.01))
forever(lambda: clients[0].empty(100000))
forever(lambda: clients[1].join("nobody comes", 0, 2, timeout=5))
forever(lambda: work.done())
time.sleep(0.1)
""",
    "child": """
import os
child = os.fork()
if child == 0:
    own = rails.connect(sys.argv[1])
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "coroutine": """
import asyncio
async def wait():
    await asyncio.wait_for(groups[0].all_to_all_v(clients[0].empty((2, 9)), [1, 1], clients[0].empty((2, 9)), [1, 1]), 0.05)
try:
    asyncio.run(wait())
except asyncio.TimeoutError:
    pass
""",
    "late": """
class Late:
    def __del__(self):
        work.done, array[0], rails.InvalidArgumentError
late = Late()
late.itself = late
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_exits(cluster, end):
    """The interpreter exits with unfinished jobs, without a word, and the daemons lose nothing."""
    run = subprocess.run([sys.executable, "-X", "dev", "-c", BEGIN + ENDS[end], *map(str, (sockets(cluster, 0), sockets(cluster, 1)))],
                         capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


BESIDE_OTHERS = """
import sys
import torch, grpc
from google.protobuf import struct_pb2
import torch.distributed as dist
import rails.torch
channel = grpc.insecure_channel(f"unix:{sys.argv[1]}/client.sock")
grpc.channel_ready_future(channel).result(30)
message = struct_pb2.Struct()
message.update({"rank": 0})
assert struct_pb2.Struct.FromString(message.SerializeToString()) == message
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group(backend="rails", pg_options=rails.torch.Options(socket_dir=sys.argv[1]))
landed = torch.zeros(4)
dist.all_to_all_single(landed, torch.arange(4.0), group=group)
assert landed.tolist() == [0, 1, 2, 3]
"""


def test_no_binding_crosses(cluster):
    """Other libraries with Abseil, Protobuf and gRPC are in the process, and none takes a symbol of librails.so or gives it one."""
    with tempfile.TemporaryDirectory() as folder:  # 30 MB
        environment = {**os.environ, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": f"{folder}/bindings", "GLOO_SOCKET_IFNAME": "lo"}
        run = subprocess.run([sys.executable, "-c", BESIDE_OTHERS, sockets(cluster)], env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        assert (run.returncode, run.stdout) == (0, "")
        names = [(Path(source).name, Path(target).name, symbol) for source, target, symbol in c_library.bindings(Path(folder))]
    for library in ("libtorch_cpu.so", "libprotobuf.so", "libabsl_", "cygrpc", "librails.so"):
        assert any(source.startswith(library) for source, _, _ in names), library
    ours = [(target, symbol) for source, target, symbol in names if source.startswith("librails.so")]
    assert len(ours) > 50
    given = {symbol for target, symbol in ours if not re.match(f"librails|{c_library.SYSTEM}", target)}
    assert given <= {"stdin", "stdout", "stderr", "environ"}, given  # the C library's, which the interpreter has a copy of
    taken = {(source, symbol) for source, target, symbol in names if target.startswith("librails.so") and not symbol.startswith("rails_")}
    assert not taken


def test_structures_are_those_of_the_header(tmp_path):
    """Sizes, offsets and constants, as a C compiler sees them."""
    names = {"Error": "error", "ClientOptions": "client_options", "SegmentOptions": "segment_options", "DeviceOptions": "device_options", "JobOptions": "job_options",
             "GroupOptions": "group_options", "Buffers": "buffers", "Range": "range", "Flow": "flow", "Layout": "layout",
             "Report": "report"}
    expressions, expected = [], []
    for ours, theirs in names.items():
        structure = getattr(_library, ours)
        expressions.append(f"sizeof(rails_{theirs})")
        expected.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            expressions.append(f"offsetof(rails_{theirs}, {field})")
            expected.append(getattr(structure, field).offset)
    for code in rails.Code:
        expressions.append(f"RAILS_{code.name}")
        expected.append(int(code))
    for name, number in _library.RECOVERIES.items():
        expressions.append(f"RAILS_RECOVERY_{name.upper()}")
        expected.append(number)
    expressions += ["RAILS_SEGMENT_HUGE_PAGES", "RAILS_JOB_CAPACITIES", "RAILS_JOB_ON_STREAM", "RAILS_JOB_URGENT",
                    "RAILS_DEVICE_STAGED", "RAILS_GROUP_NO_LOCAL_COPIES", "RAILS_FOREVER"]
    expected += [_library.HUGE_PAGES, _library.CAPACITIES, _library.ON_STREAM, _library.URGENT, _library.STAGED,
                 _library.NO_LOCAL_COPIES, _library.FOREVER]
    program = "".join(f'printf("%lld\\n", (long long)({expression}));' for expression in expressions)
    (tmp_path / "header.c").write_text(f"#include <stdio.h>\n#include <rails/rails.h>\nint main(void) {{ {program} }}\n")
    subprocess.run(["cc", "-I", ROOT / "client/c/include", "-o", tmp_path / "header", tmp_path / "header.c"], check=True)
    printed = subprocess.run([tmp_path / "header"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert dict(zip(expressions, map(int, printed.split()))) == dict(zip(expressions, expected))


def test_every_function_is_declared():
    header = (ROOT / "client/c/include/rails/rails.h").read_text()
    declared = set(re.findall(r"^(?:RAILS_MUST_USE )?\w[\w ]*\*?(rails_\w+)\(", header, re.MULTILINE))
    used = set(_library._CALLS) | set(_library._OTHERS)
    assert used <= declared
    assert declared - used == {"rails_code_name", "rails_segment_import", "rails_segment_length"}


def test_the_library_is_found(tmp_path):
    """It may lie in the package's folder; without it the import says what to do."""
    shutil.copytree(ROOT / "client/python/rails", tmp_path / "rails", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}

    def version():
        return subprocess.run([sys.executable, "-c", "import rails; print(rails.__version__)"], env=environment, text=True,
                              capture_output=True, check=False)
    missing = version()
    assert missing.returncode == 1 and "ImportError" in missing.stderr and "RAILS_LIBRARY" in missing.stderr
    os.symlink(os.environ["RAILS_LIBRARY"], tmp_path / "rails/librails.so")
    assert version().stdout == f"{rails.__version__}\n"


def test_installation(tmp_path):
    """pip installs it from the tree, typed, in the version of the project."""
    shutil.copytree(ROOT / "client/python", tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--target",
                    tmp_path / "target", tmp_path / "source"], check=True, env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"})
    assert (tmp_path / "target/rails/py.typed").exists()
    version = re.search(r"^project\(railsd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    assert (tmp_path / f"target/rails-{version}.dist-info").is_dir()
    run = subprocess.run([sys.executable, "-c", "import rails; print(rails.__file__)"], text=True, stdout=subprocess.PIPE, check=True,
                         env={**os.environ, "PYTHONPATH": str(tmp_path / "target")})
    assert run.stdout == f"{tmp_path}/target/rails/__init__.py\n"
