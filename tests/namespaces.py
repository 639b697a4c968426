"""Two machines on this one: network namespaces joined by a cable that can be cut. Needs root and iproute2."""

import os
import subprocess
from collections.abc import Sequence

CABLE = "cable"
"""What each machine calls its end."""


class TwoMachines:
    """Up while the `with` block runs; they have the addresses 10.78.0.1 and 10.78.0.2, and host names of their own."""

    def __init__(self) -> None:
        self.names = [f"remask-{os.getpid()}-{end}" for end in "ab"]
        self.addresses = ["10.78.0.1", "10.78.0.2"]

    def __enter__(self) -> "TwoMachines":
        first, second = self.names
        try:
            for name in self.names:
                _ip("netns", "add", name)
            _ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
                _ip("-n", name, "link", "set", CABLE, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def command(self, machine: int, command: Sequence[str]) -> list[str]:
        """The command, as it is run on one of them."""
        own = f'hostname machine-{"ab"[machine]} && exec "$@"'
        return ["nsenter", f"--net=/run/netns/{self.names[machine]}", "unshare", "--uts", "sh", "-c", own, "sh", *command]

    def cut(self) -> None:
        _ip("-n", self.names[0], "link", "set", CABLE, "down")


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)
