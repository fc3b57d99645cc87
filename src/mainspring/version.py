"""The version of Mainspring, without reading the metadata of the installed package, which takes 30 ms."""

VERSION = "0.1.0"
"""The version; a test compares it with `pyproject.toml`."""
