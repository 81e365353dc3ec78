"""The commands in deploy/docker/README.md are executed as they stand there; only the folders and the base are others."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import images
import stack
from engine import DOCKER, ROOT

README = ROOT / "deploy/docker/README.md"


class Readme(unittest.TestCase):
    def sh(self, block, folder, base):
        """Runs one block of commands."""
        script = block.replace("conf=/etc/railsd sockets=/run/railsd", f"conf={folder}/etc sockets={folder}/run")
        script = script.replace("docker build ", f"docker build --network host --build-arg BASE={base} ")
        script = script.replace("./dev package\n", "")  # the suite has done it; build/packages is what is tested
        self.assertNotEqual(script, "")
        done = subprocess.run(["bash", "-euc", f'docker() {{ {DOCKER} "$@"; }}\n{script}'], cwd=ROOT, text=True,
                              env=stack.DOCKER.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}")
        return done.stdout

    def test_commands(self):
        build, run, use, compose = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
        docker, base = stack.DOCKER, images.base(stack.DOCKER)
        self.assertEqual(docker.docker("ps", "--all", "--quiet", "--filter", "name=^railsd$"), "", "a container railsd")
        folder = Path(tempfile.mkdtemp(prefix="railsd-readme-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        self.addCleanup(docker.docker, "rmi", "railsd", check=False)
        self.sh(build, folder, base)
        self.addCleanup(docker.docker, "rm", "--force", "railsd", check=False)
        self.assertIn("railsd.yaml: ok", self.sh(run, folder, base))
        stack.eventually(lambda: docker.inspect("railsd")["State"]["Health"]["Status"] == "healthy",
                         lambda: docker.docker("logs", "railsd"))
        self.assertIn("rail0", self.sh(use, folder, base))
        self.addCleanup(docker.docker, "rm", "--force", "docker_railsd_1", "docker_check_1", check=False)
        output = self.sh(compose, folder, base)
        self.assertIn("docker_check_1 exited with code 0", re.sub(r"\x1b\[[\d;]*m", "", output))
