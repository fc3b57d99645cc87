"""A process that computes what it is told to and nothing else: what the machine itself can do right now."""

import sys

from tests.processes.apps.crunching import crunch
from tests.processes.run_log import now_ns, say

if __name__ == "__main__":
    say("ready")
    for line in sys.stdin:
        begin = now_ns()
        crunch(int(line))
        say(f"computed {begin} {now_ns()}")
