"""`remask VERB …`: the one dictionary of verbs, and what all of them have in common."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version

from remask.data_prep.errors import InputError
from remask.launcher import (
    bench,
    cancel,
    demo,
    doctor,
    export,
    import_model,
    inspect_masks,
    job_logs,
    logs,
    prep,
    ranks,
    report,
    show_presets,
    status,
    submit,
    train,
    train_tokenizer,
)
from remask.launcher.decode import nearest

Verb = Callable[[Sequence[str]], int]

VERBS: dict[str, Verb] = {
    "bench": bench.main,
    "cancel": cancel.main,
    "demo": demo.main,
    "doctor": doctor.main,
    "export": export.main,
    "import": import_model.main,
    "inspect": inspect_masks.main,
    "logs": job_logs.main,
    "prep": prep.main,
    "presets": show_presets.main,
    "report": report.main,
    "status": status.main,
    "submit": submit.main,
    "tokenizer": train_tokenizer.main,
    "train": train.main,
}

_ALL_RANKS = "--log-all-ranks"
# Errors that no program can help: no right to a file, a full or read-only disk, a quota, a device that fails.
_MACHINES_REFUSALS = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO)
_HELP = """\
usage: remask [--help] [--version] VERB [OPTIONS] [--log-all-ranks]

From raw text to a trained BERT-family encoder.

verbs:
{verbs}

options:
  --help           this page; remask VERB --help tells a verb's options and what each one changes
  --version        print the version
  --log-all-ranks  with any verb: log lines from every rank, not only from rank 0

example:
  remask doctor && remask demo
"""


def main(args: Sequence[str] | None = None) -> int:
    """The `remask` command."""
    given = list(sys.argv[1:] if args is None else args)
    verb, *rest = [arg for arg in given if arg != _ALL_RANKS] or ["--help"]
    found = {**VERBS, "--help": _help, "-h": _help, "--version": _version}.get(verb, _refuse_verb(verb))
    return guard(found, rest, all_ranks=_ALL_RANKS in given)


def _help(_: Sequence[str]) -> int:
    print(_HELP.format(verbs="\n".join(f"  {name:<16} {verb.__doc__}" for name, verb in VERBS.items())), end="")
    return 0


def _version(_: Sequence[str]) -> int:
    print(f"remask {version('remask')}")
    return 0


def _refuse_verb(name: str) -> Verb:
    def refuse(_: Sequence[str]) -> int:
        raise InputError(f"remask: {name!r} is no verb; {nearest(name, list(VERBS))} (see remask --help)")

    return refuse


def guard(verb: Verb, args: Sequence[str], all_ranks: bool) -> int:
    """Run a verb: a user's mistake becomes one line and exit code 2, an interrupt 130, SIGTERM 143; a bug keeps its traceback."""
    logs.configure(rank=ranks.place_of(os.environ).rank, all_ranks=all_ranks)
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run(verb, args)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except _Terminated:
        return _fail("terminated", 143)
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in _MACHINES_REFUSALS:
            raise
        if not error.filename:
            _drop_output()
        return _fail(f"{error.filename or 'the output'}: cannot be used ({error.strerror})", 2)


class _Terminated(BaseException):
    """SIGTERM, raised where the program is, so that what was started is ended and what was begun is cleaned up."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _fail(sentence: str, code: int) -> int:
    rank = ranks.place_of(os.environ).rank
    print(f"{f'[rank {rank}] ' if rank else ''}error: {sentence}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Nobody can read what is left in the buffer; without this Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: Verb, args: Sequence[str]) -> int:
    try:
        return verb(args)
    except SystemExit as end:  # how tyro leaves after --help
        return int(end.code or 0)
