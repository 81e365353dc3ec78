"""librails.so by ctypes, as rails/rails.h declares it: the second language of the C interface."""

import ctypes
import re
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

SECOND = 10**9
SYSTEM = r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux[\w-]*)\.so"  # what librails.so may need


def bindings(folder):
    """Symbols that programs bound with LD_DEBUG=bindings and LD_DEBUG_OUTPUT=folder/bindings: (file, file that has it, symbol)."""
    pattern = re.compile(r"binding file (\S+) \[\w+\] to (\S+) \[\w+\]: \w+ symbol `([^']+)'")
    return [match.groups() for path in folder.glob("bindings.*") for match in pattern.finditer(path.read_text())]


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("text", c_char_p), ("node", c_char_p), ("ranks", POINTER(c_uint32)),
                ("rank_count", c_size_t)]


class Sized(ctypes.Structure):
    """A structure that begins with its size. Strings of fields are kept as long as it."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class ClientOptions(Sized):
    _fields_ = [("size", c_size_t), ("socket_dir", c_char_p), ("client_name", c_char_p),
                ("connect_timeout_ns", c_int64), ("spin_ns", c_int64)]


class SegmentOptions(Sized):
    _fields_ = [("size", c_size_t), ("flags", c_uint64), ("name", c_char_p), ("timeout_ns", c_int64)]


class GroupOptions(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("join_key", c_char_p), ("world_size", c_uint32),
                ("rank", c_uint32), ("timeout_ns", c_int64), ("recovery", c_int32), ("reserved", c_int32),
                ("wait_limit_ns", c_int64), ("restart_limit_ns", c_int64)]


class JobOptions(Sized):
    _fields_ = [("size", c_size_t), ("tag", c_uint64), ("timeout_ns", c_int64), ("submit_timeout_ns", c_int64),
                ("flags", c_uint64), ("vote", c_uint64)]


class Buffers(Sized):
    _fields_ = [("size", c_size_t), ("send", c_void_p), ("send_offset", c_uint64), ("send_bytes", POINTER(c_uint64)),
                ("receive", c_void_p), ("receive_offset", c_uint64), ("receive_bytes", POINTER(c_uint64))]


class Range(ctypes.Structure):
    _fields_ = [("segment", c_void_p), ("offset", c_uint64), ("length", c_uint64)]


class Flow(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("range_count", c_uint32), ("ranges", POINTER(Range))]


class Layout(Sized):
    _fields_ = [("size", c_size_t), ("sends", POINTER(Flow)), ("send_count", c_size_t), ("receives", POINTER(Flow)),
                ("receive_count", c_size_t)]


class Report(Sized):
    _fields_ = [("size", c_size_t), ("seq", c_uint64), ("bytes_sent", c_uint64), ("bytes_received", c_uint64),
                ("elapsed_ns", c_int64), ("waiting_for_ranks_ns", c_int64), ("waiting_for_peers_ns", c_int64),
                ("to_first_chunk_ns", c_int64), ("node_bound_ns", c_int64), ("ratio_to_bound", c_double),
                ("rail_tx_bytes", POINTER(c_uint64)), ("rail_rx_bytes", POINTER(c_uint64)), ("rail_count", c_size_t),
                ("eager_sent_bytes", c_uint64), ("eager_received_bytes", c_uint64),
                ("lost_ranks", POINTER(c_uint32)), ("lost_rank_count", c_size_t), ("replays", c_uint32),
                ("reserved", c_uint32), ("received_by_rank", POINTER(c_uint64)), ("received_count", c_size_t),
                ("highest_vote", c_uint64), ("copied_out_bytes", c_uint64), ("copied_in_bytes", c_uint64), ("copied_local_bytes", c_uint64),
                ("slices", c_uint64)]


class RailsError(Exception):
    def __init__(self, code, text, node, ranks):
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.node, self.ranks = code, text, node, ranks


class Library:
    """Calls of functions that can fail raise RailsError."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        for name, result, *arguments in (
                ("rails_error_free", None, POINTER(Error)), ("rails_code_name", c_char_p, c_int32),
                ("rails_version", c_char_p), ("rails_close", None, c_void_p), ("rails_connected", c_int32, c_void_p),
                ("rails_node", c_char_p, c_void_p), ("rails_segment_data", c_void_p, c_void_p),
                ("rails_segment_length", c_uint64, c_void_p), ("rails_segment_free", None, c_void_p),
                ("rails_group_node", c_char_p, c_void_p, c_uint32), ("rails_group_free", None, c_void_p),
                ("rails_prepared_free", None, c_void_p), ("rails_job_free", None, c_void_p)):
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments

    def call(self, name, *arguments):
        function = getattr(self.c, name)
        function.restype = POINTER(Error)
        error = function(*arguments)
        if not error:
            return
        seen = error.contents
        raised = RailsError(self.c.rails_code_name(seen.code).decode(), seen.text.decode(),
                            seen.node.decode() if seen.node else None, seen.ranks[:seen.rank_count])
        self.c.rails_error_free(error)
        raise raised

    def make(self, name, *arguments):
        """Calls a function whose last argument gets a handle."""
        handle = c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def connect(self, socket_dir, seconds=10):
        options = ClientOptions(socket_dir=str(socket_dir).encode(), connect_timeout_ns=int(seconds * SECOND))
        return self.make("rails_connect", ctypes.byref(options))

    def alloc(self, client, length):
        return self.make("rails_segment_alloc", client, c_uint64(length), None)

    def bytes(self, segment):
        """The segment's memory, without a copy."""
        length = self.c.rails_segment_length(segment)
        return memoryview((ctypes.c_ubyte * length).from_address(self.c.rails_segment_data(segment))).cast("B")

    def join(self, client, name, world, rank, **more):
        options = GroupOptions(name=name.encode(), world_size=world, rank=rank, **more)
        return self.make("rails_join", client, ctypes.byref(options))

    def all_to_all_v(self, group, send, sends, receive, receives, send_offset=0, receive_offset=0, **options):
        buffers = Buffers(send=send, send_offset=send_offset, send_bytes=lengths(sends), receive=receive,
                          receive_offset=receive_offset, receive_bytes=lengths(receives))
        return self.make("rails_all_to_all_v", group, ctypes.byref(buffers), ctypes.byref(JobOptions(**options)))

    def test(self, job):
        done = c_int32(-1)
        self.call("rails_job_test", job, ctypes.byref(done))
        return done.value

    def wait(self, job, seconds=60):
        """1 if the job has succeeded, 0 if the time has passed. Raises its error, which then says whether it `ended`."""
        done = c_int32(-1)
        try:
            self.call("rails_job_wait", job, c_int64(int(seconds * SECOND)), ctypes.byref(done))
        except RailsError as error:
            error.ended = done.value
            raise
        return done.value

    def report(self, job):
        report = Report()
        self.call("rails_job_report", job, ctypes.byref(report))
        return report


def lengths(values):
    return (c_uint64 * len(values))(*values)


def flows(by_rank):
    """{rank: [(segment, offset, length), ...]} as an array."""
    array = (Flow * len(by_rank))()
    for flow, (rank, ranges) in zip(array, by_rank.items()):
        flow.rank, flow.range_count = rank, len(ranges)
        flow.ranges = (Range * len(ranges))(*(Range(*each) for each in ranges))
    return array


def layout(sends, receives):
    return Layout(sends=flows(sends), send_count=len(sends), receives=flows(receives), receive_count=len(receives))
