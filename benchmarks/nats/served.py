"""The applications that worker processes load, one for each system, on the server that the store names."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.system import STORE_VARIABLE
from benchmarks.nats.systems.every import SYSTEMS


@cache
def __getattr__(name: str) -> Any:
    for system in SYSTEMS:
        if system.key == name:
            return system.application(Path(os.environ[STORE_VARIABLE]))
    raise AttributeError(name)
