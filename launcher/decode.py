"""Plain values to frozen dataclasses and back: every key known, every type exact, every error one sentence with the key's path."""

import difflib
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from remask.launcher.errors import UserError

T = TypeVar("T")
Origin = Callable[[str], str]
COMMAND_LINE = "command line"
"""What `origin` calls the options."""


def decode(cls: type[T], raw: object, origin: Origin, path: str = "") -> T:
    """An instance of the dataclass `cls` from a mapping; `origin` names the file that a key path was written in."""
    if not isinstance(raw, Mapping):
        raise _wrong(origin, path, raw, f"a mapping with some of the keys {_listed(f.name for f in fields(cls))}")  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in raw:
        if key not in known:
            raise UserError(f"{origin(join(path, key))}: {join(path, key) or repr(key)}: unknown key; {nearest(str(key), known)}")
    values = {key: _value(hints[key], value, origin, join(path, key)) for key, value in raw.items()}
    try:
        return cls(**values)
    except TypeError:
        missing = [field.name for field in fields(cls) if field.name not in values and _is_required(field)]  # type: ignore[arg-type]
        raise UserError(f"{origin(path)}: {path}: {_listed(missing)} is missing") from None
    except ValueError as error:  # raised by __post_init__ as "field: what is wrong"
        message = join(path, str(error))
        raise UserError(f"{origin(message.split(':')[0])}: {message}") from error


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def encode(value: object) -> Any:
    """The plain value that `decode` turns into an equal one."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    return [encode(item) for item in value] if isinstance(value, tuple) else value


def join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def nearest(given: str, known: list[str]) -> str:
    """A hint at what was meant."""
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed are {_listed(known)}"


def _value(hint: Any, raw: object, origin: Origin, path: str) -> Any:
    kind, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return decode(hint, raw, origin, path)  # type: ignore[arg-type]
    if kind in (Union, types.UnionType):  # only `X | None` is used
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if raw is None else _value(inner, raw, origin, path)
    if kind is Literal:
        if not any(raw == choice and type(raw) is type(choice) for choice in arguments):
            close = difflib.get_close_matches(str(raw), [str(choice) for choice in arguments], n=1)
            raise _wrong(origin, path, raw, f"one of {_listed(arguments)}{f'; did you mean {close[0]}?' if close else ''}")
        return raw
    if kind is tuple:
        return _tuple(arguments, raw, origin, path)
    if hint is float and type(raw) in (int, float) and math.isfinite(raw):  # type: ignore[arg-type]
        return float(raw)  # type: ignore[arg-type]
    if hint is not float and type(raw) is hint:
        return raw
    raise _wrong(
        origin,
        path,
        raw,
        {int: "a whole number of at most 19 digits", float: "a finite number", bool: "true or false", str: "a text"}[hint],
    )


def _tuple(arguments: tuple[Any, ...], raw: object, origin: Origin, path: str) -> tuple[Any, ...]:
    if arguments[-1] is Ellipsis:
        if origin(path) == COMMAND_LINE and isinstance(raw, (str, int, float)):
            raw = [raw]  # there a list of one looks like one
        if not isinstance(raw, list):
            raise _wrong(origin, path, raw, "a list")
        arguments = (arguments[0],) * len(raw)
    if not isinstance(raw, list) or len(raw) != len(arguments):
        raise _wrong(origin, path, raw, f"a list of {len(arguments)} values (on the command line: --{path} A B)")
    return tuple(_value(inner, item, origin, f"{path}[{i}]") for i, (inner, item) in enumerate(zip(arguments, raw, strict=True)))


def _wrong(origin: Origin, path: str, raw: object, expected: str) -> UserError:
    shown = repr(raw) if len(repr(raw)) <= 60 else f"{repr(raw)[:57]}..."
    where = f"{origin(path)}: {path}: " if path else f"{origin(path)}: "
    return UserError(f"{where}{shown} was given, it must be {expected}")


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names)
