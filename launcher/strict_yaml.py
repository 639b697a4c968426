"""YAML without its surprises: plain JSON-like values only, each key once.

PyYAML's safe loader follows YAML 1.1: there `1e-4` is a string, `no` is false, `1:30` is 90, `010` is 8, and of two equal keys the last
wins. Here a plain word is null, true, false, a decimal number or else a string, in reading and in writing.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

_MAX_DEPTH = 20
_PLAIN = {
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "tag:yaml.org,2002:int": (r"[-+]?(0|[1-9][0-9]{0,18})", list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _error("aliases (*name) are not allowed; write the value out", event.start_mark)
        if event.tag is not None:
            raise _error(f"tags ({event.tag}) are not allowed; write the value plainly", event.start_mark)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _error(f"more than {_MAX_DEPTH} levels of nesting", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                raise _error("a key must be a word", key_node.start_mark)
            if key_node.value in seen:
                raise _error(f"the key {key_node.value!r} stands twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


for _tag, (_pattern, _first) in _PLAIN.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read(data: bytes) -> Any:
    """The document's value; a `ValueError` says in one line what is wrong and where."""
    try:
        return yaml.load(data, Loader=_Loader)  # noqa: S506 (it is a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem or error.context}") from error
    except OverflowError as error:  # an escape such as "\UFFFFFFFF"
        raise ValueError("an escape stands for no character") from error
    except yaml.reader.ReaderError as error:
        raise ValueError(f"not a text file ({error.reason} at byte {error.position})") from error


def write(value: Any) -> str:
    """YAML that `read` turns into the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False)
