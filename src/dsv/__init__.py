"""dsv: git-like dataset versions on any bucket or folder, cached once next to the GPUs."""

__version__ = "0.1.0"
