"""Puts an overlay of deploy/kubernetes together as kustomize does, as far as these overlays go: resources, components,
namespace, strategic merge patches, generated ConfigMaps (without the hash behind their names), images.

    tools/kubernetes_merge.py OVERLAY [COMPONENT...]        # prints the objects as YAML, with components besides its own
"""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent / "deploy/kubernetes"
KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "generatorOptions", "configMapGenerator", "images",
         "patches"}
CLUSTER_WIDE = {"Namespace", "PriorityClass"}
# Lists that are merged item by item, each with the key that names an item. All other lists are replaced.
MERGE_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
              "volumeMounts": "mountPath", "ports": "containerPort"}


class MergeError(Exception):
    """A patch or kustomization that needs rules which this program does not have."""


def documents(path):
    """The objects of a file."""
    return [item for item in yaml.safe_load_all(path.read_text()) if item is not None]


def merge(base, patch, key=""):
    """A strategic merge: merges objects by key and some lists by the name of their items; replaces everything else."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {name: merge(base[name], patch[name], name) if name in base and name in patch else
                base.get(name, patch.get(name)) for name in [*base, *(name for name in patch if name not in base)]}
    if isinstance(base, list) and isinstance(patch, list) and key in MERGE_KEYS:
        name = MERGE_KEYS[key]
        patches = {item[name]: item for item in patch}
        merged = [merge(item, patches.pop(item[name])) if item[name] in patches else item for item in base]
        return merged + list(patches.values())
    return patch


def _generate(folder, generator):
    options = generator.get("options", {})
    return {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": generator["name"], **({"labels": options["labels"]} if "labels" in options else {})},
            "data": {name: (folder / name).read_text() for name in generator["files"]}}


def build(folder, components=()):
    """All objects of a folder with a kustomization, in order; `components`: folders of more of them."""
    kustomization = _read(folder)
    objects = []
    for name in kustomization.get("resources", []):
        path = (folder / name).resolve()
        objects += build(path) if path.is_dir() else documents(path)
    for component in [*((folder / name).resolve() for name in kustomization.get("components") or []), *components]:
        taken = _read(component)
        for name in taken.get("resources", []):
            path = (component / name).resolve()
            objects += build(path) if path.is_dir() else documents(path)
        _patch(objects, component, taken)
    objects += [_generate(folder, generator) for generator in kustomization.get("configMapGenerator", [])]
    _patch(objects, folder, kustomization)
    for item in objects:
        if "namespace" in kustomization and item["kind"] not in CLUSTER_WIDE:
            item["metadata"]["namespace"] = kustomization["namespace"]
        for image in kustomization.get("images", []):
            _set_image(item, image)
    return objects


def _read(folder):
    [kustomization] = documents(folder / "kustomization.yaml")
    unknown = kustomization.keys() - KNOWN
    if unknown:
        raise MergeError(f"{folder / 'kustomization.yaml'}: {', '.join(unknown)}: this checker does not know what to do")
    return kustomization


def _patch(objects, folder, kustomization):
    for entry in kustomization.get("patches", []):
        [patch] = documents(folder / entry["path"])
        targets = [i for i, item in enumerate(objects) if (item["kind"], item["metadata"]["name"]) ==
                   (patch["kind"], patch["metadata"]["name"])]
        if len(targets) != 1:
            raise MergeError(f"{folder / entry['path']}: {len(targets)} objects are of its kind and name")
        objects[targets[0]] = merge(objects[targets[0]], patch)


def _set_image(item, image):
    pod = item.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod.get("initContainers", []) + pod.get("containers", []):
        if container["image"] == image["name"]:
            container["image"] = f"{image['newName']}:{image['newTag']}"


def overlay(name, *components):
    """The objects of overlays/NAME, with components besides its own."""
    return build(ROOT / "overlays" / name, [ROOT / "components" / component for component in components])


def one(objects, kind, name=None):
    """The only object of a kind (and name)."""
    [found] = [item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    return found


if __name__ == "__main__":
    print(yaml.safe_dump_all(overlay(*sys.argv[1:]), sort_keys=False), end="")
