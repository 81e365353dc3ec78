#!/usr/bin/env python3
"""Checks deploy/kubernetes. Puts each overlay together, type-checks its objects against npm's kubernetes-types, and
checks that their references fit: selectors, volumes, ports, names, users, times.

    tools/kubernetes_lint.py            # prints the problems
    tools/kubernetes_lint.py --write    # makes prometheus-rule.yaml from dashboards/rails.rules.yaml again
"""

import json
import re
import sys
from pathlib import Path

import kubernetes_policy
import npm

try:
    import yaml

    import kubernetes_merge
except ImportError:
    yaml = None

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "deploy/kubernetes"
OVERLAYS = {"tcp": [], "verbs": ["IPC_LOCK"]}  # capabilities of the daemon by overlay
TRAINING, ACCEPTANCE = FOLDER / "example/training-job.yaml", FOLDER / "example/acceptance-job.yaml"
TRAINERS = FOLDER / "example/trainer-namespace.yaml"
RULE = FOLDER / "components/monitoring/prometheus-rule.yaml"
MORE_COMPONENTS = ("huge-pages", "tls")  # components that no overlay has by itself
CONFIG_FOLDER, SOCKETS = "/etc/railsd", "/run/railsd"
# The module of kubernetes-types that has the type of each kind.
TYPES = {"Namespace": "core/v1", "ServiceAccount": "core/v1", "ConfigMap": "core/v1", "Service": "core/v1",
         "DaemonSet": "apps/v1", "PriorityClass": "scheduling/v1", "NetworkPolicy": "networking/v1", "Job": "batch/v1",
         "ValidatingAdmissionPolicy": "admissionregistration/v1",
         "ValidatingAdmissionPolicyBinding": "admissionregistration/v1"}
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text):
    """Seconds of a time as the configuration writes it, in whole seconds, minutes or hours."""
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def rule_text():
    """prometheus-rule.yaml: the rules as they are, below a head."""
    rules = (PROJECT / "dashboards/rails.rules.yaml").read_text()
    body = "".join(f"  {line}".rstrip() + "\n" for line in rules[rules.index("groups:"):].splitlines())
    return ("# Made from dashboards/rails.rules.yaml by tools/kubernetes_lint.py --write: change that.\n"
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: railsd\n"
            "  namespace: railsd\n  labels:\n    app.kubernetes.io/name: railsd\nspec:\n" + body)


class Overlay:
    """The objects of one overlay, and their problems. Tests give their own `objects`."""

    def __init__(self, name, objects=None, components=()):
        self.name, self.objects = name, objects or kubernetes_merge.overlay(name, *components)
        self.daemon_set = self.one("DaemonSet")
        self.template = self.daemon_set["spec"]["template"]
        self.pod = self.template["spec"]
        [self.container] = self.pod["containers"]
        [self.init] = self.pod["initContainers"]
        self.config = yaml.safe_load(self.one("ConfigMap", "railsd-config")["data"]["railsd.yaml"])
        self.problems = []

    def one(self, kind, name=None):
        return kubernetes_merge.one(self.objects, kind, name)

    def monitors(self):
        """The PodMonitor, unless the overlay is without monitoring."""
        return [item for item in self.objects if item["kind"] == "PodMonitor"]

    def expect(self, condition, problem):
        if not condition:
            self.problems.append(f"overlays/{self.name}: {problem}")

    def check(self):
        """All problems."""
        for check in (self.names, self.selectors, self.volumes, self.ports, self.privileges, self.life, self.settings):
            check()
        return self.problems

    def names(self):
        namespace = self.one("Namespace")["metadata"]["name"]
        for item in self.objects:
            where = item["metadata"].get("namespace")
            cluster_wide = item["kind"] in kubernetes_merge.CLUSTER_WIDE
            self.expect(where == (None if cluster_wide else namespace),
                        f"{item['kind']} {item['metadata']['name']} is in namespace {where}")
        found = [(item["kind"], item["metadata"]["name"]) for item in self.objects]
        self.expect(len(found) == len(set(found)), "two objects have one kind and name")
        for kind, name in (("ServiceAccount", self.pod["serviceAccountName"]),
                           ("PriorityClass", self.pod["priorityClassName"])):
            self.expect((kind, name) in found, f"the pod names a {kind} {name} that is not there")
        self.expect(not any("Role" in kind for kind, _ in found), "the daemon needs no rights at the API server")

    def selectors(self):
        labels = self.template["metadata"]["labels"].items()
        for kind, selector in (("DaemonSet", self.daemon_set["spec"]["selector"]["matchLabels"]),
                               ("Service", self.one("Service")["spec"]["selector"]),
                               *[("PodMonitor", item["spec"]["selector"]["matchLabels"]) for item in self.monitors()],
                               ("NetworkPolicy", self.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"])):
            self.expect(selector and selector.items() <= labels, f"{kind} selects {selector}, the pods have {dict(labels)}")
        for item in self.monitors():
            self.expect(dict(labels).get(item["spec"]["jobLabel"]) == "railsd", "the rules know the scrape as job `railsd`")

    def volumes(self):
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in self.container["volumeMounts"]}
        mounted = {mount["name"] for container in (self.container, self.init) for mount in container["volumeMounts"]}
        self.expect(mounted == volumes.keys(), f"volumes {sorted(volumes)}, mounted {sorted(mounted)}")
        maps = {item["metadata"]["name"] for item in self.objects if item["kind"] == "ConfigMap"}
        used = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
        self.expect(used <= maps, f"ConfigMaps {sorted(used - maps)} are not there")
        sockets = volumes.get(mounts.get(SOCKETS, {}).get("name"), {}).get("hostPath", {})
        self.expect(sockets.get("path") == SOCKETS, f"trainers look for the sockets in {SOCKETS} of the node")
        self.expect(self.init["volumeMounts"] == [mounts.get(SOCKETS)], "the first container prepares the sockets' folder")
        self.expect(CONFIG_FOLDER in mounts and mounts[CONFIG_FOLDER].get("readOnly"), "the configuration is for reading")
        self.expect(("/dev/infiniband" in mounts) == (self.name == "verbs"), "/dev/infiniband is for verbs")
        pages = self.container["resources"]["limits"].get("hugepages-2Mi")
        self.expect(bool(pages) == ("/dev/hugepages" in mounts), "huge pages: a limit and a mount go together")
        self.expect(pages == self.container["resources"]["requests"].get("hugepages-2Mi"),
                    "huge pages: requests and limits must be equal")

    def ports(self):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        for port in self.container["ports"]:
            self.expect(port["hostPort"] == port["containerPort"], f"port {port['name']}: the host's network has one number")
        for name, key in (("control", self.config["control"]["listen"]), ("metrics", self.config["metrics"]["listen"])):
            self.expect(key.rsplit(":", 1)[1] == str(ports.get(name)), f"port {name} is {ports.get(name)}, railsd.yaml: {key}")
        service, dns = self.one("Service"), self.config["peers"]["dns"]
        for port in service["spec"]["ports"]:
            self.expect(ports.get(port["targetPort"]) == port["port"], f"the Service's port {port['name']} leads nowhere")
        meta = service["metadata"]
        self.expect(dns["name"].startswith(f"{meta['name']}.{meta['namespace']}.svc"), f"peers.dns.name {dns['name']}")
        self.expect(dns["port"] == ports.get("control"), "peers.dns.port is not the control port")
        self.expect(service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"],
                    "discovery needs the addresses of all pods, whether ready or not")
        for endpoint in (endpoint for item in self.monitors() for endpoint in item["spec"]["podMetricsEndpoints"]):
            self.expect(endpoint["port"] in ports, f"the PodMonitor scrapes port {endpoint['port']}")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.expect(self.container[probe]["exec"]["command"][:2] == ["railsctl", "health"], f"{probe} asks something else")
        self.expect(self.container["livenessProbe"]["exec"]["command"][2:] == ["--service", "live"],
                    "a drained daemon is alive: the livenessProbe must ask for `live`")

    def privileges(self):
        pod, context = self.pod["securityContext"], self.container["securityContext"]
        recipe = (PROJECT / "deploy/docker/install.sh").read_text()
        number = {name: int(value) for value, name in re.findall(r"groupadd --gid (\d+) ([\w-]+)", recipe)}
        self.expect(pod["runAsNonRoot"] and (pod["runAsUser"], pod["runAsGroup"]) == (number["railsd"],) * 2,
                    "the daemon is the user of the image")
        self.expect(pod["supplementalGroups"] == [number["rails"], number["rails-operators"]], "supplementalGroups")
        for key, group in (("socket_group", "rails"), ("operator_group", "rails-operators")):
            self.expect(self.config[key] == str(number[group]), f"railsd.yaml: {key} is not {group}")
        # A daemon without capabilities gets none from the program's file either.
        self.expect(context["allowPrivilegeEscalation"] == bool(OVERLAYS[self.name]), "allowPrivilegeEscalation")
        for container, wanted in ((self.container, OVERLAYS[self.name]), (self.init, ["CHOWN"])):
            its = container["securityContext"]
            self.expect(its["readOnlyRootFilesystem"], f"{container['name']}: the root file system is for reading")
            self.expect(not its.get("privileged"), f"{container['name']} is privileged")
            self.expect(its["capabilities"]["drop"] == ["ALL"] and its["capabilities"].get("add", []) == wanted,
                        f"{container['name']} has capabilities {its['capabilities']}, not {wanted}")
        self.expect(self.init["command"] == ["chown", f"{number['railsd']}:{number['rails']}", SOCKETS], "the sockets' folder")
        for holder in (self.pod, self.one("ServiceAccount")):
            self.expect(holder["automountServiceAccountToken"] is False, "a token of the API server comes along")
        self.expect(self.pod["hostNetwork"] and self.pod["dnsPolicy"] == "ClusterFirstWithHostNet", "the host's network")

    def life(self):
        drain = self.container["lifecycle"]["preStop"]["exec"]["command"]
        self.expect(drain[:4] == ["railsctl", "drain", "--node", "--timeout"], "preStop drains the node")
        needed = seconds(drain[-1]) + seconds(self.config["timeouts"]["drain"])
        grace = self.pod["terminationGracePeriodSeconds"]
        self.expect(grace > needed, f"{grace} s of grace are too few for {needed} s of draining")
        update = self.daemon_set["spec"]["updateStrategy"]
        self.expect(update == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
                    "one node after the other")
        self.expect(self.container["image"] == self.init["image"] and ":" in self.container["image"].rsplit("/", 1)[1],
                    "both containers are of one image with a tag")

    def settings(self):
        self.expect(f"--config={CONFIG_FOLDER}/railsd.yaml" in self.container["args"], "--config")
        env = [item["name"] for item in self.container["env"]]
        for name in re.findall(r"\$\((\w+)\)", " ".join(self.container["args"])):
            self.expect(name in env, f"$({name}) is not set")
        self.expect("--node=$(NODE_NAME)" in self.container["args"], "the node's name comes from the pod")
        self.expect("--listen=$(HOST_IP)" in self.container["args"], "control and metrics are not at the rails' addresses")
        if not self.monitors():
            return
        boards = {path.name for path in (PROJECT / "dashboards").glob("*.json")}
        self.expect(self.one("ConfigMap", "railsd-dashboards")["data"].keys() == boards,
                    f"dashboards/kustomization.yaml should name {sorted(boards)}")


def check_job(path, job, daemon_set, groups):
    """Problems of an example of a Job, compared with the DaemonSet whose sockets it uses."""
    pod, problems = job["spec"]["template"]["spec"], []
    [container] = pod["containers"]
    volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    if [volumes.get(mount["name"]) for mount in container["volumeMounts"]] != [SOCKETS]:
        problems.append(f"{path.name}: the job mounts the sockets' folder of the node, and nothing else")
    if pod["securityContext"]["supplementalGroups"] != groups:
        problems.append(f"{path.name}: the job's pods must be in the groups {groups}")
    for key in ("nodeSelector", "tolerations"):
        if pod[key] != daemon_set["spec"]["template"]["spec"][key]:
            problems.append(f"{path.name}: {key}: the job may run where no daemon is")
    return problems


def check_acceptance(objects, daemon_set):
    """Problems of the Job of the acceptance test, and of the Service by which its pods find pod 0."""
    job, service = (kubernetes_merge.one(objects, kind) for kind in ("Job", "Service"))
    template, problems = job["spec"]["template"], check_job(ACCEPTANCE, job, daemon_set, [7472, 7473])
    [container] = template["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    name, [port] = service["metadata"]["name"], service["spec"]["ports"]
    [daemon] = daemon_set["spec"]["template"]["spec"]["containers"]
    for wrong, problem in (
            (job["spec"]["completionMode"] != "Indexed" or job["spec"]["backoffLimit"] != 0,
             "each index is a rank, and runs once"),
            ({str(job["spec"][key]) for key in ("completions", "parallelism")} != {env.get("WORLD_SIZE")},
             "completions, parallelism and WORLD_SIZE are the number of nodes"),
            (template["spec"]["subdomain"] != name or env.get("MASTER_ADDR") != f"{job['metadata']['name']}-0.{name}",
             "MASTER_ADDR is the name of pod 0 in the Service"),
            (env.get("MASTER_PORT") != str(port["port"]), "MASTER_PORT is not the Service's port"),
            (not service["spec"]["selector"].items() <= template["metadata"]["labels"].items(),
             "the Service selects other pods"),
            (service["spec"]["clusterIP"] != "None" or not service["spec"]["publishNotReadyAddresses"],
             "the Service must give the addresses of pods, whether ready or not"),
            ("RANK" not in env or "RAILSCTL_TOKEN" not in env, "RANK and RAILSCTL_TOKEN are missing"),
            (container["image"] != daemon["image"], "the image is that of the daemon")):
        if wrong:
            problems.append(f"{ACCEPTANCE.name}: {problem}")
    return problems


def check_trainers(objects, training):
    """Problems of the namespace of the example's trainers, and of the policy that restricts their pods."""
    namespace, policy, binding = (kubernetes_merge.one(objects, kind) for kind in (
        "Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"))
    name = namespace["metadata"]["name"]
    selected = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
    return [f"{TRAINERS.name}: {problem}" for wrong, problem in (
        (training["metadata"]["namespace"] != name, "the training job is in another namespace"),
        (binding["spec"]["policyName"] != policy["metadata"]["name"], "the binding binds another policy"),
        (selected != {"kubernetes.io/metadata.name": name}, "the policy is bound to another namespace"),
        (not any(SOCKETS in rule["expression"] for rule in policy["spec"]["validations"]), f"{SOCKETS} is not allowed"))
        if wrong]


def check_files():
    """Problems of files beside a kustomization that does not name them."""
    problems = []
    for path in sorted(FOLDER.rglob("kustomization.yaml")):
        [kustomization] = kubernetes_merge.documents(path)
        named = set(kustomization.get("resources", [])) | {entry["path"] for entry in kustomization.get("patches", [])}
        for generator in kustomization.get("configMapGenerator", []):
            named |= set(generator["files"])
        for other in sorted(path.parent.glob("*.yaml")):
            if other.name not in named | {"kustomization.yaml"}:
                problems.append(f"{other.relative_to(PROJECT)}: {path.relative_to(PROJECT)} does not name it")
    if not RULE.exists() or RULE.read_text() != rule_text():
        problems.append(f"{RULE.relative_to(PROJECT)} is not dashboards/rails.rules.yaml; run: tools/kubernetes_lint.py --write")
    return problems


def typescript(objects):
    """The objects as typed constants, one a line."""
    lines = [f"import type {{ {kind} }} from 'kubernetes-types/{module}';" for kind, module in TYPES.items()]
    lines.append("import type { PodMonitor, PrometheusRule } from './monitoring';")
    lines += [f"export const object{i}: {item['kind']} = {json.dumps(item)};" for i, item in enumerate(objects)]
    return "\n".join(lines) + "\n"


def check_types():
    """Mistakes that TypeScript finds in the objects of each overlay and in the examples. Raises npm.NoTypes."""
    folder = PROJECT / "build/kubernetes-types"
    npm.install(PROJECT / "tools/kubernetes_types", folder, "kubernetes-types")
    sets = {name: kubernetes_merge.overlay(name, *MORE_COMPONENTS) for name in OVERLAYS}
    sets["examples"] = [item for path in (TRAINING, ACCEPTANCE, TRAINERS) for item in kubernetes_merge.documents(path)]
    for name, objects in sets.items():
        (folder / f"objects_{name}.ts").write_text(typescript(objects))
    problems = []
    for line in npm.check_types(folder):
        place = re.match(r"objects_(\w+)\.ts\((\d+),\d+\): error \w+: (.*)", line)
        if not place:
            problems.append(line if line.startswith(" ") else f"tools/kubernetes_types: {line}")
            continue
        number = re.match(r"export const object(\d+)", (folder / f"objects_{place[1]}.ts").read_text().split("\n")[
            int(place[2]) - 1])
        what = sets[place[1]][int(number[1])] if number else {"kind": "?", "metadata": {"name": "?"}}
        problems.append(f"deploy/kubernetes, {place[1]}: {what['kind']} {what['metadata']['name']}: {place[3]}")
    [training] = kubernetes_merge.documents(TRAINING)
    policy = kubernetes_merge.one(kubernetes_merge.documents(TRAINERS), "ValidatingAdmissionPolicy")
    return problems + kubernetes_policy.check(folder, policy, training)


def check():
    """All problems but those of types."""
    if yaml is None:
        raise npm.NoTypes("python3-yaml is not installed")
    problems = check_files()
    for name in OVERLAYS:
        for components in ((), MORE_COMPONENTS):
            overlay = Overlay(name, components=components)
            problems += overlay.check()
    [training] = kubernetes_merge.documents(TRAINING)
    return (problems + check_trainers(kubernetes_merge.documents(TRAINERS), training) + check_job(TRAINING, training, overlay.daemon_set, [7472]) +
            check_acceptance(kubernetes_merge.documents(ACCEPTANCE), overlay.daemon_set))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        RULE.write_text(rule_text())
    else:
        print("\n".join(check() + check_types()) or "ok")
