"""Files of cached commits that a workspace may copy."""
