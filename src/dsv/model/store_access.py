"""How dsv on another machine reaches a store: what of this machine's configuration it needs, without any secret."""

from __future__ import annotations

from typing import Final

import msgspec


class StoreAccess(msgspec.Struct, frozen=True):
    """settings: a configuration file that names the store as it is named here, empty if it has no name.

    certificates: the authorities to trust, as PEM. folders: those that the store itself is in. profile: the key of the
    setting that takes the credentials from a profile, which no other machine has; None if nothing does.
    """

    settings: str = ""
    certificates: str = ""
    folders: tuple[str, ...] = ()
    profile: str | None = None


NO_ACCESS: Final = StoreAccess()
