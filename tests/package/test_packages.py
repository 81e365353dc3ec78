#!/usr/bin/env python3
"""The packages in a clean root: installed by apt, compiled against, upgraded, removed, purged."""

import re
import tempfile
import unittest

import debian
from debian import harness

CONFIG = "/etc/railsd/railsd.yaml"
EXAMPLES = "/usr/share/doc/librailsd-client-dev/examples"
PAGES = ["/usr/share/man/man8/railsd.8.gz", "/usr/share/man/man5/railsd.yaml.5.gz", "/usr/share/man/man1/railsctl.1.gz"]
COMPLETION = ["/usr/share/bash-completion/completions/{}", "/usr/share/zsh/site-functions/_{}",
              "/usr/share/fish/vendor_completions.d/{}.fish"]
# One daemon with two rails, a program compiled inside that exchanges between two ranks through it.
EXCHANGE = """
set -e
cat > /tmp/railsd.yaml <<TEXT
socket_dir: /tmp/sockets
rails: [{address: 127.1.0.1, speed: 1gbit}, {address: 127.1.1.1, speed: 1gbit}]
TEXT
railsd --config /tmp/railsd.yaml &
$1 --world 2 --wait 60 /tmp/sockets
kill %1
wait %1
"""


class Packages(debian.RootTest):

    def install(self):
        """By the commands of the pages, in a folder as the one where they are typed. Returns what they said."""
        self.root.write("/etc/apt/apt.conf.d/90test", 'APT::Get::Assume-Yes "true"; APT::Install-Recommends "false";\n'
                                                      'APT::Sandbox::User "root";\n')
        self.root.run("sh", "-c", "mkdir /root/here /root/here/build && ln -s /packages /root/here/build/packages && "
                                  "ln -s /packages/*.deb /root/here/")
        self.root.write("/root/here/dev", "#!/bin/sh\n")  # `./dev package`, which this suite has begun with
        self.root.run("chmod", "+x", "/root/here/dev")
        blocks = debian.page_blocks("package")
        self.assertEqual(len(blocks), 4, blocks)
        said = "".join(self.root.run("env", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", "cd /root/here\n" + block.text,
                                     network=True) for block in blocks)
        self.root.run("rm", "-r", "/root/here")
        return said

    def test_1_install(self):
        before = set(self.root.run("cat", "/etc/passwd").splitlines())
        self.assertIn("railsd is installed, and not started", self.install())
        for name in debian.NAMES:
            self.assertEqual(self.root.run("dpkg-query", "-Wf", "${Status}", name), "install ok installed")
        self.assertEqual(self.root.run("dpkg", "--verify", *debian.NAMES), "")
        users = [line for line in self.root.read("/etc/passwd").splitlines() if line not in before]
        self.assertRegex("\n".join(users), r"^railsd:.*:/usr/sbin/nologin$")
        self.assertEqual(set(self.root.run("id", "-Gn", "railsd").split()), {"railsd", "rails", "rails-operators"})
        self.assertFalse(self.root.exists("/etc/systemd/system/multi-user.target.wants/railsd.service"))
        self.assertEqual(self.root.run("stat", "-c", "%U:%G %a", "/usr/lib/tmpfiles.d/railsd.conf"), "root:root 644\n")

    def test_2_programs(self):
        version = self.root.run("dpkg-query", "-Wf", "${Version}", "railsd")
        with self.assertRaisesRegex(AssertionError, r"ended with 2\s+usage: "):
            self.root.run("rails_example_all_to_all")
        for program in ("railsd", "railsctl"):
            self.assertEqual(self.root.run(program, "--version"), f"{program} {version}\n")
            self.assertNotIn(".debug_info", debian.run("readelf", "-SW", self.root.path / "usr/bin" / program))
            self.assertNotRegex(debian.run("readelf", "-d", self.root.path / "usr/bin" / program), "RPATH|RUNPATH")
        changes = debian.run("zcat", self.root.path / "usr/share/doc/railsd/changelog.gz")
        self.assertTrue(changes.startswith(f"railsd ({version}) "), changes)
        self.assertIn("all rails of a node", changes)

    def test_2_nothing_starts_before_the_rails_are_named(self):
        with self.assertRaisesRegex(AssertionError, r"ended with 3\n[\s\S]*rails: missing"):
            self.root.run("railsd", "--config", CONFIG)
        self.root.write(CONFIG, self.root.read(CONFIG) + 'rails: [{address: "127.1.0.1"}]\n')
        self.assertEqual(self.root.run("railsd", "--config", CONFIG, "--check-config"), f"{CONFIG}: ok\n")
        printed = self.root.run("railsd", "--config", CONFIG, "--print-config")
        self.assertRegex(printed, 'socket_group: "rails"\n')
        self.assertRegex(printed, 'operator_group: "rails-operators"\n')

    def test_2_manual_pages(self):
        for page in PAGES:
            path = self.root.path / page[1:]
            self.assertEqual(debian.run("mandoc", "-T", "lint", "-W", "warning", path), "")
            with tempfile.NamedTemporaryFile(suffix=".man") as plain:
                plain.write(debian.run("zcat", path).encode())
                plain.flush()
                self.assertEqual(debian.run("groff", "-man", "-ww", "-z", plain.name), "")
        text = re.sub(r"\s+", " ", debian.run("mandoc", "-T", "ascii", self.root.path / PAGES[2][1:]))
        text = re.sub(".\b", "", text)
        for command in re.findall(r"^  (\S+) +[A-Z]", self.root.run("railsctl", "--help").split("Subcommands:")[1],
                                  re.MULTILINE):
            self.assertIn(f" {command} ", text)
        keys = debian.run("zcat", self.root.path / PAGES[1][1:])
        for key in ("rails", "peers", "limits", "timeouts", "health", "log"):
            self.assertIn(f"\n.SS {key}\n", keys)

    def test_2_programs_of_railsctl(self):
        for command in ("plan", "sim"):
            self.assertIn("Exit codes", self.root.run("railsctl", command, "--help"))

    def test_2_dashboards_and_rules(self):
        source = harness.ROOT / "dashboards"
        names = {path.name for path in source.glob("*.json")} | {"rails.rules.yaml"}
        folder = "/usr/share/railsd-dashboards"
        self.assertEqual({path.name for path in (self.root.path / folder[1:]).iterdir()}, names)
        for name in names:
            self.assertEqual(self.root.read(f"{folder}/{name}"), (source / name).read_text())
        self.assertTrue(self.root.exists("/usr/share/doc/railsd-dashboards/RUNBOOK.md"))

    def test_2_completion(self):
        for program in ("railsd", "railsctl"):
            for script in COMPLETION:
                self.assertIn(program, self.root.read(script.format(program)))
            self.root.run("bash", "-n", COMPLETION[0].format(program))
        words = "COMP_WORDS=(railsd --log-format t); COMP_CWORD=2; _railsd; echo ${COMPREPLY[*]}"
        self.assertEqual(self.root.run("bash", "-c", f". {COMPLETION[0].format('railsd')}; {words}"), "text\n")

    def test_3_compile(self):
        self.root.run("cmake", "-S", EXAMPLES, "-B", "/opt/build")
        self.root.run("cmake", "--build", "/opt/build")
        self.root.run("sh", "-c", f"g++ -std=c++20 {EXAMPLES}/all_to_all.cc -o /opt/all_to_all "
                                  "$(pkg-config --cflags --libs railsd)")
        for program in ("/opt/build/all_to_all", "/opt/all_to_all"):
            self.assertRegex(debian.run("readelf", "-d", self.root.path / program[1:]), r"NEEDED.*librails_client\.so\.")
            said = self.root.run("bash", "-c", EXCHANGE, "exchange", program)
            self.assertIn("every byte is right", said)
        self.root.run("sh", "-c", f"gcc -std=c11 {EXAMPLES}/all_to_all.c -o /opt/in_c $(pkg-config --cflags --libs rails)")
        with self.assertRaisesRegex(AssertionError, "UNAVAILABLE: .*is railsd running"):
            self.root.run("/opt/in_c", "/nowhere", "1", "0")

    def test_3_python(self):
        said = self.root.run("bash", "-c", EXCHANGE, "exchange", "/usr/share/doc/python3-rails/examples/all_to_all.py")
        self.assertIn("every token is right", said)

    def test_4_upgrade(self):
        changed = self.root.read(CONFIG)
        self.assertIn("127.1.0.1", changed)
        with tempfile.TemporaryDirectory(dir=debian.debian_root.ROOTS) as folder:
            newer = [debian.repacked(deb, "99.1.0", folder) for deb in debian.packages().values()]
            self.root.add_packages(newer)
        said = self.root.apt("install", *debian.inner(newer))
        self.assertNotIn("railsd is installed, and not started", said)
        self.assertEqual(self.root.run("dpkg-query", "-Wf", "${Version}", "railsd"), "99.1.0")
        self.assertEqual(self.root.read(CONFIG), changed)

    def test_5_remove_and_purge(self):
        files = [path for name in debian.NAMES for path in self.root.run("dpkg", "-L", name).split("\n")
                 if "rails" in path]
        self.assertIn("/usr/bin/railsd", files)
        self.root.apt("remove", *debian.NAMES)
        self.assertTrue(self.root.exists(CONFIG))
        self.assertEqual([path for path in files if self.root.exists(path) and not path.startswith("/etc/railsd")], [])
        self.root.run("dpkg", "--purge", *debian.NAMES)
        left = self.root.run("find", "/", "-xdev", "-name", "*rails*", "-not", "-path", "/opt/*", "-not", "-path",
                             "/packages/*", "-not", "-path", "/proc/*", "-not", "-path", "/sys/*")
        self.assertEqual(left, "")
        self.assertIn("railsd:", self.root.read("/etc/passwd"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
