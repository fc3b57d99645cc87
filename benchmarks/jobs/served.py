"""The applications that worker processes load, one for each system, on the store that the environment names."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.every import SYSTEMS
from benchmarks.jobs.systems.system import STORE_VARIABLE
from benchmarks.jobs.systems.variants import VARIANTS


@cache
def __getattr__(name: str) -> Any:
    for system in (*SYSTEMS, *VARIANTS):
        if system.key == name:
            return system.application(Path(os.environ[STORE_VARIABLE]))
    raise AttributeError(name)
