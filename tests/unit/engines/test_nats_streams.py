"""Creating streams in a cluster that has just started: its servers may not know each other yet."""

from collections.abc import Coroutine
from typing import Any, cast

import pytest

from mainspring import EngineUnavailable, NatsSettings
from mainspring.engines.nats.jetstream import JetStream, ServerError
from mainspring.engines.nats.streams import NO_PEERS, Streams
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.jobs.timestamps import MICROSECONDS

OFFLINE = ServerError({"err_code": NO_PEERS, "description": "no suitable peers for placement, peer offline"})


class ScriptedLink:
    """A server that answers as a test says; a pause takes a second."""

    address = "127.0.0.1:4222"

    def __init__(self, *answers: Exception | dict[str, Any]) -> None:
        self._answers = list(answers)
        self.seconds = 0

    def api(self, _verb: str, _body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def restart_deadline(self) -> None:
        """Do nothing."""

    def monotonic(self) -> int:
        return self.seconds * MICROSECONDS

    def run_on_loop(self, pause: Coroutine[Any, Any, None]) -> None:
        pause.close()
        self.seconds += 1


def create(jetstream: ScriptedLink, **settings: Any) -> dict[str, Any]:
    streams = Streams(cast("JetStream", jetstream), SubjectNames("shop"), NatsSettings(**settings))
    return streams._create("STREAM.CREATE.shop", {"num_replicas": 3}, "STREAM.INFO.shop")


def test_a_stream_is_created_when_enough_servers_are_online() -> None:
    jetstream = ScriptedLink(OFFLINE, OFFLINE, {"did_create": True})
    assert create(jetstream) == {"did_create": True}
    assert jetstream.seconds == 2


@pytest.mark.parametrize(("settings", "seconds"), [({}, 10), ({"timeout": 3}, 3)])
def test_servers_that_stay_offline_are_an_error(settings: dict[str, Any], seconds: int) -> None:
    jetstream = ScriptedLink(*[OFFLINE] * 20)
    with pytest.raises(EngineUnavailable, match="no suitable peers for placement"):
        create(jetstream, **settings)
    assert jetstream.seconds == seconds


def test_another_refusal_is_an_error_at_once() -> None:
    jetstream = ScriptedLink(ServerError({"err_code": 10047, "description": "insufficient storage"}))
    with pytest.raises(EngineUnavailable, match="insufficient storage"):
        create(jetstream)
    assert jetstream.seconds == 0
