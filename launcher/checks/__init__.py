"""What `remask doctor` looks at: each check is a function that tells what it found and, where something is wrong, the remedy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row of the report."""

    name: str
    status: Literal["ok", "note", "warn", "fail"]
    """ok; note: absent, and not needed to train here; warn: something will not work or will be slow; fail: training cannot run."""
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status in ("warn", "fail") and not self.remedy:
            raise ValueError(f"remedy: the check {self.name} has status {self.status} and must say what to do")
