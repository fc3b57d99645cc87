"""The cost of an idle pool, which must not wake up."""

import subprocess
import sys

from benchmarks.measure import Section, at_most

SECONDS = 10

CHILD = f"""
import resource, time
from mainspring import ThreadPool
with ThreadPool(4) as pool:
    pool.post(print, delay=3600)
    pool.wait_idle()
    time.sleep(0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    time.sleep({SECONDS})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""


def switches() -> int:
    """Return the voluntary context switches of a process with an idle pool and a timer an hour away."""
    done = subprocess.run([sys.executable, "-c", CHILD], check=True, capture_output=True, text=True)
    return int(done.stdout)


def run() -> Section:
    line = at_most(f"voluntary context switches in {SECONDS} s, one timer an hour away", switches(), 3, "switches")
    return Section(title="Idle", lines=[line])
