"""Jobs on Slurm: the batch script, what its programs are asked, and how a job ends."""
