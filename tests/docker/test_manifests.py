"""The checks of deploy/kubernetes find what they are for: each mistake below is made in a copy, and must be named."""

import copy
import unittest

import pods
from pods import kubernetes_merge

import kubernetes_lint  # pods has put tools/ on the path


def pod_of(objects):
    return kubernetes_merge.one(objects, "DaemonSet")["spec"]["template"]["spec"]


def container_of(objects):
    return pod_of(objects)["containers"][0]


def service_of(objects):
    return kubernetes_merge.one(objects, "Service")["spec"]


def drop(items, name):
    items[:] = [item for item in items if item["name"] != name]


def edit_config(objects, old, new):
    data = kubernetes_merge.one(objects, "ConfigMap", "railsd-config")["data"]
    assert old in data["railsd.yaml"]
    data["railsd.yaml"] = data["railsd.yaml"].replace(old, new)


MISTAKES = [  # what is done to the objects of the overlay for TCP, and what must be said of it
    (lambda o: service_of(o)["selector"].update({"app.kubernetes.io/name": "rails"}), "Service selects"),
    (lambda o: service_of(o).update(publishNotReadyAddresses=False), "discovery needs the addresses of all pods"),
    (lambda o: service_of(o)["ports"][0].update(targetPort="grpc"), "the Service's port control leads nowhere"),
    (lambda o: kubernetes_merge.one(o, "PodMonitor")["spec"].update(jobLabel="app"), "the rules know the scrape as job"),
    (lambda o: kubernetes_merge.one(o, "NetworkPolicy")["metadata"].update(namespace="default"), "is in namespace default"),
    (lambda o: pod_of(o).update(serviceAccountName="default"), "names a ServiceAccount default that is not there"),
    (lambda o: pod_of(o).update(terminationGracePeriodSeconds=600), "600 s of grace are too few"),
    (lambda o: pod_of(o).update(automountServiceAccountToken=True), "a token of the API server comes along"),
    (lambda o: drop(pod_of(o)["volumes"], "config"), "volumes"),
    (lambda o: container_of(o)["volumeMounts"].pop(0), "the configuration is for reading"),
    (lambda o: container_of(o)["ports"][0].update(containerPort=7472), "railsd.yaml: 0.0.0.0:7471"),
    (lambda o: container_of(o)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]), "railsd has capabilities"),
    (lambda o: container_of(o)["securityContext"].update(readOnlyRootFilesystem=False), "is for reading"),
    (lambda o: container_of(o)["livenessProbe"]["exec"]["command"].pop(), "a drained daemon is alive"),
    (lambda o: container_of(o).update(args=["--config=/etc/railsd/railsd.yaml"]), "the node's name comes from the pod"),
    (lambda o: container_of(o)["args"].pop(), "control and metrics are not at the rails' addresses"),
    (lambda o: container_of(o)["env"].clear(), "$(NODE_NAME) is not set"),
    (lambda o: pod_of(o)["securityContext"].update(runAsUser=1000), "the daemon is the user of the image"),
    (lambda o: edit_config(o, "7472", "rails"), "railsd.yaml: socket_group is not rails"),
    (lambda o: edit_config(o, "port: 7471", "port: 7470"), "peers.dns.port is not the control port"),
    (lambda o: edit_config(o, "railsd.railsd.svc", "railsd.default.svc"), "peers.dns.name"),
]


class Manifests(unittest.TestCase):
    def test_each_mistake_is_found(self):
        objects = kubernetes_merge.overlay("tcp")
        self.assertEqual(kubernetes_lint.Overlay("tcp", objects).check(), [])
        for make, said in MISTAKES:
            changed = copy.deepcopy(objects)
            make(changed)
            with self.subTest(said):
                problems = kubernetes_lint.Overlay("tcp", changed).check()
                self.assertTrue(any(said in problem for problem in problems), problems)

    def test_each_mistake_in_the_acceptance_job_is_found(self):
        objects = kubernetes_merge.documents(kubernetes_lint.ACCEPTANCE)
        daemon_set = kubernetes_merge.one(kubernetes_merge.overlay("tcp"), "DaemonSet")
        self.assertEqual(kubernetes_lint.check_acceptance(objects, daemon_set), [])

        def job(changed):
            return kubernetes_merge.one(changed, "Job")["spec"]

        def variables(changed):
            return {item["name"]: item for item in job(changed)["template"]["spec"]["containers"][0]["env"]}
        for make, said in (
                (lambda o: job(o).update(completions=8), "completions, parallelism and WORLD_SIZE"),
                (lambda o: job(o).update(backoffLimit=6), "each index is a rank"),
                (lambda o: job(o)["template"]["spec"].update(subdomain="railsd"), "MASTER_ADDR is the name of pod 0"),
                (lambda o: variables(o)["MASTER_PORT"].update(value="1"), "MASTER_PORT is not the Service's port"),
                (lambda o: variables(o)["RANK"].update(name="RANKS"), "RANK and RAILSCTL_TOKEN are missing"),
                (lambda o: service_of(o).update(publishNotReadyAddresses=False), "whether ready or not"),
                (lambda o: service_of(o)["selector"].update(a="b"), "the Service selects other pods"),
                (lambda o: job(o)["template"]["spec"]["securityContext"].update(supplementalGroups=[7472]), "groups")):
            changed = copy.deepcopy(objects)
            make(changed)
            with self.subTest(said):
                problems = kubernetes_lint.check_acceptance(changed, daemon_set)
                self.assertTrue(any(said in problem for problem in problems), problems)

    def test_components_add_what_they_are_for(self):
        plain, all_of_them = (pods.kubernetes_merge.overlay("tcp", *components)
                              for components in ((), kubernetes_lint.MORE_COMPONENTS))
        before, after = container_of(plain), container_of(all_of_them)
        self.assertEqual({key for key in after if before.get(key) != after[key]}, {"resources", "volumeMounts"})
        self.assertEqual({mount["mountPath"] for mount in after["volumeMounts"] if mount not in before["volumeMounts"]},
                         {"/dev/hugepages", "/etc/railsd-tls"})
        self.assertEqual(after["resources"]["limits"]["hugepages-2Mi"], "256Mi")
        self.assertNotIn("hugepages-2Mi", before["resources"]["requests"])

    def test_overlays_differ_where_they_should(self):
        tcp, verbs = (pods.daemon_pod(name)[0]["containers"][0] for name in ("tcp", "verbs"))
        self.assertEqual({key for key in tcp.keys() | verbs.keys() if tcp.get(key) != verbs.get(key)},
                         {"securityContext", "resources", "volumeMounts"})
        self.assertEqual([mount["mountPath"] for mount in verbs["volumeMounts"] if mount not in tcp["volumeMounts"]],
                         ["/dev/infiniband"])
        self.assertEqual(verbs["resources"]["limits"]["memory"], tcp["resources"]["limits"]["memory"])
