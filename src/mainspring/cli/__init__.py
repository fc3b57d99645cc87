"""The command line: `mainspring`."""

from mainspring.cli.main import main

__all__ = ["main"]
