"""A real Chromium, where the system has one: opened on a file, driven as a user does, over the pipe of its own tools.

Messages of the DevTools protocol go in at descriptor 3 and come out at 4, each ended by a NUL: no library is needed.
"""

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ABSENT = "no Chromium on this machine: what a page does in a browser is not tested here"
SECONDS = 120.0  # for any answer: a machine may be busy


class Browser:
    """One page in one browser. events: those it reported (requests, messages of the console, errors)."""

    def __init__(self, process, write, read):
        self.process, self._write, self._read = process, write, read
        self._buffer, self._number, self._session = b"", 0, ""
        self.events = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The result of one command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            assert data, "Chromium is gone, or does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, file, width=1280, height=900):
        """Open a file from disk and wait until it is there."""
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=file.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script):
        """The value of an expression of JavaScript."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition):
        """Wait for a condition to hold."""
        end = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def click(self, selector):
        """Press the mouse in the middle of the first element of a selector."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def place(self, selector):
        """The middle of an element, brought into view."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.run(f"(b => [b.left + b.width / 2, b.top + b.height / 2])({box}.getBoundingClientRect())")
        return x, y

    def type(self, text):
        """Text into what has the focus."""
        self.ask("Input.insertText", text=text)

    def press(self, key, code, text=""):
        """One key."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **keys, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **keys)

    def events_of(self, *methods):
        """The events of these kinds so far."""
        return [event["params"] for event in self.events if event.get("method") in methods]


@contextmanager
def browser(profile):
    """A headless Chromium with a profile of its own, ended afterwards."""
    assert BROWSER
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += [f"--user-data-dir={profile}", "--disable-background-networking", "--disable-component-update"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "chromium", BROWSER, *flags],
        pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(process, ours_out, ours_in)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
