"""Headless Chromium, driven through a pipe by the DevTools protocol."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS = 60.0


class Browser:
    """One tab; errors in it and its requests are recorded.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder):
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # it reads from 3 and writes to 4
        command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number = itertools.count(1)
        self._session = None
        self._buffer = b""
        self._events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)

    def call(self, method, **parameters):
        """The answer to a command."""
        number = next(self._number)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda event: event.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address):
        """Goes to a page and waits until it is there."""
        self._events.clear()
        loader = self.call("Page.navigate", url=address)["loaderId"]

        def there(event):
            found = event["params"] if event.get("method") == "Page.lifecycleEvent" else {}
            return (found.get("loaderId"), found.get("name")) == (loader, "load")

        if not any(map(there, self._events)):
            self._wait(there)

    def run(self, script):
        """The value of an expression on the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script):
        """Waits until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < end, f"{script} did not come true"
            time.sleep(0.02)

    def key(self, name, code=0):
        """Presses a key and lets go."""
        what = {
            "key": name,
            "code": "Space" if name == " " else name,
            "windowsVirtualKeyCode": code,
        }
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            **what,
            **({"text": " "} if name == " " else {}),
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def place(self, selector):
        """Place of an element on the screen: left, top, width, height."""
        at = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{at}.scrollIntoView({{block: 'center'}})")
        box = (
            f"(() => {{const b = {at}.getBoundingClientRect(); return [b.x, b.y, b.width, "
            "b.height]})()"
        )
        return self.run(box)

    def mouse(self, kind, x, y):
        """``mouseMoved``, ``mousePressed`` or ``mouseReleased`` at a place."""
        more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector, across=0.5):
        """Presses the mouse on an element, so far across it."""
        left, top, width, height = self.place(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, left + across * width, top + height / 2)

    def looks(self, scheme, width=1000, height=760):
        """Set light or dark mode, and the size of the window."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def shot(self, path):
        """A picture of the window, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def wrong(self):
        """Exceptions, errors and warnings since the page was opened."""
        self.run("0")  # events before this answer have arrived by then
        kinds = {
            "Runtime.exceptionThrown": lambda event: True,
            "Log.entryAdded": lambda event: event["entry"]["level"] in ("error", "warning"),
            "Runtime.consoleAPICalled": lambda event: (
                event["type"] in ("error", "warning", "assert")
            ),
        }
        known = [(kinds.get(event.get("method")), event.get("params")) for event in self._events]
        return [event for bad, event in known if bad is not None and bad(event)]

    def requests(self):
        """Addresses fetched since the page was opened."""
        method = "Network.requestWillBeSent"
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event.get("method") == method
        ]

    def _wait(self, wanted):
        end = time.monotonic() + SECONDS
        while True:
            while b"\0" not in self._buffer:
                left = end - time.monotonic()
                ready, _, _ = select.select([self._in], [], [], max(left, 0))
                assert ready, f"the browser sent nothing for {SECONDS:g} seconds"
                part = os.read(self._in, 1 << 20)
                assert part, "the browser is gone"
                self._buffer += part
            message, self._buffer = self._buffer.split(b"\0", 1)
            event = json.loads(message)
            if wanted(event):
                return event
            self._events.append(event)
