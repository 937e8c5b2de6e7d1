"""Running commands on commits: what is asked for, the life of a run, and the records that it leaves."""
