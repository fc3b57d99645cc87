"""Runs the command line: `python -m mainspring` is the same as `mainspring`."""

from mainspring.cli import main

main()
