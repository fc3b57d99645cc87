"""The applications that worker processes load, one for each system, on the store that the environment names.

A worker imports only the system that it runs: the time until its first job is measured.
"""

import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import STORE_VARIABLE, System


def systems_like(name: str) -> Iterable[System]:
    """Import the systems of the kind that a key names."""
    kind = name.partition("_")[0]
    if kind == "mainspring":
        ours = import_module("benchmarks.jobs.systems.ours")
        return [ours.Ours("full"), ours.Ours("normal")]
    if kind in ("limited", "keyed"):
        variants: Iterable[System] = import_module("benchmarks.jobs.systems.variants").VARIANTS
        return variants
    try:
        peer = import_module(f"benchmarks.jobs.systems.{kind}")
    except ModuleNotFoundError:
        return []
    return [thing() for thing in vars(peer).values() if getattr(thing, "key", None) == kind]


@cache
def __getattr__(name: str) -> Any:
    for system in systems_like(name):
        if system.key == name:
            return system.application(Path(os.environ[STORE_VARIABLE]))
    raise AttributeError(name)
