"""Time-outs, heartbeats and a canceled alarm, with a clock that we move ourselves."""

from datetime import timedelta

from mainspring import ThreadPool
from mainspring.testing import ManualClock

clock = ManualClock()
seen = []

with ThreadPool(2, clock=clock) as pool:
    service = pool.sequenced("service")
    heartbeat = service.repeat(lambda: seen.append("beat"), every=timedelta(seconds=10))
    service.post(seen.append, "time-out", delay=timedelta(seconds=25))
    alarm = service.post(seen.append, "alarm", delay=timedelta(seconds=30))

    clock.advance(20)
    assert seen == ["beat", "beat"]
    alarm.cancel()
    clock.advance(timedelta(hours=1))  # an hour in milliseconds
    heartbeat.stop()

assert seen.index("time-out") == 2
assert "alarm" not in seen
print(f"{seen.count('beat')} heartbeats and one time-out in an hour that took no time")
