"""Making files of a workspace what a commit has: first the plan, then the writing."""
