"""A process that computes what it is told to and nothing else: what the machine itself can do right now."""

import sys
import time

from tests.processes.apps.crunching import crunch
from tests.processes.run_log import say

if __name__ == "__main__":
    say("ready")
    for line in sys.stdin:
        begin = time.monotonic_ns()  # noqa: TID251 - compared between processes
        crunch(int(line))
        say(f"computed {begin} {time.monotonic_ns()}")  # noqa: TID251 - compared between processes
