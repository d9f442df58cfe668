"""A real headless browser, driven over its debugging pipe: what a page says, measures and looks like."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab. `complaints` gathers console errors, exceptions, and whatever the page asks the network for."""

    def __init__(self):
        (read, there), (here, write) = os.pipe(), os.pipe()
        os.set_inheritable(read, True)
        os.set_inheritable(write, True)
        self.folder = tempfile.TemporaryDirectory()
        # The browser reads commands from its descriptor 3 and answers on its 4.
        command = (
            f'exec "{CHROMIUM}" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars '
            f"--user-data-dir={self.folder.name} --remote-debugging-pipe about:blank 3<&{read} 4>&{write}"
        )
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(read, write), stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self.out, self.into = os.fdopen(there, "wb", buffering=0), os.fdopen(here, "rb")
        self.numbers = itertools.count(1)
        self.session = None
        self.complaints = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The answer to one command; what happens meanwhile is looked at."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

    def _next(self):
        text = bytearray()
        while (byte := self.into.read(1)) not in (b"\0", b""):
            text += byte
        if not text:
            raise RuntimeError("the browser has gone")
        event = json.loads(text)
        kind, what = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown" or (kind == "Runtime.consoleAPICalled" and what["type"] != "log"):
            self.complaints.append(what)
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"])
        elif kind == "Network.requestWillBeSent" and not what["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.complaints.append(what["request"]["url"])
        return event

    def open(self, path, width=1280, height=900, dark=False):
        """Load a page file at a width, in light or dark."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=Path(path).resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.02)

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path, top=0, height=None):
        """The whole page as it is, or a part of it."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"], "scale": 1}
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))
        return size

    def close(self):
        with contextlib.suppress(RuntimeError, BrokenPipeError):
            self.session = None
            self.ask("Browser.close")
        self.process.wait(20)
        self.out.close()
        self.into.close()
        self.folder.cleanup()
