"""dsv: git-like dataset versions on any bucket or folder, cached once next to the GPUs.

`connect` gives a program what the command line has; see docs/guide/python.md.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # as typing's, which type checkers know by its name: importing typing costs a tenth of --help
)
if TYPE_CHECKING:
    from dsv.api.connection import connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> object:
    """Imports what is heavy when it is first asked for: most commands and programs need a part of it only."""
    if name == "connect":
        from dsv.api.connection import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
