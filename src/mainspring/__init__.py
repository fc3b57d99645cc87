"""Mainspring: one scheduler for Python, from a thread pool to a cluster.

The package exports the names of `mainspring.public` and imports that module when the first of them is used. So
`mainspring --help` and shell completion start fast: they do not import it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.public import *  # noqa: F403
    from mainspring.public import __all__ as __all__
else:
    from importlib import import_module

    def __getattr__(name):
        _load()
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__():
        _load()
        return sorted(globals())

    def _load():
        public = import_module("mainspring.public")
        for name in ("__all__", *public.__all__):
            globals().setdefault(name, getattr(public, name))  # keep a name that a test has replaced
