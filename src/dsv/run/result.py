"""What a run read and how it ended, in a few words for people."""

from __future__ import annotations

from dsv.files.process import host_name
from dsv.run.part import EndCause
from dsv.run.record import RunRecord, RunState


def result_text(record: RunRecord) -> str:
    """Return how a run ended, or its state."""
    match record.state:
        case RunState.ENDED:
            if record.exit_code == 0 and record.end in (None, EndCause.EXITED):
                return "ok" if record.hit_of is None else "hit"
            return f"{cause_text(record) or 'failed'} ({record.exit_code})"
        case RunState.NOT_LAUNCHED:
            return f"not run ({record.exit_code})"
        case RunState.CUT_OFF:
            return "cut off"
        case state if record.host != host_name():  # not checked here: that host may be down
            return f"{state} on {record.host}"
        case state:
            return str(state)


def cause_text(record: RunRecord) -> str | None:
    """Return why it ended, if the command itself was not the cause."""
    return None if record.end in (None, EndCause.EXITED) else str(record.end).replace("-", " ")


def data_text(record: RunRecord, digits: int) -> str:
    """Return `pets@v1.0 03ecd289`: the target as it was given, and its commit."""
    commit, rev = str(record.commit), record.target.partition(":")[0].partition("@")[2]
    named = rev and not commit.startswith(rev)
    return f"{record.dataset}@{rev} {commit[:digits]}" if named else f"{record.dataset}@{commit[:digits]}"
