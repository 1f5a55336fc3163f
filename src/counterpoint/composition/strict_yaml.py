"""YAML read safely: no tags, no aliases (so no bombs), no double keys, UTF-8, bounded in size and depth."""

from pathlib import Path
from typing import Any

import yaml

from counterpoint.errors import RecipeError, one_line

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
UNDERSTOOD = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}
"""What a word without quotes may be besides text; dates and merge keys (`<<`) are read as text."""


class _StrictLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag in UNDERSTOOD]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _error("aliases (*name) are not allowed; write out what they stand for", event)
        if getattr(event, "tag", None) is not None:
            raise _error(f"tags ({event.tag}) are not allowed; a recipe is plain YAML", event)
        if self.depth == MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep; no recipe needs that", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else repr(key)
                raise _error(f"the key {written} is not text; put it in quotes, or use another word", key_node)
            if key in seen:
                raise _error(f"the key {key!r} appears twice; keep one of them", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The content of a small YAML file.

    Raises:
        RecipeError: the file is missing, not UTF-8, too large, or not plain YAML (tags, aliases, double keys).
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file (looked in {path.parent.resolve()})") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(f"{path}: {len(raw)} bytes is too large for a recipe (at most {MAX_BYTES})")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        tab = "; indent with spaces, not tabs" if "'\\t'" in said else ""
        raise RecipeError(f"{path}: {line}{said}{tab}") from None
    except yaml.reader.ReaderError as error:
        line = f"line {text.count(chr(10), 0, error.position) + 1}: "
        raise RecipeError(f"{path}: {line}the character #x{error.character:02x} is not allowed in YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}: not readable as YAML: {one_line(error)}") from None


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
