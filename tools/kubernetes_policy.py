"""Tries the ValidatingAdmissionPolicy of deploy/kubernetes/example on pods, in an interpreter of its language, CEL."""

import copy
import json
import subprocess


def _container(spec, **fields):
    spec["containers"][0].update(fields)


def _context(spec, **fields):
    spec["containers"][0]["securityContext"].update(fields)


def _pod(spec, **fields):
    spec["securityContext"].update(fields)


def _path(spec, path):
    spec["volumes"][0]["hostPath"]["path"] = path


def _second_volume(spec, **source):
    spec["volumes"].append({"name": "second", **source})
    spec["containers"][0]["volumeMounts"].append({"name": "second", "mountPath": "/second"})


MOUNT = {"name": "railsd", "mountPath": "/run/railsd"}  # for writing
FOLDERS, READ, WHO = "the only folders", "must be mounted for reading", "pods must set runAsNonRoot"
HOST, PRIVILEGED, PORTS = "hostNetwork, hostPID and hostIPC", "privileged containers", "ports of the node"
CAPABILITY, PROC, SECCOMP = "a capability is added", "procMount", "seccomp"

CASES = [  # a change to the pod of the training job, and the policy's message about it; empty: allowed
    (lambda s: None, ""),
    (lambda s: _path(s, "/run/railsd/tenants/team-a"), ""),
    (lambda s: _path(s, "/run/railsd/tenants/../../x"), FOLDERS),
    (lambda s: _path(s, "/run/railsdx"), FOLDERS),
    (lambda s: _second_volume(s, emptyDir={}), ""),
    (lambda s: s["volumes"].append({"name": "root", "hostPath": {"path": "/"}}), FOLDERS),
    (lambda s: s["containers"][0]["volumeMounts"][0].pop("readOnly"), READ),
    (lambda s: s.update(initContainers=[{"name": "first", "volumeMounts": [MOUNT]}]), READ),
    (lambda s: s.pop("securityContext"), WHO),
    (lambda s: s["securityContext"].pop("runAsUser"), WHO),
    (lambda s: _pod(s, runAsNonRoot=False), WHO),
    (lambda s: _pod(s, runAsUser=7471), WHO),
    (lambda s: _pod(s, supplementalGroups=[7472, 7473]), WHO),
    (lambda s: _pod(s, fsGroup=7473), WHO),
    (lambda s: _context(s, runAsUser=0), WHO),
    (lambda s: _context(s, runAsGroup=7473), WHO),
    (lambda s: s.update(hostNetwork=True), HOST),
    (lambda s: s.update(hostPID=True), HOST),
    (lambda s: s.update(hostIPC=False), ""),
    (lambda s: _context(s, privileged=True), PRIVILEGED),
    (lambda s: s.update(ephemeralContainers=[{"name": "late", "securityContext": {"privileged": True}}]), PRIVILEGED),
    (lambda s: _context(s, capabilities={"add": ["SYS_ADMIN"]}), CAPABILITY),
    (lambda s: _context(s, capabilities={"add": ["CHOWN"]}), ""),
    (lambda s: _container(s, ports=[{"containerPort": 80, "hostPort": 80}]), PORTS),
    (lambda s: _container(s, ports=[{"containerPort": 80}]), ""),
    (lambda s: _context(s, procMount="Unmasked"), PROC),
    (lambda s: _pod(s, seccompProfile={"type": "Unconfined"}), SECCOMP),
    (lambda s: _context(s, seccompProfile={"type": "Unconfined"}), SECCOMP),
]


def check(folder, policy, training):
    """Problems of the policy. `folder` has npm's packages; `training`: the Job whose pod is changed."""
    pods = []
    for change, _ in CASES:
        pod = {"spec": copy.deepcopy(training["spec"]["template"]["spec"])}
        change(pod["spec"])
        pods.append(pod)
    run = subprocess.run(["node", "policy.mjs"], cwd=folder, input=json.dumps({"policy": policy, "pods": pods}),
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        return [f"{policy['metadata']['name']}: {run.stdout.strip()}"]
    return [f"{policy['metadata']['name']}: case {number} of CASES: wanted '{wanted}', got {said}"
            for number, ((_, wanted), said) in enumerate(zip(CASES, json.loads(run.stdout)))
            if len(said) != bool(wanted) or not all(wanted in message for message in said)]
