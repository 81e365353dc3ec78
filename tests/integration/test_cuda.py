#!/usr/bin/env python3
"""Device memory over real daemons: every byte compared on the device, ranks as threads and as processes.

With the fake driver (tests/cuda/fake_driver) on every machine; again on a real GPU where there is one.
"""

import ctypes
import json
import os
import signal
import subprocess

import harness

FAKE = {"FAKE_CUDA_ABORT": "1", "FAKE_CUDA_MAX_DELAY_US": "100"}  # an access that nothing orders ends the program
NO_DEVICE = 3  # exit status of rails_cuda_ranks


class Ranks:
    settings = harness.clusters.Settings(nodes=2, rails=2, speed="10gbit")
    driver, environment = None, {}

    def start(self, *words):
        driver = ["--driver", self.driver] if self.driver else []
        command = [harness.BUILD / "bench/cuda/rails_cuda_ranks", *driver, "--seed", harness.SEED, *words,
                   *[node.sockets for node in self.cluster.nodes]]
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **self.environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, status=0):
        """Its lines, as objects, and what it says of errors."""
        out, errors = process.communicate(timeout=harness.PATIENCE)
        self.assertEqual(process.returncode, status, errors)
        return [json.loads(line) for line in out.splitlines()], errors

    def run_processes(self, world, *words):
        """The report of each rank, in a process of its own."""
        processes = [self.start("--world", world, "--rank", rank, *words) for rank in range(world)]
        return [self.finish(process)[0][-1] for process in processes]

    def test_ranks_of_one_process(self):
        lines, _ = self.finish(self.start("--world", 4, "--bytes", 3_000_001, "--slice-bytes", 200_000, "--slices", 3))
        reports = lines[1:]
        self.assertEqual([report["wrong"] for report in reports], [0] * 4)
        # One of the three others is on the same node: its bytes go from device to device.
        self.assertEqual({report["local_bytes"] for report in reports}, {4 * 1_000_000})

    def test_ranks_of_several_processes(self):
        for report in self.run_processes(4, "--bytes", 3_000_001, "--slice-bytes", 200_000, "--slices", 3):
            self.assertEqual((report["wrong"], report["local_bytes"]), (0, 4 * 1_000_000))

    def test_short_jobs_and_one_buffer(self):
        for report in self.run_processes(6, "--bytes", 5000, "--slice-bytes", 2000, "--slices", 1, "--turns", 10):
            self.assertEqual(report["wrong"], 0)

    def test_without_copies_inside_the_node(self):
        for report in self.run_processes(4, "--bytes", 300_000, "--slice-bytes", 20_000, "--local-copies", 0):
            self.assertEqual((report["wrong"], report["local_bytes"]), (0, 0))

    def test_the_example(self):
        program = harness.BUILD / "client/rails_example_there_and_back_cuda"
        nodes = self.cluster.nodes
        ranks = [subprocess.Popen([str(program), str(rank), "4", str(nodes[rank % len(nodes)].sockets), self.driver or "libcuda.so.1"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, **self.environment}) for rank in range(4)]
        for rank, process in enumerate(ranks):
            self.addCleanup(process.kill)
            out, errors = process.communicate(timeout=harness.PATIENCE)
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(out.count(" job "), 2)
            self.assertIn(f"rank {rank}: every byte is right\n", out)

    def test_a_rank_that_dies_ends_the_others(self):
        words = "--world", 4, "--bytes", 8_000_000, "--slice-bytes", 100_000, "--turns", 200
        ranks = [self.start(*words, "--rank", rank) for rank in range(4)]
        done = self.sample(self.scrape(0), "railsd_jobs_finished_total", result="ok")
        harness.eventually(lambda: self.sample(self.scrape(0), "railsd_jobs_finished_total", result="ok") > done + 40, "jobs")
        ranks[3].send_signal(signal.SIGKILL)
        for rank in range(3):
            _, errors = self.finish(ranks[rank], status=1)
            self.assertRegex(errors, f"^rank {rank}: .*rank 3")
        ranks[3].communicate()
        self.wait_idle()


class FakeDevice(Ranks, harness.ClusterTest):
    environment = FAKE

    @classmethod
    def setUpClass(cls):
        cls.driver = harness.BUILD / "tests/cuda/fake_driver/librails_fake_cuda.so"
        super().setUpClass()

    def test_a_missing_driver_is_named(self):
        self.driver = "libcuda-none.so.1"
        _, errors = self.finish(self.start("--world", 2), status=NO_DEVICE)
        self.assertIn("libcuda-none.so.1", errors)


class RealDevice(Ranks, harness.ClusterTest):
    @classmethod
    def setUpClass(cls):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise harness.unittest.SkipTest(f"no GPU: {error}") from None
        super().setUpClass()
        words = [str(harness.BUILD / "bench/cuda/rails_cuda_ranks"), *[str(node.sockets) for node in cls.cluster.nodes]]
        tried = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                               timeout=harness.PATIENCE)
        if tried.returncode == NO_DEVICE:
            cls.tearDownClass()
            raise harness.unittest.SkipTest("no GPU: " + tried.stderr.strip().splitlines()[0])


if __name__ == "__main__":
    harness.main()
