"""The endpoints of paused receivers of callbacks: list them, and lift their pauses.

Invariant: a token that is restricted to job types sees the pauses of these types, and not those of a whole host.
It can lift no pause, because a pause of a host concerns all types; `run-now` of a job lifts those of its receiver.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from mainspring.jobs.paused_receivers import CallbackPause
from mainspring.security.permissions import Scope
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, Endpoint, NoQuery

if TYPE_CHECKING:
    from mainspring.app import Mainspring


class CallbackPauseView(Struct, frozen=True, kw_only=True):
    """A receiver of callbacks that gets no requests for a while."""

    host: Annotated[str, Meta(description="The host, with its port if that is not the default.")]
    type: Annotated[str | None, Meta(description="The job type that is paused at this host; null for all.")]
    url: Annotated[
        str | None,
        Meta(description="The URL that is paused, without its query, for jobs that name their URL; null for all."),
    ]
    status: Annotated[
        int | None,
        Meta(description="The status of the answer that caused the pause; null if a probe got no answer."),
    ]
    since: datetime
    until: Annotated[datetime, Meta(description="The end of the pause. Then one request is sent as a probe.")]
    is_probing: Annotated[bool, Meta(description="Whether a worker is sending the probe now.")]
    count: Annotated[int, Meta(description="How many pauses the receiver had in a row.")]


class CallbackPausesView(Struct, frozen=True, kw_only=True):
    """The paused receivers that the token may see, by host, type and URL."""

    pauses: list[CallbackPauseView]


class ResumeCallbacksBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pauses to lift: those of a host, or of one of its job types."""

    host: Annotated[str, Meta(min_length=1, description="The host, as the list of pauses has it.")]
    type: Annotated[str | None, Meta(description="Lift only the pauses of this type, and of the whole host.")] = (
        None
    )


class LiftedPausesView(Struct, frozen=True, kw_only=True):
    """The answer to a lift: how many pauses there were."""

    host: str
    lifted: int


def _view(pause: CallbackPause) -> CallbackPauseView:
    return CallbackPauseView(
        host=pause.host,
        type=pause.type,
        url=pause.url,
        status=pause.status,
        since=pause.since,
        until=pause.until,
        is_probing=pause.is_probing,
        count=pause.count,
    )


class CallbackEndpoints:
    """The endpoints that list and lift pauses of receivers."""

    async def pauses(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer the paused receivers that the caller may see."""
        found = await call.app.callback_pauses_async()
        visible = [pause for pause in found if call.identity.allows(Scope.READ, type=pause.type)]
        return ApiAnswer(content=CallbackPausesView(pauses=[_view(pause) for pause in visible]))

    async def resume(self, call: ApiCall[ResumeCallbacksBody, NoQuery]) -> ApiAnswer:
        """Lift pauses. Raises `NotAllowed` unless the caller may operate on all job types and queues."""
        call.identity.require(Scope.OPERATE)
        host = call.body.host
        lifted = await call.app.resume_callbacks_async(host, type=call.body.type)
        return ApiAnswer(content=LiftedPausesView(host=host, lifted=lifted))


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints of paused receivers."""
    callbacks = CallbackEndpoints()
    example = {
        "host": "hooks.example.com",
        "type": "order-paid",
        "url": None,
        "status": 503,
        "since": "2026-11-17T12:30:00Z",
        "until": "2026-11-17T12:35:00Z",
        "is_probing": False,
        "count": 1,
    }
    return [
        Endpoint(
            name="list_callback_pauses",
            method="GET",
            path="/callbacks/pauses",
            subject="callbacks",
            summary="List the receivers of callbacks that are paused.",
            description=(
                "A receiver that answers 429 or 503 gets no requests for a while. The list also has those whose "
                "pause is over and that wait for a successful probe. A token that is restricted to job types sees "
                "the pauses of these types; one that is restricted to queues sees none."
            ),
            scopes=(Scope.READ,),
            serve=callbacks.pauses,
            answers={
                OK: AnswerType(type=CallbackPausesView, description="The pauses.", example={"pauses": [example]})
            },
        ),
        Endpoint(
            name="resume_callbacks",
            method="POST",
            path="/callbacks/resume",
            subject="callbacks",
            summary="Lift the pauses of a host, so that it gets requests again.",
            description=(
                "The jobs that were put off are due at once. A host without pauses is no error. The token must "
                "not be restricted to job types or queues."
            ),
            scopes=(Scope.OPERATE,),
            serve=callbacks.resume,
            body=ResumeCallbacksBody,
            body_examples={
                "a host": {"host": "hooks.example.com"},
                "one type": {"host": "hooks.example.com", "type": "order-paid"},
            },
            answers={
                OK: AnswerType(
                    type=LiftedPausesView,
                    description="The number of pauses that were lifted.",
                    example={"host": "hooks.example.com", "lifted": 1},
                )
            },
        ),
    ]
