"""Conformance tests of engines: the paused receivers of callbacks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from mainspring.jobs.callback_pauses import MOST_PAUSES, CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause, PauseQueue, PutRedaction
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds


def pause_of(bench: Bench, host: str = "a.example", type_: str | None = "paid") -> CallbackPauseRecord:
    """Return the record of a pause of a receiver for ten seconds from now."""
    return CallbackPauseRecord(host, type_, None, 503, bench.now, bench.now + seconds(10))


class CallbackPauseTests(EngineSuite):
    """Tests of the engine's `callback_pauses`, and of `ChangeCallbackPause`."""

    def test_a_pause_is_one_record_for_all_processes(self, bench: Bench, other: Bench) -> None:
        assert bench.engine.callback_pauses() == ()
        pauses = [pause_of(bench), pause_of(bench, type_=None), pause_of(bench, "b.example")]
        for pause in pauses:
            assert bench.arrange(ChangeCallbackPause(None, pause))
        assert other.engine.callback_pauses() == bench.engine.callback_pauses()
        assert other.engine.callback_pauses() == (pauses[1], pauses[0], pauses[2])
        assert other.arrange(ChangeCallbackPause(pauses[0], None))
        assert bench.engine.callback_pauses() == (pauses[1], pauses[2])

    def test_a_change_of_a_pause_needs_its_present_record(self, bench: Bench, other: Bench) -> None:
        first = pause_of(bench)
        second = replace(first, strikes=2, probe_until=bench.now)
        assert bench.arrange(ChangeCallbackPause(None, first))
        assert not other.arrange(ChangeCallbackPause(None, second))
        assert not other.arrange(ChangeCallbackPause(second, None))
        assert other.arrange(ChangeCallbackPause(first, second))
        assert not bench.arrange(ChangeCallbackPause(first, None))
        assert bench.engine.callback_pauses() == (second,)

    def test_one_of_several_processes_gets_the_probe(self, bench: Bench, other: Bench) -> None:
        pause = pause_of(bench)
        assert bench.arrange(ChangeCallbackPause(None, pause))
        taken = [ChangeCallbackPause(pause, replace(pause, probe_until=until)) for until in (1, 2)]
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda bench, change: bench.arrange(change), (bench, other), taken))
        assert sorted(answers) == [False, True]

    def test_the_store_keeps_the_pauses_that_end_last(self, bench: Bench) -> None:
        pauses = [
            replace(pause_of(bench, f"{number:03d}.example"), until=bench.now + number)
            for number in range(MOST_PAUSES + 2)
        ]
        assert all(bench.engine.arrange([ChangeCallbackPause(None, pause) for pause in pauses]))
        assert bench.engine.callback_pauses() == tuple(pauses[2:])

    def test_other_settings_leave_pauses_alone(self, bench: Bench, other: Bench) -> None:
        pause = pause_of(bench)
        assert bench.arrange(ChangeCallbackPause(None, pause))
        assert other.arrange(PauseQueue("default", is_paused=True))
        assert other.arrange(PutRedaction("pay", ("card",)))
        assert bench.engine.callback_pauses() == (pause,)
        assert bench.engine.paused_queues() == ("default",)
