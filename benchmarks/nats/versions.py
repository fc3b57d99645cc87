"""The versions of the measured systems."""

import re
import subprocess
from importlib.metadata import PackageNotFoundError, version

from benchmarks.nats.brokers import redis_program
from benchmarks.nats.systems.arq import TOOLS
from mainspring.cli.nats_process import check_version, find_server

ON_NATS = ("nats-py", "taskiq", "taskiq-nats")
ON_REDIS = ("celery", "dramatiq", "saq", "redis")
ASK_ARQ = "from importlib.metadata import version; print('arq', version('arq') + ', redis', version('redis'))"


def on_nats() -> str:
    return ", ".join([f"nats-server {check_version(find_server())}", *map(_named, ON_NATS)])


def on_redis() -> str:
    return ", ".join([f"redis-server {_redis_server()}", *map(_named, ON_REDIS), f"and {_arq()}"])


def _named(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def _redis_server() -> str:
    said = _say(redis_program(), "--version")
    match = re.search(r"v=([\d.]+)", said)
    return match[1] if match else said


def _arq() -> str:
    return _say(str(TOOLS / "python"), "-c", ASK_ARQ) if (TOOLS / "python").exists() else "no arq"


def _say(program: str, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout.strip()
