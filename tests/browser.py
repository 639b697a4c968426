"""A real browser without a window, spoken to by its DevTools protocol over a pipe: no driver, no port."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_ANSWER_SECONDS, _QUIET_SECONDS, _LOAD_SECONDS = 60.0, 1.0, 60.0


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page at a time; what it complained of and asked the network for since `visit` is in `errors` and `requests`."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 1000) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._size = (width, height)
        self._profile = profile
        self._buffer = b""
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> "Browser":
        command = [chromium() or "chromium", *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4; ours must not be one of these two before they are put there.
        low = (theirs_in, theirs_out)
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in low]
        placed = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
        self._process = subprocess.Popen(["bash", "-c", placed, "bash", *command], pass_fds=high, stderr=subprocess.DEVNULL)
        for end in (*low, *high):
            os.close(end)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self._ask("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def visit(self, file: Path) -> None:
        """Open a file and wait until nothing happens any more."""
        self.errors, self.requests = [], []
        self._ask("Page.navigate", url=file.resolve().as_uri())
        end = time.monotonic() + _LOAD_SECONDS
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < end, f"{file} does not load"
        while self._receive(_QUIET_SECONDS) is not None:
            assert time.monotonic() < end, f"{file} does not come to rest"

    def resize(self, width: int, height: int) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def take_picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._out, rest) :]
        while (answer := self._receive(_ANSWER_SECONDS)) is not None:
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"the browser does not answer {method}")

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, after what it tells was noted; None if there is none for so long."""
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], seconds)[0]:
                return None
            read = os.read(self._in, 1 << 16)
            assert read, "the browser has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
