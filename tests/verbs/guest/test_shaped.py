#!/usr/bin/env python3
"""Rails that are truly slow: the bytes on each follow its speed, and late binding takes from one that is slower."""

import unittest

import harness
import rdma
from harness import clusters


class Shaped(unittest.TestCase):
    def replay(self, rates, speeds, sections=None):
        """A skewed workload; bytes by rail of each node, sent and received."""
        settings = rdma.settings(**(sections or {}))
        with rdma.Shaped(rates) as shaper, clusters.Cluster(settings, harness.BUILD, addresses=rdma.pair(speeds)) as cluster:
            report = cluster.replay("--verify", "--workload", "mixtral", "--bytes-per-rank", "6MiB", "--steps", 1,
                                    "--seed", harness.SEED)
            print(f"ratio to bound {report['ratio_to_bound']:.3f}, {shaper.drops()} packets dropped", report["balance"])
            errors = rdma.total(cluster, [0], "endpoint_errors")
        self.assertIs(report["verified"], True)
        self.assertEqual(errors, 0)
        return {key: [[rail[key] for rail in report["rails"] if rail["node"] == node] for node in ("n0", "n1")]
                for key in ("tx_bytes", "rx_bytes")}

    def test_a_rail_of_half_the_speed_carries_half(self):
        rates = ["50mbit", "50mbit", "25mbit", "50mbit"]
        for nodes in self.replay(rates, rates, {"plan": {"late_binding": False}}).values():
            for rails in nodes:
                slow, others = rails[2], [rails[0], rails[1], rails[3]]
                self.assertLess(max(others) * 3, 1.02 * sum(others), rails)
                self.assertAlmostEqual(slow / (sum(others) / 3), 0.5, delta=0.03, msg=f"{rails}")

    def test_a_rail_that_is_slower_than_planned_gets_less(self):
        # Rails this slow are slower than a busy machine.
        for nodes in self.replay(["12mbit", "12mbit", "12mbit", "3mbit"], ["12mbit"] * 4).values():
            for rails in nodes:
                self.assertLess(rails[3], min(rails[:3]), rails)


if __name__ == "__main__":
    harness.main()
