#!/usr/bin/env python3
"""Replays through real daemons over verbs, every byte checked by the rank that receives it."""

import harness
import rdma

COUNTERS = ("work_requests", "completions", "tx_fences", "rx_fences", "endpoint_errors", "weak_zones")


class ReplayTest(rdma.VerbsTest):
    def jobs(self):
        """Jobs that the ranks of the first node have finished, counted for each."""
        return int(self.status(0)["jobs_done"])

    def replay(self, *arguments):
        """A replay without faults: at most one fence for each ordered pair of nodes, rail and job, and one for each time
        that late binding moved work to a rail that had fenced; no queue pair in error, a key of its own for every
        zone."""
        before, jobs, moves = self.counters(), self.jobs(), self.late_moves()
        report = self.check_replay(self.cluster.replay("--verify", "--seed", harness.SEED, *arguments))
        self.wait_idle()
        ranks, each = report["ranks"], report["ranks_per_node"]
        nodes = ranks // each
        after, jobs = self.counters(), (self.jobs() - jobs) // each
        counted = {key: after[key] - before[key] for key in after}
        print(f"{counted} in {jobs} jobs of {ranks} ranks, {report['bytes']} bytes in {report['steps']} steps")
        self.assertGreater(counted["tx_fences"], 0)
        most = nodes * (nodes - 1) * rdma.RAILS * jobs + self.late_moves() - moves
        self.assertLessEqual(counted["tx_fences"], most)
        self.assertEqual(after["tx_fences"], after["rx_fences"])
        self.assertGreater(counted["work_requests"], 0)
        self.assertEqual((counted["endpoint_errors"], counted["weak_zones"]), (0, 0))

    def counters(self):
        return {counter: self.totals(counter) for counter in COUNTERS}


class TwoNodes(ReplayTest):
    def test_mixtral(self):
        self.replay("--workload", "mixtral", "--bytes-per-rank", "8MiB", "--steps", 2)

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

    def test_mixtral_with_two_ranks_a_node(self):
        self.replay("--workload", "mixtral", "--bytes-per-rank", "2MiB", "--ranks-per-node", 2, "--steps", 1)


if __name__ == "__main__":
    harness.main()
