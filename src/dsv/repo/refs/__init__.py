"""Branches and tags: reading, moving and resolving them, and the rules of protected branches."""
