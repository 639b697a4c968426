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
    given = list(sys.argv[1:] if args is None else args)
    if not given or given[0] in ("-h", "--help"):
        print(_HELP.format(verbs="\n".join(f"  {name:<16} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items())), end="")
        return 0
    if given[0] == "--version":
        print(f"remask {version('remask')}")
        return 0
    if given[0] not in VERBS:
        return refuse(f"remask: {given[0]!r} is no verb; {nearest(given[0], list(VERBS))} (see remask --help)")
    return guard(VERBS[given[0]], given[1:])


def guard(verb: Verb, args: Sequence[str]) -> int:
    """Run a verb: a user's mistake becomes one line and exit code 2, an interrupt 130; a bug keeps its traceback."""
    logs.configure(rank=ranks.place_of(os.environ).rank, all_ranks="--log-all-ranks" in args)
    try:
        code = verb([arg for arg in args if arg != "--log-all-ranks"])
        sys.stdout.flush()
        return code
    except UserError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def refuse(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2
