"""Reading whole packs."""

from __future__ import annotations

from dsv.format.pack import FOOTER_SIZE, PackRow, PackTable, parse_footer, parse_table, verify

__all__ = ["FOOTER_SIZE", "PackRow", "PackTable", "parse_footer", "parse_table", "verify"]
