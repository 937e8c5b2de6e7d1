"""dsv import of tars: every member or a reason, at most two passes, and no bombs."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("fsspec")
from dsv.api import imports as import_module
from dsv.exchange import tars as tar_module
from dsv.exchange.tars import _Unpacking
from tests.kit.dsv import Dsv, write_files

Member = tuple[str, bytes | str]
"""A name, and the content of a file or the target of a symlink."""


def make_tar(path: Path, members: Iterable[Member], mode: str = "w") -> None:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, what in members:
            info = tarfile.TarInfo(name)
            if isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
                tar.addfile(info)
            else:
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))


@pytest.fixture
def outside(pets: Dsv) -> Dsv:
    return pets.at(pets.cwd.parent)


def imported(dsv: Dsv, folder: str = "raw") -> dict[str, str]:
    lines = dsv.ok("ls", f"pets:{folder}").lines
    return {line.removeprefix(f"{folder}/"): dsv.ok("cat", f"pets:{line}").out for line in lines}


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.xz", "x.tar.bz2"])
def test_a_tar_of_a_folder_is_imported(outside: Dsv, name: str) -> None:
    """Its names begin with `./`."""
    write_files(outside.cwd / "src", {"a": b"1", "d/e/b": b"22", "d/zero": b""})
    with tarfile.open(outside.cwd / name, f"w:{name[6:]}") as tar:  # type: ignore[call-overload]
        tar.add(outside.cwd / "src", ".")
    with tarfile.open(outside.cwd / name) as tar:
        assert "./d/e/b" in tar.getnames()
    outside.ok("import", name, "pets:raw")
    assert imported(outside) == {"a": "1", "d/e/b": "22", "d/zero": ""}
    outside.ok("import", f"tar://d::{outside.cwd / name}", "pets:d")
    assert imported(outside, "d") == {"e/b": "22", "zero": ""}


def test_no_member_is_left_out_in_silence(outside: Dsv) -> None:
    members: list[Member] = [
        ("a", b"1"), ("a/b", b"2"), ("d/x", b"3"), ("link", "d"), ("link/y", b"4"), ("../up", b"5"),
        ("d/./to-x", "../d/x"), ("d/x", b"again"),
    ]  # fmt: skip
    make_tar(outside.cwd / "x.tar", members)
    refused = outside("import", "x.tar", "pets:raw")
    assert refused.code == 9, refused
    for name in ("'raw/a/b'", "'raw/link/y'", "'raw/link'"):
        assert f"{name}: it is neither a file nor a link to a file of the tar" in refused.err
    assert "up" in refused.err
    outside.ok("import", "x.tar", "pets:raw", "--skip-unsupported")
    assert imported(outside) == {"a": "1", "d/to-x": "again", "d/x": "again"}


def test_a_sparse_member_is_imported_and_one_of_a_terabyte_is_refused(outside: Dsv) -> None:
    for name, size in (("some", 3 << 20), ("absurd", 1 << 40)):
        with (outside.cwd / name).open("wb") as file:
            file.write(b"data")
            file.truncate(size)
    subprocess.run(["tar", "-S", "-cf", "x.tar", "some", "absurd"], cwd=outside.cwd, check=True)
    refused = outside("import", "x.tar", "pets:raw")
    assert refused.code == 9 and "'raw/absurd': it is a sparse file of 1.10 TB" in refused.err, refused
    assert "some" not in refused.err
    outside.ok("import", "x.tar", "pets:raw", "--skip-unsupported")
    assert imported(outside) == {"some": "data" + "\0" * ((3 << 20) - 4)}


def test_a_tar_that_unpacks_to_absurdly_much_is_refused(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_module, "UNPACKED_MIN", 1 << 20)
    make_tar(outside.cwd / "x.tar.xz", [("zeros", bytes(40 << 20))], "w:xz")
    done = outside("import", "x.tar.xz", "pets:raw")
    assert done.code == 9 and "x.tar.xz unpacks to more than 2,000 times its size" in done.err, done


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "harm", ["header", "cut", "no end", "compressed", "checksum", "cut compressed", "no tar"]
)
def test_a_damaged_tar_is_an_integrity_error(outside: Dsv, harm: str) -> None:
    """Also if the damage is in a later header, where Python sees the end of the tar."""
    make_tar(outside.cwd / "x.tar", [("a", b"1" * 3000), ("b", b"2" * 3000), ("c", b"3" * 3000)])
    whole = (outside.cwd / "x.tar").read_bytes()
    packed = gzip.compress(whole, mtime=0)
    name, data = {
        "header": ("x.tar", _flipped(whole, 3584 + 100)),
        "cut": ("x.tar", whole[:9000]),
        "no end": ("x.tar", whole[: 3 * 3584]),
        "compressed": ("x.tar.gz", _flipped(packed, len(packed) // 2)),
        "checksum": ("x.tar.gz", _flipped(packed, len(packed) - 6)),
        "cut compressed": ("x.tar.gz", packed[:-20]),
        "no tar": ("x.tar", b"hello" * 500),
    }[harm]
    (outside.cwd / name).write_bytes(data)
    done = outside("import", name, "pets:raw", "--mirror")
    assert done.code == 5 and f"{name} is not a whole tar" in done.err, done


def test_a_tar_is_read_twice_whatever_the_order_of_its_members(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed one can only be read forward, so going back to each member would be quadratic."""
    members: list[Member] = [(f"{n % 7}/{n}", f"{n}".encode() * 100) for n in reversed(range(700))]
    members += [(f"links/{n}", f"../{n % 7}/{n}") for n in range(0, 700, 10)]
    make_tar(outside.cwd / "x.tar.gz", members, "w:gz")
    size, seen = len(gzip.decompress((outside.cwd / "x.tar.gz").read_bytes())), [0]
    read = _Unpacking._read

    def counted(self: _Unpacking, size: int) -> bytes:
        data = read(self, size)
        seen[0] += len(data)
        return data

    monkeypatch.setattr(_Unpacking, "_read", counted)
    done = outside.ok("import", "x.tar.gz", "pets:raw", "--json").json
    assert done["added"] == 770
    assert outside.ok("cat", "pets:raw/links/690").out == "690" * 100
    assert seen[0] <= 2 * size + 770 * 512


def test_an_unchanged_tar_is_not_read_again_and_another_one_of_equal_sizes_and_times_is(outside: Dsv) -> None:
    make_tar(outside.cwd / "x.tar", [("a", b"old"), ("b", b"2")])
    outside.ok("import", "x.tar", "pets:raw")
    assert outside.ok("import", "x.tar", "pets:raw", "--json").json["known"] == 2
    make_tar(outside.cwd / "x.tar", [("a", b"new"), ("b", b"2")])
    assert outside.ok("import", "x.tar", "pets:raw", "--json").json["read"] == 2
    assert imported(outside) == {"a": "new", "b": "2"}


def test_a_tar_that_changes_while_it_is_read_is_a_conflict(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tar(outside.cwd / "x.tar", [("a", b"old"), ("b", b"2")])
    opened = import_module.open_source

    def changing(*arguments: object) -> object:
        source = opened(*arguments)  # type: ignore[arg-type]
        make_tar(outside.cwd / "x.tar", [("a", b"new"), ("b", b"2")])
        return source

    monkeypatch.setattr(import_module, "open_source", changing)
    done = outside("import", "x.tar", "pets:raw")
    assert done.code == 4 and "was changed while it was read" in done.err, done


def test_a_hard_link_has_what_its_name_had_then(outside: Dsv) -> None:
    """A member that was appended later replaces only the name, as when tar extracts it."""
    with tarfile.open(outside.cwd / "x.tar", "w") as tar:
        for name, content in (("a", b"1"), ("h", None), ("a", b"2"), ("b", b"3"), ("i", None)):
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.LNKTYPE, "a" if name == "h" else "b"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    refused = outside("import", "x.tar", "pets:raw")
    assert refused.code == 9 and "h" in refused.err
    outside.ok("import", "x.tar", "pets:raw", "--skip-unsupported")
    assert imported(outside) == {"a": "2", "b": "3", "i": "3"}


def test_each_link_of_a_chain_is_followed_once(outside: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 links in a row, the last 39 lead to the file in 40 steps. Nothing is below the file."""
    members: list[Member] = [(f"d/{at:03}", f"../d/{at + 1:03}") for at in range(100)]
    make_tar(outside.cwd / "x.tar", [*members, ("d/100", b"1"), ("d/100/below", b"2"), ("d/100a", b"3")])
    cleaned: list[str] = []

    def counted(name: str) -> str:
        cleaned.append(name)
        return name.rstrip("/")

    monkeypatch.setattr(tar_module, "_clean", counted)
    done = outside("import", "x.tar", "pets:raw")
    assert done.code == 9 and "62 paths" in done.err, done
    assert cleaned.count("d/099") == cleaned.count("d/050") == 2, "its own name, and its target"
    outside.ok("import", "x.tar", "pets:raw", "--skip-unsupported")
    assert imported(outside) == {**{f"d/{at:03}": "1" for at in range(61, 101)}, "d/100a": "3"}


@pytest.mark.parametrize(("one", "other"), [("./a", "a"), ("d//a", "d/a"), ("d/./a", "d/a")])
def test_two_spellings_of_one_name_are_refused_together(outside: Dsv, one: str, other: str) -> None:
    make_tar(outside.cwd / "x.tar", [(one, b"1"), (other, b"2")])
    done = outside("import", "x.tar", "pets:raw", "--skip-unsupported")
    assert done.code == 9 and f"{one!r} and {other!r} would both be" in done.err, done
    make_tar(outside.cwd / "x.tar", [("a", b"1"), ("a", b"2")])
    outside.ok("import", "x.tar", "pets:raw")
    assert imported(outside) == {"a": "2"}, "a tar that was appended to"


def test_a_tar_without_a_file_is_called_so(outside: Dsv) -> None:
    make_tar(outside.cwd / "x.tar", [])
    done = outside("import", "x.tar", "pets:raw")
    assert done.code == 3 and "x.tar is a tar without a file" in done.err, done


def _raw_member(name: bytes, kind: bytes, data: bytes, size: int | None = None) -> bytes:
    info = tarfile.TarInfo(name.decode())
    info.type, info.size = kind, len(data) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def _pax(**fields: str) -> bytes:
    records = b""
    for key, value in fields.items():
        rest = f" {key.replace('_', '.')}={value}\n"
        length = next(n for n in range(len(rest), len(rest) + 20) if len(f"{n}{rest}") == n)
        records += f"{length}{rest}".encode()
    return _raw_member(b"x", tarfile.XHDTYPE, records)


END = bytes(1024)


def test_a_path_of_very_many_folders_is_refused_at_once(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders were looked at one by one, each as a copy of its path."""
    name = b"a/" * 400_000 + b"b"
    data = _raw_member(b"././@LongLink", tarfile.GNUTYPE_LONGNAME, name + b"\0")
    data += _raw_member(b"a", tarfile.REGTYPE, b"deep") + _raw_member(b"ok", tarfile.REGTYPE, b"1") + END
    (outside.cwd / "x.tar.gz").write_bytes(packed := gzip.compress(data))
    assert len(packed) < 3000
    looked_at: list[str] = []
    content_of = tar_module.TarSource._content_of

    def counted(source: tar_module.TarSource, name: str) -> tarfile.TarInfo | None:
        looked_at.append(name)
        return content_of(source, name)

    monkeypatch.setattr(tar_module.TarSource, "_content_of", counted)
    done = outside("import", "x.tar.gz", "pets:raw")
    assert done.code == 9 and "its path or its target is longer than 4096 bytes" in done.err, done
    assert looked_at == ["ok"]
    outside.ok("import", "x.tar.gz", "pets:raw", "--skip-unsupported")
    assert imported(outside) == {"ok": "1"}


@pytest.mark.parametrize("kind", ["1.0", "0.1", "pax", "old"])
def test_a_map_of_a_sparse_file_that_takes_all_memory_is_refused(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of about 8 MB each here: they were read to their end, whatever their size."""
    entries = 2_000_000
    if kind == "1.0":
        fields = {"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_realsize": "1"}
        data = _pax(**fields) + _raw_member(
            b"s", tarfile.REGTYPE, f"{entries}\n".encode() + b"0\n" * 2 * entries
        )
    elif kind == "0.1":
        data = _pax(GNU_sparse_map=",".join(["0"] * 2 * entries), GNU_sparse_size="1")
        data += _raw_member(b"s", tarfile.REGTYPE, b"")
    elif kind == "pax":
        data = _pax(comment="x" * 8_000_000) + _raw_member(b"s", tarfile.REGTYPE, b"")
    else:
        header = bytearray(_raw_member(b"s", tarfile.GNUTYPE_SPARSE, b""))
        header[482], header[483:495] = 1, b"00000000001\0"
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        more = (b"00000000000\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)
        data = bytes(header) + more * (8_000_000 // 512)
    (outside.cwd / "x.tar.gz").write_bytes(gzip.compress(data + END))
    read = 0
    before = _Unpacking._read

    def counted(self: _Unpacking, size: int) -> bytes:
        nonlocal read
        found = before(self, size)
        read += len(found)
        return found

    monkeypatch.setattr(_Unpacking, "_read", counted)
    done = outside("import", "x.tar.gz", "pets:raw")
    assert done.code == 5 and "the headers of a member have more than 1.05 MB" in done.err, done
    assert read < 3 << 20


def test_holes_are_limited_by_the_size_of_the_archive_itself(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by that of what it unpacks to."""
    monkeypatch.setattr(tar_module, "UNPACKED_MIN", 1 << 20)
    with (outside.cwd / "some").open("wb") as file:
        file.write(b"data")
        file.truncate(64 << 20)
    (outside.cwd / "zeros").write_bytes(bytes(100_000))
    subprocess.run(["tar", "-S", "-czf", "x.tar.gz", "zeros", "some"], cwd=outside.cwd, check=True)
    done = outside("import", "x.tar.gz", "pets:raw")
    assert done.code == 9 and "'raw/some': it is a sparse file of 67.1 MB" in done.err, done


@pytest.mark.parametrize("harm", ["-1536", "-2048", "-512", "chain"])
def test_a_tar_that_would_be_read_without_end_is_damaged(outside: Dsv, harm: str) -> None:
    if harm != "chain":
        data = _pax(size=harm) + _raw_member(b"a", tarfile.REGTYPE, b"1" * 600)
    else:
        data = _pax(comment="x") * 5000 + _raw_member(b"a", tarfile.REGTYPE, b"1")
    (outside.cwd / "x.tar").write_bytes(data + END)
    done = outside("import", "x.tar", "pets:raw")
    assert done.code == 5 and "x.tar is not a whole tar" in done.err, done


def test_very_many_members_count_as_what_they_take_in_memory(
    outside: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_module, "UNPACKED_MIN", 1 << 20)
    one = _raw_member(b"a", tarfile.REGTYPE, b"")
    (outside.cwd / "x.tar.gz").write_bytes(gzip.compress(one * 5000 + END))
    done = outside("import", "x.tar.gz", "pets:raw")
    assert done.code == 9 and "unpacks to more than" in done.err, done
