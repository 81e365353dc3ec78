"""A headless Chromium that tests control through the pipe of its DevTools protocol: JSON objects, each ended by NUL."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = 120.0  # seconds to wait for an answer


class BrowserError(Exception):
    """The browser ended, did not answer, or a command failed in it."""


def installed():
    return shutil.which("chromium") is not None


class Browser:
    """One browser with one page. A context manager. `command`: prefix of its command line, such as `ip netns exec`."""

    def __init__(self, command=()):
        self._folder = tempfile.TemporaryDirectory(prefix="railsd-chromium-", ignore_cleanup_errors=True)
        to_read, to_write, self._number, self._buffer = os.pipe(), os.pipe(), 0, b""
        # The browser gets its ends as descriptors 3 and 4. Moves them up first, so that neither overwrites the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read[0], to_write[1])]
        for end in (to_read[0], to_write[1]):
            os.close(end)
        self._out, self._in = to_read[1], to_write[0]
        self.log = Path(self._folder.name) / "log"
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", "chromium", "--headless",
                 "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
                 f"--user-data-dir={self._folder.name}/profile", "--remote-debugging-pipe", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=ends, start_new_session=True)
        for end in ends:
            os.close(end)
        self.complaints = []  # exceptions, console errors, violations of the page's policy
        self._session = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for end in (self._out, self._in):
            os.close(end)
        self._folder.cleanup()

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise BrowserError(f"chromium {'ended' if ready else 'does not answer'}\n"
                                   f"{self.log.read_text(errors='replace')[-4000:]}")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        kind, what = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(what["exceptionDetails"])
        elif kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(what["args"])
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"])

    def call(self, method, **parameters):
        """Calls one method of the protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != self._number:
                self._note(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def run(self, script):
        """Returns the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, selector):
        """The visible text of an element; empty if there is none."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(node => node.innerText)")

    def open(self, url):
        self.call("Page.navigate", url=url)

    def shape(self, width, height, scheme="light", phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path, height=None):
        """Saves the whole page, or its top `height` pixels, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(shot["data"]))
