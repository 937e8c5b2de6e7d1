"""Writing files of a commit into a workspace: the plan first, then the writing."""
