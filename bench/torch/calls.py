"""The only rank of a group exchanges some bytes with itself, through the Python package or through torch. Reads lines
"WAY JOBS", answers each with the median microseconds of a job."""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import rails.torch

BYTES = 64


def main():
    os.environ["RAILS_SOCKET_DIR"] = sys.argv[1]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        torch_group = dist.new_group(backend="rails")
        sent, received = (rails.torch.empty(BYTES, dtype=torch.uint8) for _ in range(2))
        client = rails.connect(sys.argv[1])
        send, receive = client.empty(BYTES, "uint8"), client.empty(BYTES, "uint8")
        group = client.join("calls", 0, 1)
        ways = {"python": lambda: group.all_to_all_v(send, [BYTES], receive, [BYTES]).wait(),
                "torch": lambda: dist.all_to_all_single(received, sent, group=torch_group)}
        print("ready", flush=True)
        for line in sys.stdin:
            way, jobs = line.split()
            times = []
            for _ in range(int(jobs)):
                begin = time.perf_counter()
                ways[way]()
                times.append(time.perf_counter() - begin)
            print(statistics.median(times) * 1e6, flush=True)


if __name__ == "__main__":
    main()
