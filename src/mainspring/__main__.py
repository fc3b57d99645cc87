"""`python -m mainspring` is `mainspring`."""

from mainspring.cli import main

main()
