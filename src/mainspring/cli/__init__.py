"""The command line program `mainspring`."""

from mainspring.cli.main import main

__all__ = ["main"]
