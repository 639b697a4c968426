"""`remask VERB …`: the one dictionary of verbs, and what all of them have in common."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from remask.launcher import demo, doctor, logs, ranks, show_presets
from remask.launcher.decode import nearest
from remask.launcher.errors import UserError

Verb = Callable[[Sequence[str]], int]

VERBS: dict[str, Verb] = {
    "demo": demo.main,
    "doctor": doctor.main,
    "presets": show_presets.main,
}

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
    verb, *rest = (sys.argv[1:] if args is None else args) or ["--help"]
    return guard({**VERBS, "--help": _help, "-h": _help, "--version": _version}.get(verb, _refuse_verb(verb)), rest)


def _help(_: Sequence[str]) -> int:
    print(_HELP.format(verbs="\n".join(f"  {name:<16} {verb.__doc__}" for name, verb in VERBS.items())), end="")
    return 0


def _version(_: Sequence[str]) -> int:
    print(f"remask {version('remask')}")
    return 0


def _refuse_verb(name: str) -> Verb:
    def refuse(_: Sequence[str]) -> int:
        raise UserError(f"remask: {name!r} is no verb; {nearest(name, list(VERBS))} (see remask --help)")

    return refuse


def guard(verb: Verb, args: Sequence[str]) -> int:
    """Run a verb: a user's mistake becomes one line and exit code 2, an interrupt 130; a bug keeps its traceback."""
    logs.configure(rank=ranks.place_of(os.environ).rank, all_ranks="--log-all-ranks" in args)
    try:
        code = _run(verb, [arg for arg in args if arg != "--log-all-ranks"])
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(verb: Verb, args: Sequence[str]) -> int:
    try:
        return verb(args)
    except SystemExit as end:  # how tyro leaves after --help
        return int(end.code or 0)
