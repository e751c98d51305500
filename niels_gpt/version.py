"""The version of the package; pyproject.toml reads it here, and it is written nowhere else."""

__version__ = "0.3.0"
