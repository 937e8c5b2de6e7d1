"""Several real hosts fill one commit on real NFS; some lose their power or their network on the way."""

from __future__ import annotations

from pathlib import Path

from tests.nfs.crew import Crew, Times, assert_same, listed
from tests.waiting import until

PART = 6 << 20
TIMES = Times(expiry=8, part_files=64, part_bytes=PART)


def size_of(folder: Path) -> int:
    return sum(size for _, size, _ in listed(folder).values())


def test_three_hosts_share_the_work(crew: Crew, lake: Path) -> None:
    hosts = crew.up(0, 1, 2)
    times = TIMES._replace(expiry=0)  # nobody dies here, and a busy machine may be silent for seconds
    tasks = [host.dsv("cache", "large@v1", "--json", "--progress=json", times=times) for host in hosts]
    answers = [task.answer() for task in tasks]
    items = [answer.item for answer in answers]
    (path,) = {item["path"] for item in items}
    assert crew.visible() == [path.removeprefix(f"{crew.cache}/")]
    assert_same(crew.seen / crew.visible()[0], lake / "large")
    assert sum(item["fetched_bytes"] for item in items) <= 1.05 * size_of(lake / "large")
    assert sum(item["fetched_bytes"] > 0 for item in items) > 1, "one host did it all"
    assert list((crew.seen / ".dsv/room").iterdir()) == []


def test_a_dead_and_a_cut_host_are_taken_over_and_do_no_harm_later(crew: Crew, lake: Path) -> None:
    dead, cut, third = crew.up(0, 1, 2)
    times = TIMES._replace(expiry=30)  # longer than what the third has to do before it waits for them
    tasks = [host.dsv("cache", "large@v1", "--json", times=times) for host in (dead, cut)]
    until(lambda: crew.files_being_filled() > 8 and crew.hosts_at_work() == 2, "files of both")
    cut.unplug()
    dead.power_off()
    answer = third.dsv("cache", "large@v1", "--json", "--progress=json", times=times).answer()
    item, notes = answer.item, [line for line in answer.err.splitlines() if '"note"' in line]
    silent = [note for note in notes if "last seen" in note and "after 30 s of silence" in note]
    assert any("root@host4" in note or "root@host5" in note for note in silent), answer
    print(f"taken over, whole and published {answer.seconds:.1f} s after a power-off and an unplugging")
    assert [one.name for one in (crew.seen / ".dsv/claims").rglob("lease-*")] == [], (
        "of processes that are gone"
    )
    visible = crew.seen / crew.visible()[0]
    assert_same(visible, lake / "large")
    before = listed(visible)
    cut.plug_in()
    late = tasks[1].answer()
    assert late.item["path"] == item["path"]
    assert listed(visible) == before
    assert_same(visible, lake / "large")
    assert item["fetched_bytes"] + late.item["fetched_bytes"] <= 1.05 * size_of(lake / "large") + 2 * PART


def test_a_cut_host_comes_back_after_the_commit_was_evicted(crew: Crew, lake: Path) -> None:
    cut, killed, third = crew.up(0, 1, 2)
    tasks = [host.dsv("cache", "large@v1", "--json", times=TIMES) for host in (cut, killed)]
    until(lambda: crew.files_being_filled() > 8 and crew.hosts_at_work() == 2, "files of both")
    cut.unplug()
    killed.unplug()
    tasks[1].kill()
    taken = third.dsv("cache", "large@v1", "--json", times=TIMES).answer()
    assert taken.item["files"] == 212
    evicted = third.dsv("evict", "--all", "--json").answer()
    assert len(evicted.json["evicted"]) == 1, evicted
    killed.plug_in()
    # What it had under way reaches the server, or is lost: an error then, as it was away for long.
    back = killed.run("sh", "-c", f"touch {crew.cache}/../back && {{ sync -f {crew.cache}/.. || true; }}")
    assert back.status == 0, back
    assert crew.visible() == []
    cut.plug_in()
    assert tasks[0].answer().item["files"] == 212
    assert_same(crew.seen / crew.visible()[0], lake / "large")
    assert third.dsv("evict", "--all", "--json").answer().status == 0
    assert crew.visible() == []
    assert left_over(crew) == []


def left_over(crew: Crew) -> list[str]:
    """Return what an empty cache should not have: files of data, room, trash."""
    dot = crew.seen / ".dsv"
    found = [str(one) for name in ("fill", "room") for one in (dot / name).rglob("*") if one.is_file()]
    return found + [str(one) for one in (dot / "trash").rglob("*.bin")]
