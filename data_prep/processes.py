"""Local worker processes that end with the process that started them, however it ends."""

import ctypes
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

_PR_SET_PDEATHSIG = 1


def process_pool(count: int) -> ProcessPoolExecutor:
    """A pool whose workers leave Ctrl-C to the parent, have one thread each, and are killed when the parent is."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_start, initargs=(os.getpid(),))


def _start(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    os.environ.update(RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
