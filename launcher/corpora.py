"""Where the text comes from, as the command line says it: files, folders, globs, or a corpus YAML that names its sources.

sources:
  wiki: {paths: [wiki/*.jsonl.gz]}
  news: {paths: [news.jsonl], field: body, limit_mb: 1000}
"""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from remask.data_prep.corpus import AskedFormat, Source
from remask.launcher import strict_yaml
from remask.launcher.decode import decode
from remask.launcher.errors import UserError


def sources_of(inputs: Sequence[str], text_format: AskedFormat, field: str) -> tuple[Source, ...]:
    """One source called corpus of all plain inputs, and the named ones of each corpus YAML."""
    plain = tuple(path for path in inputs if not _is_corpus_file(path))
    if not plain and (text_format != "auto" or field != "text"):
        raise UserError(f"{', '.join(inputs)}: --format and --field are for plain inputs; a corpus file says them for each source")
    named = [source for path in inputs if _is_corpus_file(path) for source in _read(Path(path))]
    sources = (*([Source(name="corpus", paths=plain, format=text_format, field=field)] if plain else []), *named)
    if len({source.name for source in sources}) < len(sources):
        raise UserError(f"{', '.join(inputs)}: two sources have the same name (plain inputs are called corpus); give each its own")
    return sources


def _is_corpus_file(path: str) -> bool:
    return path.endswith((".yaml", ".yml"))


def _read(file: Path) -> list[Source]:
    try:
        raw = strict_yaml.read(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    sources = raw.get("sources") if isinstance(raw, Mapping) and set(raw) == {"sources"} else None
    if not isinstance(sources, Mapping) or not sources:
        raise UserError(f"{file}: the file must hold sources and nothing else, such as 'sources: {{wiki: {{paths: [wiki/*.jsonl]}}}}'")
    return [_source(file, name, fields) for name, fields in sources.items()]


def _source(file: Path, name: str, fields: object) -> Source:
    """A source with its paths made relative to the corpus file."""
    raw = {**fields, "name": name} if isinstance(fields, Mapping) else fields
    if isinstance(raw, dict) and isinstance(raw.get("paths"), list):
        folder = Path(glob.escape(str(file.parent)))
        raw["paths"] = [str(folder / path) if isinstance(path, str) and "://" not in path else path for path in raw["paths"]]
    return decode(Source, raw, lambda _: str(file), f"sources.{name}")
