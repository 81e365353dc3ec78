#!/usr/bin/python3
"""A whole all-to-all(v) job with nothing but gRPC, a memfd and a socket: what a trainer in any language can do.

    grpc_job.py PROTO_DIR SOCKET_DIR...

Makes stubs of the protos in PROTO_DIR and two ranks, each in a thread. Rank r uses the daemon in socket directory number r
modulo the number of directories. Needs Debian's python3-grpcio, python3-protobuf and protobuf-compiler-grpc.
"""

import argparse
import importlib
import itertools
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fcntl import fcntl
from pathlib import Path

import grpc

ADD_SEALS, SEAL_SHRINK, SEAL_GROW = 1033, 2, 4  # of fcntl.h
BYTES = 1 << 20  # to the other rank


def make_stubs(protos, folder):
    """Compiles the protos into Python modules."""
    files = [protos / "rails/v1" / f"{name}.proto" for name in ("descriptor", "session", "group", "job")]
    subprocess.run(["protoc", f"--proto_path={protos}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", *files], check=True)
    (Path(folder) / "rails/__init__.py").touch()  # else an installed package `rails` hides it
    sys.path.insert(0, folder)


class Session:
    """A session with a daemon: the descriptor socket, which carries memory, and the gRPC socket, which carries calls."""

    def __init__(self, folder):
        self.descriptor = importlib.import_module("rails.v1.descriptor_pb2")
        self.packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.packets.connect(f"{folder}/descriptors.sock")
        except OSError as error:
            sys.exit(f"grpc_job.py: no daemon answers at {folder}/descriptors.sock: {error.strerror}")
        opened = self.ask(open_session={"min_version": 1, "max_version": 1, "client_name": "grpc_job.py"}).open_session
        self.metadata = [("rails-session-token", opened.token)]
        self.channel = grpc.insecure_channel(f"unix:{folder}/client.sock")

    def ask(self, descriptors=(), **request):
        """One packet there, one packet back. The session ends when the socket is closed."""
        socket.send_fds(self.packets, [self.descriptor.DescriptorRequest(**request).SerializeToString()], descriptors)
        packet, received, _, _ = socket.recv_fds(self.packets, 1 << 16, 4)
        for descriptor in received:  # of the daemon's process; readable when it has ended
            os.close(descriptor)
        answer = self.descriptor.DescriptorResponse.FromString(packet)
        if answer.code:
            raise RuntimeError(f"the daemon refuses: {answer.message}")
        return answer

    def segment(self, number, length):
        """Memory that is shared with the daemon: a file without a name, which can no longer shrink."""
        file = os.memfd_create("grpc_job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, length)
        fcntl(file, ADD_SEALS, SEAL_SHRINK | SEAL_GROW)
        self.ask([file], add_segment={"segment_id": number, "length_bytes": length})
        memory = mmap.mmap(file, length)
        os.close(file)
        return memory


def run(rank, folder):
    groups, jobs = (importlib.import_module(f"rails.v1.{name}_pb2") for name in ("group", "job"))
    group_calls, job_calls = (importlib.import_module(f"rails.v1.{name}_pb2_grpc") for name in ("group", "job"))
    session = Session(folder)
    send, receive = session.segment(1, BYTES), session.segment(2, BYTES)
    send[:] = bytes((number + rank) % 251 for number in range(BYTES))

    join = groups.JoinGroupRequest(name="grpc_job", world_size=2, rank=rank, timeout_milliseconds=30_000)
    epoch = group_calls.GroupServiceStub(session.channel).JoinGroup(join, metadata=session.metadata, wait_for_ready=True).epoch

    job = jobs.JobId(epoch=epoch, seq=1, rank=rank)
    sends, receives = (jobs.FlowRanges(peer_rank=1 - rank, segment_ids=[segment], offsets_bytes=[0], lengths_bytes=[BYTES])
                       for segment in (1, 2))
    calls = job_calls.JobServiceStub(session.channel)
    calls.SubmitAllToAll(jobs.SubmitAllToAllRequest(job=job, tag=7, sends=[sends], receives=[receives]), metadata=session.metadata)
    report = calls.WaitJob(jobs.WaitJobRequest(job=job, timeout_milliseconds=30_000), metadata=session.metadata).report
    if report.state != jobs.JOB_STATE_DONE:
        raise RuntimeError(f"rank {rank}: {report.message}")

    right = receive[:] == bytes((number + 1 - rank) % 251 for number in range(BYTES))
    return right, f"rank {rank}: {report.bytes_received} bytes in {report.elapsed_seconds * 1e3:.1f} ms, {'right' if right else 'WRONG'}"


def main():
    parser = argparse.ArgumentParser(description="Runs a job of two ranks by gRPC.")
    parser.add_argument("protos", type=Path, metavar="PROTO_DIR", help="the folder that holds rails/v1")
    parser.add_argument("sockets", nargs="+", metavar="SOCKET_DIR", help="the folder of a daemon's sockets")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_stubs(options.protos, folder)
        with ThreadPoolExecutor(2) as ranks:
            results = list(ranks.map(run, range(2), itertools.islice(itertools.cycle(options.sockets), 2)))
    print("\n".join(line for _, line in results))
    return 0 if all(right for right, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
