"""Mainspring: one scheduler for Python, from a thread pool to a cluster.

The package exports the names of `mainspring.public` and imports that module when the first of them is used. So
`mainspring --help` and shell completion start fast: they do not import it. `Job` is the deprecated alias of
`JobFunction`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.jobs import Job as Job
    from mainspring.public import *  # noqa: F403
    from mainspring.public import __all__ as __all__
else:
    from importlib import import_module
    from warnings import warn

    def __getattr__(name):
        _load()
        if name == "Job":
            warn("mainspring.Job is deprecated; use mainspring.JobFunction", DeprecationWarning, stacklevel=2)
            return globals()["JobFunction"]
        if name in import_module("mainspring.public").ON_DEMAND:
            globals()[name] = getattr(import_module("mainspring.public"), name)
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__():
        _load()
        return sorted({*globals(), *globals()["__all__"]})  # some names are loaded when they are used

    def _load():
        public = import_module("mainspring.public")
        for name in {"__all__", *public.__all__} - public.ON_DEMAND.keys():
            globals().setdefault(name, getattr(public, name))  # keep a name that a test has replaced
