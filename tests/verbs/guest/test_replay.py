#!/usr/bin/env python3
"""Replays through real daemons over verbs, every byte checked by the rank that receives it."""

import harness
import rdma


class ReplayTest(rdma.VerbsTest):
    def jobs(self):
        """Jobs that the ranks of the first node have finished, counted for each."""
        return int(self.status(0)["jobs_done"])

    def replay(self, *arguments, steps=2):
        fences, jobs = self.totals("tx_fences"), self.jobs()
        report = self.check_replay(self.cluster.replay("--verify", "--steps", steps, "--seed", harness.SEED, *arguments))
        self.wait_idle()
        ranks, each = report["ranks"], report["ranks_per_node"]
        fences, jobs = self.totals("tx_fences") - fences, (self.jobs() - jobs) // each
        # Without faults: one fence at most for each ordered pair of ranks on different nodes, rail and job.
        self.assertGreater(fences, 0)
        self.assertLessEqual(fences, ranks * (ranks - each) * rdma.RAILS * jobs)
        self.assertEqual(self.totals("tx_fences"), self.totals("rx_fences"))
        return report


class TwoNodes(ReplayTest):
    def test_mixtral(self):
        self.replay("--workload", "mixtral", "--bytes-per-rank", "8MiB")

    def test_several_ranks_a_node(self):
        self.replay("--workload", "zipf", "--bytes-per-rank", "1MiB", "--ranks-per-node", 3)

    def test_batches_are_signalled_not_chunks(self):
        before = {key: self.totals(key) for key in ("work_requests", "completions", "endpoint_errors", "weak_zones")}
        self.replay("--workload", "uniform", "--bytes-per-rank", "8MiB", steps=4)
        after = {key: self.totals(key) - value for key, value in before.items()}
        self.assertGreater(after["work_requests"], 0)
        self.assertEqual(after["endpoint_errors"], 0)
        self.assertEqual(after["weak_zones"], 0, "Soft-RoCE has memory windows")

    def test_the_view_of_the_rails(self):
        self.assert_devices("state", "active")
        self.assert_devices("link_layer", "Ethernet")
        self.assert_devices("windows", True)
        for rail, device in enumerate(rdma.devices(self.cluster, 0)):
            self.assertEqual((device["name"], device["port"]), (f"rxe_n0r{rail}", 1))
            self.assertIn(f"10.0.{rail}.1", device["gid"])
        text = self.cluster.ctl(self.cluster.nodes[0], "rails").stdout
        self.assertIn("rxe_n0r3/1", text)
        print(text)


class ThreeNodes(ReplayTest):
    settings = rdma.settings(nodes=3)
    addresses = staticmethod(rdma.triple)

    def test_mixtral(self):
        self.replay("--workload", "mixtral", "--bytes-per-rank", "6MiB")

    def test_incast_of_several_ranks_a_node(self):
        self.replay("--workload", "incast", "--bytes-per-rank", "1MiB", "--ranks-per-node", 2, steps=1)


if __name__ == "__main__":
    harness.main()
