"""All systems on servers, ours first."""

from benchmarks.jobs.systems.system import System
from benchmarks.nats.systems.arq import Arq
from benchmarks.nats.systems.bare import Bare
from benchmarks.nats.systems.celery import Celery
from benchmarks.nats.systems.dramatiq import Dramatiq
from benchmarks.nats.systems.ours import OnServer
from benchmarks.nats.systems.saq import Saq
from benchmarks.nats.systems.taskiq import Taskiq

OURS = OnServer()
BARE = Bare()
TASKIQ_1, TASKIQ_100 = Taskiq(1), Taskiq(100)
ON_NATS: tuple[System, ...] = (OURS, BARE, TASKIQ_1, TASKIQ_100)
ON_REDIS: tuple[System, ...] = (Celery(), Dramatiq(), Arq(), Saq())
SYSTEMS: tuple[System, ...] = (*ON_NATS, *ON_REDIS)
