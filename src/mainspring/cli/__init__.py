"""The command line program `mainspring`, with one module for each command."""

from mainspring.cli.main import main

__all__ = ["main"]
