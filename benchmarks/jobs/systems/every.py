"""All systems, ours first."""

from benchmarks.jobs.systems.apscheduler import APScheduler
from benchmarks.jobs.systems.flexiq import FlexiQ
from benchmarks.jobs.systems.huey import Huey
from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import System
from benchmarks.jobs.systems.tinyjobs import TinyJobs

FULL = Ours("full")
NORMAL = Ours("normal")
OURS = (FULL, NORMAL)
PEERS: tuple[System, ...] = (Huey(), FlexiQ(), TinyJobs(), APScheduler())
SYSTEMS: tuple[System, ...] = (*OURS, *PEERS)
