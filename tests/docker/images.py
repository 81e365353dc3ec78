"""The images of the tests: the base from tools/debian_root.py, since a registry may not be there, and railsd's own from
build/packages. They are kept in the engine under a hash of what went in."""

import hashlib
import json
import sys
from pathlib import Path

from engine import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import debian_root  # noqa: E402  (found by the line above)

PACKAGES = ROOT / "build/packages"
RECIPE = ROOT / "deploy/docker"
VERSIONS = ("1.0.0-old", "1.0.1-new")  # labels of the two images that a rolling upgrade needs


def _digest(paths):
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _known(docker, tag):
    return docker.docker("image", "ls", "--quiet", tag).strip()


def base(docker):
    """The tag of a minimal Debian."""
    archive = debian_root.base_tar()
    state = archive.stat()
    tag = f"railsd-base:{hashlib.sha256(f'{state.st_size} {state.st_mtime_ns}'.encode()).hexdigest()[:16]}"
    if not _known(docker, tag):
        docker.docker("import", str(archive), tag)
    return tag


def packages():
    """The packages that go into an image, in order."""
    found = sorted(path for kind in ("railsd", "railsctl") for path in PACKAGES.glob(f"{kind}_*.deb"))
    assert len(found) == 2, f"{PACKAGES} should have one package of railsd and one of railsctl, made by ./dev package: {found}"
    return found


def railsd(docker, version=VERSIONS[0]):
    """The tag of railsd's image, with `version` on its label; built where it is missing."""
    parent = base(docker)
    recipe = sorted(path for path in RECIPE.iterdir() if path.name.startswith(("Dockerfile", "install")))
    tag = f"railsd-test:{_digest([*recipe, *packages()])}-{parent.split(':')[1]}-{version}"
    if not _known(docker, tag):
        docker.docker("build", "--network=host", "--file", str(RECIPE / "Dockerfile"), "--build-arg", f"BASE={parent}",
                      "--build-arg", "PACKAGES=ready", "--build-arg", f"VERSION={version}", "--tag", tag, str(ROOT),
                      timeout=900)
    return tag


def remove_old(docker, keep):
    """Images of earlier runs."""
    for repository in ("railsd-test", "railsd-base"):
        for tag in docker.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).split():
            if tag not in keep:
                docker.docker("image", "rm", tag, check=False)
    docker.docker("image", "prune", "--force", check=False)


def size(docker, tag):
    """Bytes of an image with all its layers, and its labels."""
    about = json.loads(docker.docker("image", "inspect", tag))[0]
    return about["Size"], about["Config"]["Labels"] or {}
