"""Signals that ask a run to end: remembered here, acted upon by all ranks at the end of a step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Which signal came, if any."""

    def __init__(self) -> None:
        self.number = 0

    def note(self, number: int, _: object) -> None:
        if number == self.number == signal.SIGINT:  # a second Ctrl-C is meant
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Signals end the process at once: while it waits for other ranks in C++, no handler of Python's would run."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def noticing_signals() -> Iterator[StopRequest]:
    request = StopRequest()
    before = {number: signal.signal(number, request.note) for number in _ASKING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_of(number: int) -> str:
    return signal.Signals(number).name
