"""Command-line options: a verb's own, read by tyro into a frozen dataclass, and overrides of the run's config (`--model.layers 24`).

Overrides are one more layer over the preset and go through the same strict decoding as YAML, so that a mistake gives the same sentence.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, make_dataclass
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_origin, get_type_hints

import tyro

# tyro is pinned exactly for this: the hook is its only way to take over an error message, and is declared unstable.
from tyro import _errors as tyro_errors

from remask.launcher import strict_yaml
from remask.launcher.config import RunConfig, load
from remask.launcher.decode import nearest
from remask.launcher.errors import UserError

T = TypeVar("T")

_SECTIONS = [field.name for field in fields(RunConfig)]


def parse(options: type[T], args: Sequence[str], verb: str) -> T:
    """The options of a verb without a run config."""
    return cast(T, _run_tyro(options, _gathered(args, options), verb, cleandoc(options.__doc__ or ""), _flags(options)))


def parse_with_config(options: type[T], args: Sequence[str], verb: str, preset: str) -> tuple[T, RunConfig]:
    """The options of a verb, and the config of its `--preset` with the overrides applied."""
    own, _ = split_overrides(args, _flags(options))
    asks_for_help = "--help" in own or "-h" in own  # then the page is shown, whatever else is wrong
    config = load(preset) if asks_for_help else load_config(options, args, preset)
    flat = tyro.conf.arg(name="")  # --model.layers rather than --config.model.layers
    both = make_dataclass(
        "both", [("options", Annotated[options, flat]), ("config", Annotated[RunConfig, flat, tyro.conf.FlagConversionOff], config)]
    )
    return cast(T, _run_tyro(both, _gathered(own, options), verb, cleandoc(options.__doc__ or ""), _flags(options)).options), config


def load_config(options: type[Any], args: Sequence[str], preset: str) -> RunConfig:
    """The config that a verb's arguments name."""
    own, overrides = split_overrides(args, _flags(options))
    return load(_last_value("--preset", own, preset), overrides)


def refuse_target(verb: str, option: str, file: Path) -> None:
    """UserError, before anything is done, if a file cannot be written there: a device or a folder must not be replaced by it."""
    if not file.parent.is_dir():
        raise UserError(f"remask {verb}: {option}: the folder of {file} does not exist")
    if file.exists() and not file.is_file():
        raise UserError(f"remask {verb}: {option}: {file} is no file that could be replaced; give another name")


def split_overrides(args: Sequence[str], flags: Sequence[str] = ()) -> tuple[list[str], dict[str, Any]]:
    """The verb's own arguments, `flags` among them, and the overrides as a nested mapping of plain values."""
    own: list[str] = []
    overrides: dict[str, Any] = {}
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        path = name.removeprefix("--").replace("-", "_").split(".")
        if not name.startswith("--") or (len(path) == 1 and (path[0] not in _SECTIONS or name in flags)):
            own.append(f"{name}{equals}{value}")
            continue
        values = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if not all(values) or not values:
            raise UserError(f"command line: {'.'.join(path)}: the value is missing; write {name} VALUE")
        _put(overrides, path, _plain(values[0]) if len(values) == 1 else [_plain(text) for text in values])
    return own, overrides


def _put(overrides: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at the path; of a repeated option the last counts, as everywhere, but no part of a list is lost."""
    inner = overrides
    for depth, key in enumerate(path[:-1], start=1):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"command line: {'.'.join(path)}: {'.'.join(path[:depth])} was given a value before, it has no keys below it")
    if isinstance(inner.get(path[-1]), dict):
        raise UserError(f"command line: {'.'.join(path)}: was given a value and keys below it; give one of them")
    if path[-1] in inner and _is_list(path):
        raise UserError(f"command line: {'.'.join(path)}: was given more than once; write --{'.'.join(path)} A B")
    inner[path[-1]] = value


def _is_list(path: Sequence[str]) -> bool:
    """Whether the config has a list there."""
    hint: Any = RunConfig
    for key in path:
        hint = get_type_hints(hint).get(key) if is_dataclass(hint) else None
    return get_origin(hint) is tuple


def _plain(text: str) -> Any:
    """The value that the text would have in YAML; None, as Python and tyro's help write it, is null."""
    try:
        value = strict_yaml.read(text.encode(errors="surrogateescape"))
    except ValueError:
        return text
    return None if text == "None" else text if isinstance(value, dict) else value


def _last_value(flag: str, args: Sequence[str], default: str) -> str:
    """The value of a flag, read ahead of tyro because the other defaults depend on it; as with tyro the last one counts."""
    value = default
    for i, arg in enumerate(args):
        if arg.startswith(f"{flag}="):
            value = arg.removeprefix(f"{flag}=")
        elif arg == flag:
            if i + 1 == len(args) or args[i + 1].startswith("--"):
                raise UserError(f"{flag}: the value is missing; write {flag} VALUE")
            value = args[i + 1]
    return value


def _gathered(args: Sequence[str], options: type[Any]) -> list[str]:
    """The arguments with all values of a list that was given several times behind its first flag; tyro would keep the last ones only."""
    lists = {
        f"--{name.replace('_', '-')}" for name, hint in get_type_hints(options, include_extras=True).items() if get_origin(hint) is tuple
    }
    flags = [arg.partition("=")[0].replace("_", "-") for arg in args]
    repeated = {flag for flag in lists if flags.count(flag) > 1}
    words: list[list[str]] = []
    places: dict[str, list[str]] = {}
    values: list[str] | None = None
    for flag, arg in zip(flags, args, strict=True):
        if flag in repeated:
            if flag not in places:
                places[flag] = [flag]
                words.append(places[flag])
            _, equals, value = arg.partition("=")
            places[flag] += [value] if equals else []
            values = None if equals else places[flag]
        elif values is None or arg.startswith("--"):
            words.append([arg])
            values = None
        else:
            values.append(arg)
    return [word for one in words for word in one]


def _flags(options: type[Any]) -> list[str]:
    return [f"--{field.name.replace('_', '-')}" for field in fields(options)]


def _run_tyro(options: Any, args: Sequence[str], verb: str, description: str, flags: list[str]) -> Any:
    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        raise UserError(f"remask {verb}: {_explain(event, flags)} (see remask {verb} --help)")

    for before, given in pairwise(("", *args)):
        if not given or (given.startswith("--") and given.endswith("=")):
            raise UserError(f"remask {verb}: {given or before}: an empty value was given; is a variable not set?")
    with tyro_errors.on_parse_error(refuse):
        return tyro.cli(options, prog=f"remask {verb}", description=description, args=list(args))


def _explain(event: tyro_errors.ParseErrorEvent, flags: list[str]) -> str:
    match event:
        case tyro_errors.UnrecognizedArgs(tokens=tokens):
            hint = nearest(tokens[0], [flag for flag in flags if flag != tokens[0]])
            return f"{tokens[0]}: unknown option; {hint}"
        case tyro_errors.InvalidChoice(argument=argument, value=value, choices=choices):
            return f"{argument.display_name()}: {value!r} was given, it must be one of {', '.join(choices)}"
        case tyro_errors.MissingArgs(missing_arguments=missing):
            return f"{', '.join(given.arg.display_name() for given in missing)}: missing"
        case tyro_errors.BadValue(argument=argument):
            return f"{argument.display_name()}: the value is missing"
        case tyro_errors.InstantiationFailure(message=message, argument=argument):
            reason = message.splitlines()[0]
            return f"{argument.display_name()}: {reason}" if argument else reason
    return f"the options cannot be read ({type(event).__name__})"
