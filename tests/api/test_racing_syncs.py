"""Several processes publish to one branch at once: one wins, the others know it, and nobody's data is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dsv.api.checkout import pull
from dsv.api.clone import clone
from dsv.values.names import BranchName, Target
from tests.kit.people import Person

RACERS = 4
SYNC = """
import sys
from pathlib import Path
from dsv.errors import DsvError
from tests.kit.people import Person
person = Person(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    person.sync()
except DsvError as error:
    print(error.message, "|", error.hint)
    sys.exit(error.exit_code)
"""


def test_one_of_many_syncs_wins_and_all_data_stays(tmp_path: Path) -> None:
    first = Person(tmp_path / "first", str(tmp_path / "store"))
    first.init()
    first.write({"shared": b"s"})
    first.sync()
    people = [Person(tmp_path / f"p{n}", first.store, f"p{n}") for n in range(RACERS)]
    for person in people:
        clone(person.context(tmp_path), Target.parse("scans"), person.workspace)
        person.write({f"of-{person.name}": person.name.encode() * 1000})
    command = [sys.executable, "-c", SYNC]
    racers = [
        subprocess.Popen(
            [*command, str(person.home), person.store, person.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for person in people
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = [racer.communicate()[0] for racer in racers]
    codes = [racer.returncode for racer in racers]
    assert sorted(codes) == [0, *[4] * (RACERS - 1)], (codes, outputs)
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0 or "dsv sync --new-branch NAME" in output
    # Each hint leads on: one pulls and syncs, the others publish beside.
    losers = [person for person, code in zip(people, codes, strict=True) if code]
    pull(losers[0].context())
    assert losers[0].sync().any_change
    for loser in losers[1:]:
        beside = loser.sync(branch=BranchName.parse(f"by-{loser.name}"), new_branch=True)
        assert beside.commit is not None
        assert loser.read(beside.commit) == loser.files()
    winner = next(person for person, code in zip(people, codes, strict=True) if not code)
    pull(winner.context())
    assert set(winner.files()) == {"shared", f"of-{winner.name}", f"of-{losers[0].name}"}
