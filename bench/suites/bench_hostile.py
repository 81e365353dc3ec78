"""The effect of hostile connections (idle, trickled, noise) to all of a node's listeners on jobs. Runs on the emulated
fabric and needs root."""

import statistics

from bench_faults import FORGETFUL, NODES, RAILS, Pair
from cluster import Cluster, Settings
from common import Helper, Result, median, progress
from lab import Lab

ROUNDS, JOBS = 10, 5
PER_SECOND, HELD = 500, 200
# Reads the lines "on" and "off". Between them it makes PER_SECOND connections a second, to each address or path in
# turn. A connection sends noise, nothing, or a valid beginning byte by byte: that of a link at the first address, that of
# HTTP/2 at the others. The latest HELD connections stay open. At "off" it prints how many it has made.
ATTACKER = """
import collections, contextlib, random, select, socket, sys, time
per_second, hold, targets = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
http, link = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", b"railsd-link/1\\r\\n\\x40\\0\\0\\0\\x01" + bytes(48)
chance, held, made = random.Random(1), collections.deque(), 0
def connect(target):
    if target.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        connection.connect(target)
        return connection
    host, _, port = target.rpartition(":")
    connection = socket.socket()
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.connect((host, int(port)))
    return connection
def turn(number):
    connection = connect(targets[number % len(targets)])
    kind = number // len(targets) % 3
    held.append([connection, (http if number % len(targets) else link) if kind == 2 else b""])
    select.select([], [connection], [], 0.1)
    if kind == 0:
        connection.send(chance.randbytes(1000))
    while len(held) > hold:
        held.popleft()[0].close()
    for trickled in chance.choices(held, k=8):
        if trickled[1]:
            trickled[0].send(trickled[1][:1])
            trickled[1] = trickled[1][1:]
for line in sys.stdin:
    made, begin = 0, time.monotonic()
    while line == "on\\n":
        with contextlib.suppress(OSError):
            turn(made)
        made += 1
        late = begin + made / per_second - time.monotonic()
        if select.select([sys.stdin], [], [], max(late, 0))[0]:
            line = sys.stdin.readline()
    while held:
        held.popleft()[0].close()
    print(made, flush=True)
"""


class Attacker(Helper):
    """Runs at node 1 and attacks node 0."""

    def __init__(self, lab, cluster):
        node = cluster.nodes[0]
        rails = [rail["address"] for rail in cluster.overview(node)["rails"]]
        super().__init__(lab.command(1), ATTACKER, PER_SECOND, HELD, lab.control(0), lab.metrics(0),
                         node.sockets / "client.sock", node.sockets / "operator.sock", *rails)


def block(pair, attacker, attacked):
    """Median time of JOBS jobs, and the number of connections made during them."""
    if attacked:
        attacker.say("on")
    times = [pair.job() for _ in range(JOBS)]
    if not attacked:
        return median(times), 0
    attacker.say("off")
    return median(times), int(attacker.answer())


def measure(options):
    rounds, ratios, noise, made = options.repeat or ROUNDS, [], [], 0
    with Lab(NODES, RAILS, "200mbit") as lab, \
            Cluster(Settings(NODES, RAILS, "200mbit", sections=FORGETFUL), addresses=lab) as cluster, \
            Attacker(lab, cluster) as attacker:
        pair = Pair(cluster)
        try:
            for _ in range(2):
                pair.job()
            for number in range(rounds):
                # Two blocks without attack: around the attacked block, and in the next round after it.
                blocks = [(attacked, block(pair, attacker, attacked))
                          for attacked in ([False, True, False] if number % 2 else [True, False, False])]
                peace = [time for attacked, (time, _) in blocks if not attacked]
                ratios += [time / statistics.mean(peace) for attacked, (time, _) in blocks if attacked]
                made += sum(count for _, (_, count) in blocks)
                noise.append(max(peace) / min(peace))
                progress(f"round {number + 1} of {rounds}: attacked {ratios[-1]:.4f} x, in peace {noise[-1]:.4f} x")
        finally:
            pair.close()
    how = (f"median job time under {PER_SECOND} connections a second to a node's control port, rails, client and operator "
           f"sockets and status page (idle, trickled, noise; {made} in all) over without, median of {rounds} rounds of {JOBS} "
           f"jobs, {NODES} nodes x {RAILS} rails at 200 Mbit/s, every byte compared")
    return [Result("hostile.slow_down", median(ratios), "x", 1.20, how),
            Result("hostile.slow_down_max", max(ratios), "x", None, "the worst round"),
            Result("hostile.noise", median(noise), "x", None, "two blocks in peace, median")]
