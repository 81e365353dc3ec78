"""Pods without Kubernetes: the very fields of a merged manifest as options of `docker run`."""

import re
import sys

from engine import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import kubernetes_merge  # noqa: E402  (found by the line above)

TAKEN = {  # what is translated below; anything else in a manifest fails, so that nothing is left out silently
    "pod": {"serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "priorityClassName", "nodeSelector",
            "tolerations", "hostNetwork", "dnsPolicy", "terminationGracePeriodSeconds", "securityContext", "initContainers",
            "containers", "volumes", "restartPolicy", "affinity", "subdomain"},
    "container": {"name", "image", "command", "args", "env", "ports", "startupProbe", "readinessProbe", "livenessProbe",
                  "lifecycle", "securityContext", "resources", "volumeMounts"},
}


class Pod:
    """One pod on an imitated node. `node` names it; `network` is a container whose network is the node's, with `address`;
    `paths` gives each volume's folder on this machine by name. `index` is its index in a Job, and `secrets` gives texts by
    the name of a Secret and key."""

    def __init__(self, spec, node, network, paths, address=None, index=None, secrets=None):
        unknown = spec.keys() - TAKEN["pod"]
        assert not unknown, f"pods.py knows nothing of {unknown}"
        self.spec, self.node, self.network, self.paths = spec, node, network, paths
        self.fields = {"spec.nodeName": node, "status.hostIP": address,
                       "metadata.annotations['batch.kubernetes.io/job-completion-index']": index}
        self.secrets = secrets or {}
        self.kinds = {volume["name"]: volume for volume in spec["volumes"]}

    def environment(self, container):
        """By name. The node's name and address and the index in a Job are the only known parts of the downward API."""
        found = {}
        for item in container.get("env", []):
            source = item.get("valueFrom", {})
            if "value" in item:
                found[item["name"]] = item["value"]
            elif "secretKeyRef" in source:
                found[item["name"]] = self.secrets[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
            else:
                found[item["name"]] = str(self.fields[source["fieldRef"]["fieldPath"]])
        return found

    def run_options(self, container):
        """Everything but the image and its arguments, as `docker run` wants it."""
        unknown = container.keys() - TAKEN["container"]
        assert not unknown, f"pods.py knows nothing of {unknown}"
        context = {**self.spec["securityContext"], **container["securityContext"]}
        assert not context["runAsNonRoot"] or context["runAsUser"] != 0, "the kubelet would refuse it"
        options = ["--network", f"container:{self.network}", "--user", f"{context['runAsUser']}:{context['runAsGroup']}"]
        for group in context.get("supplementalGroups", []):
            options += ["--group-add", str(group)]
        for capability in context["capabilities"].get("drop", []):
            options += ["--cap-drop", capability]
        for capability in context["capabilities"].get("add", []):
            options += ["--cap-add", capability]
        if context.get("readOnlyRootFilesystem"):
            options.append("--read-only")
        if not context["allowPrivilegeEscalation"]:
            options += ["--security-opt", "no-new-privileges"]
        for name, value in self.environment(container).items():
            options += ["--env", f"{name}={value}"]
        for mount in container["volumeMounts"]:
            if "emptyDir" in self.kinds[mount["name"]]:
                options += ["--tmpfs", mount["mountPath"]]
            else:
                read_only = ":ro" if mount.get("readOnly") else ""
                options += ["--volume", f"{self.paths[mount['name']]}:{mount['mountPath']}{read_only}"]
        return options + ["--no-healthcheck"]  # the kubelet takes no notice of the image's

    def command(self, container):
        """The image with its arguments, and what replaces its entry point as options."""
        environment = self.environment(container)

        def expand(text):
            return re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], text)
        command = [expand(part) for part in container.get("command", [])]
        entry = ["--entrypoint", command[0]] if command else []
        return entry, [container["image"], *command[1:], *(expand(part) for part in container.get("args", []))]

    def init(self, docker):
        """Runs the containers that come first, one after the other."""
        for container in self.spec.get("initContainers", []):
            entry, command = self.command(container)
            docker.docker("run", "--rm", *self.run_options(container), *entry, *command)

    def start(self, docker, name):
        """Starts the pod's container under `name`, after those that come first."""
        self.init(docker)
        [container] = self.spec["containers"]
        entry, command = self.command(container)
        docker.docker("run", "--detach", "--name", name, *self.run_options(container), *entry, *command)

    def pre_stop(self):
        """The command that the kubelet would execute in the container before it ends it."""
        return self.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    def probe(self, kind):
        """The command that the kubelet would run."""
        return self.spec["containers"][0][kind]["exec"]["command"]


def daemon_pod(overlay):
    """The pod's specification, the configuration's text, of an overlay."""
    objects = kubernetes_merge.overlay(overlay)
    return (kubernetes_merge.one(objects, "DaemonSet")["spec"]["template"]["spec"],
            kubernetes_merge.one(objects, "ConfigMap", "railsd-config")["data"]["railsd.yaml"])


def job_pod(name="training-job.yaml"):
    """The Job of an example."""
    objects = kubernetes_merge.documents(kubernetes_merge.ROOT / "example" / name)
    return kubernetes_merge.one(objects, "Job")["spec"]["template"]["spec"]
