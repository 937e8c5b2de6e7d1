"""Values and bytes: no I/O, no clock, nothing imported but errors."""
