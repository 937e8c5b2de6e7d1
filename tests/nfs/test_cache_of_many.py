"""What `evict` and a fill cost in a cache with many commits, in seconds and in requests to the file server (-s)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dsv.cache.record import used_until
from tests.cache.places import make_root, place, publish
from tests.nfs.crew import Crew, Member

COMMITS = int(os.environ.get("DSV_NFS_COMMITS", "100"))
FILES = 10  # of each; nothing here looks at one, so their number makes no difference
# For each commit a listing of its claims, its record and its last use, if nobody has read them before.
MOST_AT_FIRST = 11
# Whether its claims have changed since: one request, and one more now and then for the name of their folder.
MOST_REQUESTS = 2
_REQUESTS = re.compile(r"^\s+([A-Z_]+): (\d+) ", re.MULTILINE)


def fill_with_many(folder: Path) -> None:
    """A cache with commits of one dataset that share their files, last used now; made on the server's own disk."""
    root = make_root(folder)
    files = {f"{number:05d}": b"x" for number in range(FILES)}
    first = publish(root, place(0), files)
    for number in range(1, COMMITS):
        publish(root, place(number), files, links=first)
    for number in range(COMMITS):
        used_until(root, place(number), root.now())
        os.utime(root.claims(place(number)).path, (number, number))  # as if that was long ago


def requests(member: Member) -> int:
    """All that this host has sent to the file server so far."""
    text = member.run("cat", "/proc/self/mountstats").out
    return sum(int(count) for name, count in _REQUESTS.findall(text) if name != "NULL")


def test_evict_with_nothing_due_asks_little_of_the_server(crew: Crew) -> None:
    fill_with_many(crew.seen)
    (host,) = crew.up(0)
    took, sent = [], []
    for _ in range(4):
        before = requests(host)
        answer = host.dsv("evict", "--json").answer()
        sent.append(requests(host) - before)
        assert answer.status == 0 and answer.json["evicted"] == [], answer
        took.append(answer.seconds)
    each = ", ".join(f"{seconds:.2f} s ({count} requests)" for seconds, count in zip(took, sent, strict=True))
    print(f"evict with nothing due, {COMMITS} commits: {each}")
    # 80 are for the folders of the cache itself, and for what it keeps of the last inventory.
    assert sent[0] <= MOST_AT_FIRST * COMMITS + 80, sent
    assert min(sent[1:]) <= MOST_REQUESTS * COMMITS + 80, sent
