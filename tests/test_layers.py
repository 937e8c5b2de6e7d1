"""The shape of the code: who may import whom, and how much of it stands in one place."""

from __future__ import annotations

import ast
import functools
import graphlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dsv"

# The rooms from the bottom up. Each may import those before it in the list; those of one line do not know each other.
ROOMS: list[set[str]] = [
    {"errors", "reader"},  # reader.py ships with the package and stands alone
    {"periodic", "values"},
    {"format"},
    {"files"},
    {"stores"},
    {"repo"},
    {"transfer"},
    {"diff"},
    {"merge"},
    {"workspace", "cache", "exchange", "run", "upkeep", "training"},
    {"api"},
    {"site"},
    {"", "cli", "filesystem", "torch", "mlflow_source"},  # the package itself, and what programs import
]
BELOW: dict[str, set[str]] = {
    room: set().union(*ROOMS[:level]) - {"reader"} if room != "reader" else set()
    for level, rooms in enumerate(ROOMS)
    for room in rooms
}
LIBRARIES = {
    "errors": set(),
    "values": {"dsv", "blake3", "msgspec", "tomli"},
    "format": {"dsv", "blake3", "xxhash", "msgspec", "zstandard", "pyfastcdc"},
    "periodic": set(),
    "reader": {"blake3", "msgpack", "msgspec", "zstandard"},
}
FOR_CLI_ONLY = {"print", "input", "exit", "quit", "breakpoint", "os._exit"} | {
    f"{module}.{name}"
    for module, names in {
        "os": ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"),
        "sys": ("exit", "argv", "stdout", "stderr", "stdin"),
    }.items()
    for name in names
}
# Processes of their own, that others start and talk to by pipes.
PROGRAMS = {
    PACKAGE / "api/bench_feed_process.py",
    PACKAGE / "files/sync_process.py",
    PACKAGE / "cache/fill/helper_process.py",
    PACKAGE / "cache/hold.py",
    PACKAGE / "exchange/export_folder.py",
    PACKAGE / "run/engines/kubernetes/rendezvous.py",
    PACKAGE / "run/engines/reaper.py",
    PACKAGE / "site/decoding.py",
    PACKAGE / "training/window.py",
    PACKAGE / "transfer/prefetch.py",
}
NOT_FOR_VALUES = {
    "pathlib",
    "time",
    "socket",
    "subprocess",
    "asyncio",
    "shutil",
    "tempfile",
    "mmap",
    "select",
}
MAX_FILE, MAX_FUNCTION = 620, 60  # lines
# What makes a thread, a process or a file; what gives one up; and what is no more than another name for an error.
OWNED = {
    "Thread",
    "Timer",
    "Periodic",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "Process",
    "Pool",
    "TaskPool",
    "Popen",
}
OWNED |= {"open", "fdopen", "scandir", "pipe", "pidfd_open", "socket", "dup", "mkstemp", "NamedTemporaryFile"}
CLOSING = {"close", "shutdown", "join", "wait", "kill", "terminate", "stop", "release", "cleanup", "__exit__"}
TRANSLATING = {"suppress", "about", "os_errors"}
# A listing holds descriptors of folders, as it may have any number of rows. Closing them waits for nothing.
OWNING_GENERATORS = {("directory.py", "_list"), ("directory.py", "_walk_below")}
# Names of classes that stand for two, with the reason.
SECOND_IMPLEMENTATION = "reader.py reads the format without the rest of dsv: the same thing has the same name"
NAMED_TWICE = dict.fromkeys(("Child", "Entry", "Index", "Objects"), SECOND_IMPLEMENTATION)
NAMES_FOR_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the package."""

    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        """`stores` for stores/base.py, `errors` for errors.py, nothing for the package's own `__init__`."""
        first = self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        return "" if first in ("__init__", "__main__") else first

    def at(self, line: int, what: str) -> str:
        return f"{self.path.relative_to(ROOT)}:{line} {what}"


@functools.cache
def sources() -> list[Source]:
    return [Source(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


@functools.cache
def nodes_of(source: Source) -> list[ast.AST]:
    """Walk the tree once for all tests."""
    return list(ast.walk(source.tree))


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, those inside functions too."""
    here = ["dsv", *source.path.relative_to(PACKAGE).with_suffix("").parts]
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            if module == "dsv":  # `from dsv import api` names a part; `from dsv import __version__` does not
                yield from ((node.lineno, f"dsv.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def dotted(node: ast.AST) -> str | None:
    """`os.environ` for that expression; None for what is no plain chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def uses(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every name that is called, and of every `module.name` that is read."""
    for node in nodes_of(source):
        if not isinstance(node, ast.Call | ast.Attribute):
            continue
        if name := dotted(node.func if isinstance(node, ast.Call) else node):
            yield node.lineno, name


def upward(source: Source) -> list[str]:
    allowed = BELOW.get(source.part, set()) | {source.part}
    parts = set(BELOW)
    return [
        source.at(line, f"imports {module}")
        for line, module in imports(source)
        if module.startswith("dsv.") and (part := module.split(".")[1]) in parts and part not in allowed
    ]


def strange_libraries(source: Source) -> list[str]:
    allowed = LIBRARIES[source.part] | set(sys.stdlib_module_names)
    return [
        source.at(line, f"imports {module}")
        for line, module in imports(source)
        if module.split(".")[0] not in allowed
    ]


def source_names(source: Source) -> set[str]:
    """Return the names that are imported from other modules."""
    found = (node for node in nodes_of(source) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in found for alias in node.names}


def meets_the_process(source: Source) -> list[str]:
    return [source.at(line, f"uses {name}") for line, name in uses(source) if name in FOR_CLI_ONLY]


def does_io(source: Source) -> list[str]:
    found = [source.at(line, f"imports {name}") for line, name in imports(source) if name in NOT_FOR_VALUES]
    for line, name in uses(source):
        if name == "open" or (name.startswith("os.") and name != "os.urandom"):
            found.append(source.at(line, f"uses {name}"))
    return found


def long_functions(source: Source) -> list[str]:
    functions = (n for n in nodes_of(source) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = ((node, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions)
    return [
        source.at(n.lineno, f"{n.name}: {length} lines") for n, length in lengths if length > MAX_FUNCTION
    ]


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but for those of functions and classes inside."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from own_nodes(node)


def lies_in(function: ast.FunctionDef, line: int) -> bool:
    return function.lineno <= line <= (function.end_lineno or line)


def yields(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own_nodes(node))


def last_names(nodes: Iterable[ast.AST]) -> set[str]:
    """`scandir` for a call of `os.scandir`, `close` for `folders.close()`."""
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls}


def owning_generators(source: Source) -> list[str]:
    """Generators that make a thread, process or file, or yield before they have closed one.

    An abandoned one would be closed by the garbage collector, in the middle of whatever that interrupts.
    """
    found = []
    lines = [node.lineno for node in nodes_of(source) if isinstance(node, ast.Yield | ast.YieldFrom)]
    for function in nodes_of(source):
        if not isinstance(function, ast.FunctionDef) or not any(lies_in(function, line) for line in lines):
            continue
        if not yields(function):
            continue
        if any((dotted(each) or "").endswith("contextmanager") for each in function.decorator_list):
            continue
        if (source.path.name, function.name) in OWNING_GENERATORS:
            continue
        nodes = list(own_nodes(function))
        owned = last_names(nodes) & OWNED
        for node in nodes:
            if isinstance(node, ast.With) and yields(node):
                owned |= last_names(item.context_expr for item in node.items) - TRANSLATING
                owned |= {name for item in node.items if (name := dotted(item.context_expr))}
            elif isinstance(node, ast.Try) and yields(node):
                owned |= last_names(below for end in node.finalbody for below in ast.walk(end)) & CLOSING
        if owned:
            found.append(source.at(function.lineno, f"{function.name} yields, and owns {sorted(owned)}"))
    return found


def module_of(source: Source) -> str:
    """`dsv.stores.base`; a package's `__init__` is the package."""
    return ".".join(["dsv", *source.path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )


def package_of(module: str) -> str:
    """The package that a module lies in. A module beside packages, such as `dsv.errors`, counts for itself."""
    above = module.rpartition(".")[0]
    divided = any(package.startswith(f"{above}.") for package in packages())
    return module if divided or module in packages() else above


@functools.cache
def modules() -> set[str]:
    return {module_of(source) for source in sources()}


@functools.cache
def packages() -> set[str]:
    return {module_of(source) for source in sources() if source.path.name == "__init__.py"}


def graph(among: Iterable[Source], name: Callable[[str], str]) -> dict[str, set[str]]:
    """Return which module (or, by `name`, package) imports which others, those inside functions too."""
    found: dict[str, set[str]] = {}
    known = modules() - {"dsv"}
    for source in among:
        here = name(module_of(source))
        for node in nodes_of(source):
            if isinstance(node, ast.Import):
                read = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                read = [one if one in modules() else node.module for one in whole]
            else:
                continue
            found.setdefault(here, set()).update(name(one) for one in read if one in known)
        found.setdefault(here, set()).discard(here)
    return found


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Each circle once, as `a -> b -> a`."""
    try:
        tuple(graphlib.TopologicalSorter(arrows).static_order())
    except graphlib.CycleError as error:
        around = list(reversed(error.args[1]))
        cut = {name: set(to) for name, to in arrows.items()}
        cut[around[0]].discard(around[1])
        return [" -> ".join(around), *circles(cut)]
    return []


def report(lines: list[str]) -> None:
    assert not lines, "\n" + "\n".join(sorted(lines))


def test_every_part_has_its_place() -> None:
    assert {source.part for source in sources()} <= set(BELOW) | {""}


def test_imports_point_down() -> None:
    report([line for source in sources() for line in upward(source)])


def test_no_packages_import_each_other() -> None:
    """Those inside a layer either: `cache` may import `cache.fill`, but then not the other way round."""
    report(circles(graph(sources(), package_of)))


def test_no_modules_import_each_other() -> None:
    report(circles(graph(sources(), lambda module: module)))


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) in (
        ["a -> b -> c -> a"],
        ["b -> c -> a -> b"],
        ["c -> a -> b -> c"],
    )
    assert len(circles({"a": {"b"}, "b": {"a", "c"}, "c": {"b"}})) == 2
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("part", LIBRARIES)
def test_few_libraries_at_the_bottom(part: str) -> None:
    here = [source for source in sources() if source.part == part]
    assert here
    report([line for source in here for line in strange_libraries(source)])


def test_numpy_is_for_those_who_read_whole_stores() -> None:
    """To import it takes longer than most commands do. CRCs are needed where S3 states no other hash."""
    known = ("torch", "training", "upkeep")
    others = [one for one in sources() if one.part not in known and one.path.name != "crc.py"]
    report([source.at(line, name) for source in others for line, name in imports(source) if "numpy" in name])


@pytest.mark.parametrize("part", ["values", "format"])
def test_values_and_the_format_do_no_io(part: str) -> None:
    here = [source for source in sources() if source.part == part]
    assert here
    report([line for source in here for line in does_io(source)])


def test_only_the_command_line_uses_the_process() -> None:
    """Environment, standard streams and exit belong to cli: programs that import the package keep theirs. The package
    itself gives the environment to what they call (`tests/api/test_program.py`: not while it is imported).
    """
    below = [source for source in sources() if source.part not in ("", "cli", "reader")]
    below = [source for source in below if source.path not in PROGRAMS]
    report([line for source in below for line in meets_the_process(source)])


def test_no_lock_of_a_class_is_taken_in_programs() -> None:
    """`functools.cached_property` has one before Python 3.12: a fork while it is held waits for it without an end."""
    others = [source for source in sources() if source.part not in ("cli", "run")]
    report(
        [source.at(1, "cached_property") for source in others if "cached_property" in source_names(source)]
    )


def test_no_generator_owns_a_thread_a_process_or_a_file() -> None:
    report([line for source in sources() for line in owning_generators(source)])


def test_generators_that_own_something_are_seen() -> None:
    text = """
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(f, range(3))
def reader():
    threads = futures.ThreadPoolExecutor(8)
    try:
        yield 1
    finally:
        threads.shutdown()
def store(context):
    with suppress(OSError), context.store() as store:
        yield store
def lent(files):
    try:
        yield files
    finally:
        files.close()
def held(lock):
    with lock:
        yield 1
@contextmanager
def opened():
    with open("x") as file:
        yield file
def whole(path):
    with path.opened() as file:
        data = file.read()
    with suppress(OSError):
        yield data
def outer():
    def inner():
        yield 1
    with open("x"):
        return inner()
"""
    found = owning_generators(Source(PACKAGE / "imaginary.py", ast.parse(text)))
    assert [line.split()[1] for line in found] == ["pool", "reader", "store", "lent", "held"]


def test_functions_fit_a_screen() -> None:
    report([line for source in sources() for line in long_functions(source)])


def test_files_are_read_in_one_go() -> None:
    paths = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    lengths = {path: path.read_text().count("\n") for path in paths if path != PACKAGE / "reader.py"}
    report(
        [f"{path.relative_to(ROOT)}: {count} lines" for path, count in lengths.items() if count > MAX_FILE]
    )


def test_a_file_is_named_for_what_is_in_it() -> None:
    report([str(s.path) for s in sources() if NAMES_FOR_NOTHING & {s.path.stem, s.path.parent.name}])


def test_a_name_of_a_class_has_one_meaning() -> None:
    found = Counter(
        node.name
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in found.items() if count > 1} == set(NAMED_TWICE)


def test_the_rules_bite() -> None:
    """Each check finds what it is there for."""
    text = (
        "from ..stores import base\nfrom dsv import api\nimport boto3, time\nprint(open(os.environ['X']))\n"
    )
    source = Source(PACKAGE / "format" / "imaginary.py", ast.parse(text + "def f():\n" + "    pass\n" * 60))
    checks = (upward, strange_libraries, meets_the_process, does_io, long_functions)
    found = [line.split(" ", 1)[1] for check in checks for line in check(source)]
    assert set(found) == {
        "imports dsv.stores",
        "imports dsv.api",
        "imports boto3",
        "imports time",
        "uses print",
        "uses open",
        "uses os.environ",
        "f: 61 lines",
    }
