"""Engines start jobs: as plain processes, in containers, on Slurm or on Kubernetes."""
