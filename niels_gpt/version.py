"""The version of the package, the same as in pyproject.toml."""

__version__ = "0.2.0"
