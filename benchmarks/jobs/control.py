"""How soon the control layer answers: idle, with sleeping handlers, and with one that computes."""

import subprocess
import sys

from benchmarks.jobs.process import ROOT, fresh_store
from benchmarks.measure import Line, Section, percentile

LIMIT_US = 100.0

SCENES = {
    "idle": "an idle worker",
    "sleeping": "8 handlers that sleep",
    "computing": "one handler that computes",
}

CHILD = """
import sys, time
from threading import Event
from mainspring import Mainspring
from mainspring.foreground.foreground import SWITCH_SECONDS

CALLS, PAUSE_SECONDS = 3_000, 0.0005
store, scene = sys.argv[1:]
app = Mainspring(f"sqlite:///{store}", threads=8)
is_over = Event()

@app.job(name="sleeping")
def sleeping() -> None:
    is_over.wait()

@app.job(name="computing")
def computing() -> None:
    while not is_over.is_set():
        sum(range(1_000))

sys.setswitchinterval(SWITCH_SECONDS)  # as app.run() has it
with app, app.running():
    count = {"idle": 0, "sleeping": 8, "computing": 1}[scene]
    if count:
        {"sleeping": sleeping, "computing": computing}[scene].submit_many([{}] * count)
    manager = app.manager()
    while len(manager.active_jobs()) < count:
        time.sleep(0.01)
    time.sleep(0.2)
    samples = []
    for pause in (PAUSE_SECONDS, 0.0):
        for _ in range(CALLS):
            if pause:
                time.sleep(pause)
            began = time.perf_counter_ns()
            manager.active_jobs()
            samples.append(time.perf_counter_ns() - began)
    is_over.set()
    print(*samples)
"""


def answers(scene: str) -> tuple[list[float], list[float]]:
    """Return microseconds of calls with pauses between them, and of calls without."""
    with fresh_store() as store:
        command = [sys.executable, "-c", CHILD, str(store), scene]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    samples = [int(line) / 1e3 for line in done.stdout.split()]
    half = len(samples) // 2
    return samples[:half], samples[half:]


def run(rounds: int = 3) -> Section:
    lines = []
    for scene, text in SCENES.items():
        found = [answers(scene) for _ in range(rounds)]
        apart, at_once = (
            min((percentile(kind, 0.99), percentile(kind, 0.5)) for kind in kinds)
            for kinds in zip(*found, strict=True)
        )
        lines.append(
            Line(
                what=f"{text}, calls 0.5 ms apart",
                ours=f"{apart[1]:.1f} / {apart[0]:.1f} µs",
                bound=f"p99 < {LIMIT_US:g} µs",
                is_met=apart[0] < LIMIT_US,
            )
        )
        lines.append(Line(what=f"{text}, one call after another", ours=f"{at_once[1]:.1f} / {at_once[0]:.1f} µs"))
    return Section(
        title=f"Jobs: `manager.active_jobs()`, p50 / p99, best of {rounds} rounds",
        lines=lines,
        text="With the switch interval of `app.run()`. A caller that pauses may have to wait for the interpreter "
        "before its call, which is not counted; one that does not pause loses it every 0.5 ms to a handler that "
        "computes, in the middle of a call, which is.",
    )
