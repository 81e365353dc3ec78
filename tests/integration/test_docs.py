#!/usr/bin/env python3
"""Runs the commands in README.md, docs/ and the runbook, and compares their output with the pages.

A page's blocks run in one shell, in their own folder, mount and process namespaces. This node is n0 of a cluster of
two: its sockets are in /run/railsd, the other node's in /run/railsd-n1, and its configuration is
/etc/railsd/railsd.yaml. `ssh` and `srun` are scripts that start what they are given with the sockets of these nodes. Needs
root. Labels are those of doc_blocks.py. Blocks that are only for reading are counted, so that they stay rare.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import doc_blocks
import harness
from harness import clusters

# Labels of blocks that other suites run, or that do not run.
ELSEWHERE = {"dev", "docker", "kubernetes", "package", "python", "read", "systemd"}
MAX_READ = 4
COMMAND = re.compile(r"^    (\$ )?(sudo )?(railsctl|railsd|curl|docker|systemctl|kubectl|apt-get|cmake|\./dev) ")

# The pages' nodes a and b, of which rank 0 listens at 10.0.0.1:29400, are those of the cluster. Their metrics.listen is
# 10.0.0.1:9471 and 10.0.0.2:9471.
RENDEZVOUS = "10.0.0.1:29400"
SOCKETS = "case $node in a|0) s=/run/railsd;; b|1) s=/run/railsd-n1;; *) exit 255;; esac"
LAUNCHERS = {
    "ssh": f'#!/bin/sh\n[ "$1" = -n ] && shift\nnode=$1; shift\n{SOCKETS}\nexec "$@" --socket-dir $s\n',
    "srun": f'''#!/bin/sh
while [ "$1" != railsctl ]; do shift; done
for node in 0 1; do
  {SOCKETS}
  SLURM_PROCID=$node SLURM_NTASKS=2 "$@" --socket-dir $s &
done
wait $! && wait
'''}

MARK = "@@@@ block "
PROLOGUE = """set -euo pipefail
mount -t tmpfs none /run
mkdir -p /run/railsd /run/railsd-n1
mount --bind "$N0" /run/railsd
mount --bind "$N1" /run/railsd-n1
mkdir -p "$SCRATCH/etc" "$SCRATCH/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$SCRATCH/etc,workdir=$SCRATCH/work" /etc
mkdir -p /etc/railsd
cp "$CONFIG" /etc/railsd/railsd.yaml
cd "$SCRATCH/home"
"""


def pages():
    return [harness.ROOT / "README.md", *sorted((harness.ROOT / "docs").glob("*.md")), harness.ROOT / "deploy/RUNBOOK.md"]


def relative(path):
    return str(path.relative_to(harness.ROOT))


class Marks(unittest.TestCase):
    """Checks that commands are in blocks that can run."""

    def test_labels_are_known(self):
        for path in pages():
            for block in doc_blocks.blocks(path, root=harness.ROOT):
                self.assertIn(block.label, ELSEWHERE | {""}, block)

    def test_few_blocks_are_only_read(self):
        read = [str(block) for path in pages() for block in doc_blocks.blocks(path, "read", harness.ROOT)]
        self.assertLessEqual(len(read), MAX_READ, read)

    def test_commands_are_in_blocks(self):
        loose = []
        for path in pages():
            text = re.sub(r"^( *)```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
            loose += [f"{relative(path)}: {line}" for line in text.split("\n") if COMMAND.match(line)]
        self.assertEqual(loose, [], "put them into fenced blocks of language sh")

    def test_links_lead_somewhere(self):
        broken = []
        for path in pages():
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
                if "://" not in target and not (path.parent / target).exists():
                    broken.append(f"{relative(path)}: {target}")
        self.assertEqual(broken, [])

    def test_the_configuration_reference_is_the_daemons(self):
        table = subprocess.run([harness.BUILD / "daemon/railsd", "--config-table"], text=True, stdout=subprocess.PIPE,
                               timeout=60, check=True).stdout
        page = subprocess.run([harness.ROOT / "tools/config_reference.py"], text=True, input=table,
                              stdout=subprocess.PIPE, timeout=60, check=True).stdout
        self.assertEqual((harness.ROOT / "docs/configuration.md").read_text(), page,
                         "build/release/daemon/railsd --config-table | tools/config_reference.py >docs/configuration.md")

    def test_excerpts_are_of_the_examples(self):
        for page, language, path in (("client.md", "cpp", "client/examples/all_to_all.cc"),
                                     ("c.md", "c", "client/c/examples/all_to_all.c"),
                                     ("python.md", "python", "client/python/examples/all_to_all.py"),
                                     ("python.md", "python", "tests/python/torch_rank.py")):
            program = [line.strip() for line in (harness.ROOT / path).read_text().split("\n")]
            excerpts = [text for _, *mark, text in doc_blocks.fenced((harness.ROOT / "docs" / page).read_text())
                        if mark == [language, Path(path).name]]
            self.assertGreaterEqual(len(excerpts), 2)
            for excerpt in excerpts:
                lines = [line.strip() for line in excerpt.strip().split("\n")]
                self.assertTrue(any(program[at:at + len(lines)] == lines for at in range(len(program))), excerpt)

    def test_layouts_are_those_of_the_code(self):
        code = (harness.ROOT / "agent/transport/tcp/frame.cc").read_text()
        page = (harness.ROOT / "docs/protocol.md").read_text()
        for function, begin in (("EncodeHello", "HELLO, 640 bytes:"), ("EncodeAnswer", "Answer, 384 bytes:"),
                                ("EncodeProof", "Proof, 48 bytes:"),
                                ("EncodeHeader", "Header, 48 bytes:"), ("EncodeTrailer", "Trailer, 16 bytes:"),
                                ("EncodeAck", "Record, 24 bytes, from the receiver to the sender:")):
            body = code[code.index(f"void {function}("):]
            body = body[:body.index("\n}\n")]
            written = {int(at) for at in re.findall(r"(?:Put(?:Node|<\w+>)?\(\w+, |memcpy\(p \+ )(\d+)", body)}
            table = page[page.index(begin):].split("\n\n")[1]
            shown = {int(at) for at in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
            # EncodeHello writes a second name behind the first, at 384.
            self.assertEqual(shown, written | ({384} if function == "EncodeHello" else set()), function)

    def test_output_is_compared(self):
        self.assertIsNone(doc_blocks.missing("a  b\nc ... e\n", "x\na b\ny\nc d d e\n"))
        self.assertEqual(doc_blocks.missing("a\nb\n", "b\na\n"), "b")


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "mount namespaces need root and unshare")
class Commands(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.spare = clusters.Loopback()  # for daemons that a page starts itself
        cls.addClassCleanup(cls.spare.close)

    def session(self, scratch):
        """The environment of a page's shells."""
        build, first = harness.BUILD, self.cluster.nodes[0]
        for folder in ("home", "launchers"):
            Path(scratch, folder).mkdir(exist_ok=True)
        for name, text in LAUNCHERS.items():
            Path(scratch, "launchers", name).write_text(text)
            Path(scratch, "launchers", name).chmod(0o755)
        shutil.copy(harness.ROOT / "deploy/railsd.example.yaml", Path(scratch, "home"))
        folders = [build / "daemon", build / "client/railsctl", build / "client", build / "sim",
                   Path(scratch, "launchers")]
        return {"PATH": ":".join([*map(str, folders), os.environ["PATH"]]), "HOME": str(Path(scratch, "home")),
                "N0": str(first.sockets), "N1": str(self.cluster.nodes[1].sockets), "CONFIG": str(first.config),
                "METRICS": self.cluster.addresses.metrics(0), "SCRATCH": scratch, "TERM": "dumb", "LANG": "C.UTF-8"}

    def run_page(self, path, blocks):
        """Runs all blocks in one shell. Returns the output of each block that ran, and the shell's exit code."""
        with tempfile.TemporaryDirectory(prefix="railsd-docs-") as scratch:
            environment = self.session(scratch)
            script = PROLOGUE
            for number, block in enumerate(blocks):
                text = block.text.replace("127.0.0.1:9471", environment["METRICS"])
                for node in self.cluster.nodes:
                    text = text.replace(f"10.0.0.{node.index + 1}:9471", self.cluster.addresses.metrics(node.index))
                text = text.replace(RENDEZVOUS, f"127.{self.spare.number}.0.200:29400")
                script += f"echo; echo '{MARK}{number}'\n" + text.replace("127.8.", f"127.{self.spare.number}.")
            # Processes that a page leaves end with the page's process namespace.
            run = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c",
                                  script], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        return [part.partition("\n")[2] for part in run.stdout.split(MARK)[1:]], run

    def test_pages(self):
        for path in pages():
            blocks = doc_blocks.blocks(path, "", harness.ROOT)
            if not blocks:
                continue
            with self.subTest(page=relative(path)):
                # Jobs for the page: 1 to 16 of one group, which are all that a daemon can explain.
                self.cluster.replay("--workload", "uniform", "--bytes-per-rank", "1MiB", "--steps", 7)
                printed, run = self.run_page(path, blocks)
                if run.returncode != 0:
                    last = blocks[len(printed) - 1] if printed else "its beginning"
                    self.fail(f"{last}: ended with {run.returncode}\n{(printed or [run.stdout])[-1][-4000:]}")
                for block, text in zip(blocks, printed):
                    if block.output:
                        line = doc_blocks.missing(block.output, text)
                        self.assertIsNone(line, f"{block}: it does not print: {line}\n{text}")


if __name__ == "__main__":
    harness.main()
