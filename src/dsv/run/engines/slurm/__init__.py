"""Jobs on Slurm: the batch script, the programs that are called, and the end of a job."""
