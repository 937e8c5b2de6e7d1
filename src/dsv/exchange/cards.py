"""Cards beside exported files: croissant.json, which tools of Croissant 1.1 read, and README.md, which the Hugging Face
Hub and its package `datasets` read. Both describe the same tables, whose columns are known if pyarrow is installed, and
images. Patterns stand for what is too much to be named one by one, so cards of a large commit are small too."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsv.errors import Conflict, UsageError
from dsv.exchange.export import Exported, Selection
from dsv.exchange.export_folder import OpenRepository, export_path, has_content
from dsv.exchange.licence import licence_of
from dsv.files.errors import about
from dsv.files.small_files import put_file, read_small
from dsv.values.json import on_a_line
from dsv.values.names import DatasetName, Rev, Target, clean_path
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_count, rfc3339

CARDS: Final = {"croissant": "croissant.json", "hf": "README.md"}
_OWN: Final = {name.encode() for card in CARDS.values() for name in (card, f".{card}.part")}
_FORMS = {".csv": "text/csv", ".tsv": "text/tab-separated-values", ".parquet": "application/x-parquet"}
_SPLIT = re.compile(r"(?<![A-Za-z0-9])(train|test|validation|valid|val|dev)(?![A-Za-z0-9])")
_MOST, _MOST_READ, _MOST_CSV = 100, 1000, 64 << 20
"""Tables and folders that a card names; files, and columns, of one table that it tells of; bytes of a CSV."""
_TERMS = """arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject fileSet format
    includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace
    samplingRate separator source subField transform"""
_CONTEXT: Final = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/", "dct": "http://purl.org/dc/terms/",
    "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "conformsTo": "dct:conformsTo",
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    **{name: {"@container": "@language"} for name in ("name", "description")},
    **{name: f"cr:{name}" for name in _TERMS.split()},
}  # fmt: skip
_TYPES = {
    r"bool": "sc:Boolean", r"u?int\d+": "sc:Integer", r"double|float|halffloat": "sc:Float",
    r"(large_)?(string|binary)": "sc:Text", r"timestamp\[.+\]|date(32|64)\[.+\]": "sc:DateTime",
}  # fmt: skip
_DTYPES = {"double": "float64", "float": "float32", "halffloat": "float16", "date32[day]": "date32"}
_Column = tuple[str, str, str, str]
"""Name; `list` or the like if its values are such; type in Croissant, empty for another; type in cards of the Hub."""


class _Part(NamedTuple):
    """Files that are read as one: a table, or all images, whose form is empty."""

    form: str
    name: str
    """The path of a table, with * for digits that differ."""
    globs: list[str]
    """Patterns of exactly these files."""
    files: int
    bytes: int
    columns: tuple[_Column, ...]

    @property
    def split(self) -> str:
        word = _SPLIT.search(self.name)
        return "train" if word is None else "validation" if word[0] in ("valid", "val", "dev") else word[0]


def check_kinds(kinds: Collection[str]) -> None:
    """Raises `UsageError` for a kind of card that there is not."""
    if unknown := set(kinds) - CARDS.keys():
        hint = f"--card {','.join(CARDS)}"
        raise UsageError(f"--card has no kind {min(unknown)!r}", subject="--card", hint=hint)


def export_with_cards(
    selection: Selection, dataset: DatasetName, target: Target, to: str, cards: Collection[str],
    open_repository: OpenRepository | None,
) -> Exported:  # fmt: skip
    """Write a folder as `export_path` does, unless it has just these files already, and the cards. Raises `Conflict` if
    it has others, and if files of the commit have the names of cards."""
    root, own = Path(to), {name.lower() for name, _, _ in selection.found}
    if taken := [CARDS[card] for card in cards if CARDS[card].lower().encode() in own]:
        hint = "leave out --card, or name the other kind alone"
        raise Conflict(f"{target} has its own {taken[0]}", subject=taken[0], hint=hint)
    with about(root):
        if not (is_there := os.path.lexists(root)):
            export_path(selection, to, open_repository)
        parts = [*_tables(selection, root), *_images(selection)]
        digests = _checked(selection, root, {part.name for part in parts if part.form}, every=is_there)
        title = str(Target(dataset, Rev(str(selection.commit)), clean_path(target.path) or None))
        what = selection, title, parts
        for card in sorted(cards):
            path, text = root / CARDS[card], _hub(*what) if card == "hf" else _croissant(*what, digests)
            content = text.encode()
            if not os.path.lexists(path):
                put_file(path, content)
            elif read_small(path, len(content)) != content:
                text = f"{show(bytes(path))} is not what dsv writes now"
                raise Conflict(text, subject=str(path), hint="remove it, and repeat the command")
    return selection.exported()


def _checked(selection: Selection, root: Path, names: set[str], *, every: bool) -> dict[str, str]:
    """Return the SHA-256 of these files. Raises `Conflict` if one is not as in the commit; every: if any is not, or if
    there are others."""
    base, digests = os.fsencode(root), dict[str, str]()
    walked = os.walk(base) if every else ()
    others = {(above + b"/" + name)[len(base) + 1 :] for above, _, files in walked for name in files} - _OWN
    others.difference_update(name for name, _, _ in selection.found)
    for name, entry, _ in selection.found:
        if entry.is_file and ((is_named := name.decode() in names) or every):
            if not has_content(path := root / os.fsdecode(name), entry):
                others.add(name)
            elif is_named:
                with path.open("rb") as file:
                    digests[name.decode()] = hashlib.file_digest(file, "sha256").hexdigest()
    if others:
        text = f"{show(base)} is not an export of this commit: {show(min(others))} differs"
        raise Conflict(text, subject=str(root), hint="choose a path that does not exist")
    return digests


def _tables(selection: Selection, root: Path) -> Iterator[_Part]:
    groups, seen = dict[Any, list[tuple[str, int]]](), Counter[str]()
    read: dict[str, tuple[_Column, ...] | None] = {}
    for name, entry, _ in selection.found:
        path, pattern, form = name.decode(), re.sub("[0-9]+", "*", name.decode()), Path(name.decode()).suffix
        if entry.is_file and form in _FORMS and (pattern in seen or len(seen) < _MOST):
            seen[pattern] += 1
            if seen[pattern] <= _MOST_READ:
                read[pattern] = _columns(root / path)
            if (columns := read[pattern]) is not None:
                groups.setdefault((pattern, form, columns), []).append((path, entry.size))
    for (pattern, form, columns), files in islice(groups.items(), _MOST):
        globs = [escape(path).replace(":", "[:]") for path, _ in files]
        if len(files) == seen[pattern] > 1:  # then any digits are exact
            globs = sorted({re.sub("[0-9]", "[0-9]", glob) for glob in globs})
        path, size = pattern if len(files) > 1 else files[0][0], sum(size for _, size in files)
        if len(globs) <= _MOST:
            yield _Part(form, path, globs, len(files), size, columns)


def _images(selection: Selection) -> Iterator[_Part]:
    counts, labels, size = Counter[tuple[str, str]](), set[str](), 0
    for name, entry, _ in selection.found:
        (top, *more), form = name.decode().split("/"), Path(name.decode()).suffix
        if entry.is_file and form.lower() in (".jpg", ".jpeg", ".png"):
            counts[top if more and _SPLIT.fullmatch(top) else "", form] += 1
            labels.add("/".join((top, *more)[-2:-1]))
            size += entry.size
    tops, columns = {top for top, _ in counts}, [("image", "", "sc:ImageObject", "")]
    if len(labels) > 1 and "" not in labels and labels - tops:  # all are in folders, not only of splits
        columns.append(("label", "", "sc:Text", ""))
    for top in sorted({""} if "" in tops else tops):
        forms = {form: count for (above, form), count in counts.items() if top in ("", above)}
        globs = sorted(f"{top}/**/*{form}".lstrip("/") for form in forms)
        yield _Part("", top or "images", globs, sum(forms.values()), size // len(tops), (*columns,))


def _columns(path: Path) -> tuple[_Column, ...] | None:
    """Return the columns of a table, as far as they can be known; None if it can't be read."""
    try:
        from pyarrow import ArrowException, BufferReader, csv, parquet
    except ImportError:
        return ()
    if not path.is_file():  # it may be a pipe
        return None
    try:
        with path.open("rb") as file:
            if is_parquet := path.suffix == ".parquet":
                schema = parquet.ParquetFile(file).schema_arrow
            elif len(data := file.read(_MOST_CSV + 1)) > _MOST_CSV or b"0x" in data.lower():
                return ()  # 0x is a number for pyarrow, and a text for all who read cards
            else:
                tab = "\t" if path.suffix == ".tsv" else ","
                if data.partition(b"\n")[0].count(tab.encode()) >= _MOST_READ:
                    return ()
                how = csv.ParseOptions(delimiter=tab, newlines_in_values=True)
                schema = csv.read_csv(BufferReader(data), parse_options=how).schema
    except (ArrowException, OSError):
        return None
    columns, more = list[_Column](), schema.metadata or {}
    for field in schema if len(schema) <= _MOST_READ else ():
        outer = str(field.type).partition("<")[0]
        lists = outer if outer in ("list", "large_list") else ""
        dtype = str(field.type.value_type if lists else field.type)
        kind = next((kind for form, kind in _TYPES.items() if re.fullmatch(form, dtype)), "")
        is_told = is_parquet and kind and b"huggingface" not in more  # else `datasets` finds it
        columns.append((field.name, lists, kind, _DTYPES.get(dtype, dtype) if is_told else ""))
    return None if not is_parquet and "binary" in map(str, schema.types) else (*columns,)


def _ids(texts: Iterable[str]) -> Iterator[str]:
    """Yield an id for each text, without spaces and unlike the others."""
    used = Counter[str]()
    for text in texts:
        short = re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:64]
        used[short] += 1
        yield f"{short}~{used[short]}" if used[short] > 1 else short


def _croissant(selection: Selection, title: str, parts: list[_Part], digests: dict[str, str]) -> str:
    listed, records = list[dict[str, Any]](), list[dict[str, Any]]()
    for part, part_id in zip(parts, _ids(part.name for part in parts), strict=True):
        where, is_file = {"@id": f"{part_id}-files"}, bool(part.form) and part.files == 1
        files: dict[str, Any] = {"@type": "cr:FileSet", "includes": part.globs}
        if is_file:
            size = {"contentSize": f"{part.bytes} B", "sha256": digests[part.name]}
            files = {"@type": "cr:FileObject", "contentUrl": part.name, **size}
        form = _FORMS.get(part.form, ["image/jpeg", "image/png"])
        listed.append({**where, "name": part.name, **files, "encodingFormat": form})
        names, fields = [name for name, *_ in part.columns], list[dict[str, Any]]()
        for (name, lists, kind, _), field_id in zip(part.columns, _ids(names), strict=True):
            source: dict[str, Any] = {"fileObject" if is_file else "fileSet": where}
            source["extract"] = {"column": name}
            if not part.form:
                source["extract"] = {"fileProperty": "content" if name == "image" else "fullpath"}
                source |= {"transform": {"regex": "(?:.*/)?([^/]+)/[^/]+$"}} if name == "label" else {}
            more = {"isArray": True, "arrayShape": "-1"} if lists else {}
            more |= {"@id": f"{part_id}/{field_id}", "name": name, "dataType": kind, "source": source}
            if kind and name and name[:13] != "__index_level" and names.count(name) == 1:  # as pandas has it
                fields.append({"@type": "cr:Field", **more})
        record = {"@type": "cr:RecordSet", "@id": part_id, "name": part.name, "field": fields}
        records += [record] if fields else []
    tops = sorted({name.partition(b"/")[0].decode() for name, _, _ in selection.found if b"/" in name})
    globs = ["*", *(f"{escape(top)}/**" for top in tops)] if len(tops) <= _MOST else ["**"]
    every = {"@type": "cr:FileSet", "encodingFormat": "application/octet-stream"}
    for number, glob in enumerate(globs):
        listed.append({**every, "@id": f"folder-{number}-files", "name": glob, "includes": [glob]})
    done, licence = selection.exported(), licence_of(selection.tree)
    named = {"license": licence.get("id") or licence["title"]} if licence else {}
    document = {
        "@context": _CONTEXT, "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": title, "description": f"{format_count(done.files, 'file')}, {format_bytes(done.bytes)}", **named,
        "version": f"0.0.0+{selection.commit}", "datePublished": rfc3339(selection.tree.commit.time_ms)[:10],
        "url": f"dsv://{title}", "distribution": listed, "recordSet": records,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def _hub(selection: Selection, title: str, parts: list[_Part]) -> str:
    """Return the card. `datasets` reads all configs in the form of the first, so tables of other forms have none."""
    merged, configs, infos = dict[Any, list[_Part]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for part in (part for part in parts if "::" not in part.name):  # which is never a file for `datasets`
        merged.setdefault((part.form, _SPLIT.sub("*", part.name, 1), part.columns), []).append(part)
    tables = sorted(merged.values(), key=lambda table: -sum(part.bytes for part in table))
    tables = [table for table in tables if table[0].form == tables[0][0].form]
    for table, name in zip(tables, _ids(table[0].name for table in tables), strict=True):
        files, columns = [{"split": part.split, "path": part.globs} for part in table], table[0].columns
        labels = {} if table[0].form else {"drop_labels": len(columns) == 1}
        configs.append({"config_name": name, "data_files": files, "default": not configs, **labels})
        features = [{"name": name, lists or "dtype": dtype} for name, lists, _, dtype in columns if dtype]
        infos += [{"config_name": name, "features": features}] if len(features) == len(columns) > 0 else []
    licence = licence_of(selection.tree)
    front: dict[str, Any] = {"license": licence.get("id")}
    if licence and not front["license"]:
        front = {"license": "other", "license_name": licence["title"], "license_link": licence["file"]}
    front |= {"pretty_name": title, "configs": configs, "dataset_info": infos}
    yaml = [f"{key}: {on_a_line(value)}" for key, value in front.items() if value]
    return "\n".join(["---", *yaml, "---", "", "# Dataset", "", f"    {show(title.encode())}", ""])
