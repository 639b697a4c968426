"""Several machines on this one: network namespaces around a switch, with links that can be slowed or cut. Needs root and iproute2."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

CABLE = "cable"
"""What each machine calls its network device."""
_PROGRAMS = ("ip", "tc", "nsenter", "unshare")
# Of a link: what may wait in its queue. Too little drops packets that TCP must send again, too much only delays.
_QUEUE_MS = 50
_LEAST_BURST_BYTES = 128 * 1024


def what_is_missing() -> str:
    """Why there can be no machines here; empty if there can."""
    missing = [program for program in _PROGRAMS if not shutil.which(program)]
    return f"not installed: {', '.join(missing)}" if missing else "not root" if os.geteuid() else ""


class Machines:
    """Up while the `with` block runs; they have the addresses 10.78.0.1 and on, and host names of their own: machine-1, …"""

    def __init__(self, count: int) -> None:
        self._switch = f"remask-{os.getpid()}-switch"
        self.names = [f"remask-{os.getpid()}-{number}" for number in range(1, count + 1)]
        self.addresses = [f"10.78.0.{number}" for number in range(1, count + 1)]

    def __enter__(self) -> "Machines":
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        _call("ip", "netns", "add", self._switch)
        _call("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        _call("ip", "-n", self._switch, "link", "set", "switch", "up")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            _call("ip", "netns", "add", name)
            far = ["peer", "name", f"port{number}", "netns", self._switch]
            _call("ip", "link", "add", CABLE, "netns", name, "type", "veth", *far)
            _call("ip", "-n", self._switch, "link", "set", f"port{number}", "master", "switch", "up")
            _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            _call("ip", "-n", name, "link", "set", CABLE, "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")

    def __exit__(self, *_: object) -> None:
        for name in [self._switch, *self.names]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def command(self, machine: int, command: Sequence[str]) -> list[str]:
        """The command, as it is run on one of them."""
        own = f'hostname machine-{machine + 1} && exec "$@"'
        return ["nsenter", f"--net=/run/netns/{self.names[machine]}", "unshare", "--uts", "sh", "-c", own, "sh", *command]

    def limit(self, gbit: float | None) -> None:
        """What each machine can send, from now on; None for all that the kernel gives."""
        for name in self.names:
            subprocess.run(["tc", "-n", name, "qdisc", "delete", "dev", CABLE, "root"], capture_output=True, check=False)
            if gbit is not None:
                burst = max(_LEAST_BURST_BYTES, int(gbit * 1e9 / 8 / 1000))
                rate = ["rate", f"{round(gbit * 1000)}mbit", "burst", str(burst), "latency", f"{_QUEUE_MS}ms"]
                _call("tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", "tbf", *rate)

    def cut(self, machine: int) -> None:
        """Pull a machine's cable."""
        _call("ip", "-n", self.names[machine], "link", "set", CABLE, "down")


def sent_bytes() -> int | None:
    """What the kernel has sent from this machine over the cable so far; None if it has none."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        device, _, numbers = line.partition(":")
        if device.strip() == CABLE:
            return int(numbers.split()[8])
    return None


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
