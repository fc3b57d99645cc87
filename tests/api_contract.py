"""Does every answer of the API match its OpenAPI document? schemathesis makes requests from the document.

`tests/web` and `tests/nats` run these tests on their stores, without sockets. For each operation there are four
kinds of requests: one that succeeds, random valid ones, random invalid ones, and boundary values of the schemas.
A valid request would find hardly any job and no handler, so many of them get ids, job types and rules that the
store has. A state machine adds sequences, in which a request has values of the answers before.

- `GET /events` is left out: its answer never ends. `tests/web/test_event_streams.py` tests it.
- `make test` makes the same requests each time. `make soak` makes many more, which are random.
- An invalid request is refused before it reaches the store. So `make test` sends these requests on one store only.
- An answer with 5xx fails, as does a status, a content type, a header or a body that the document does not have,
  and a success for an invalid request. A valid request may be refused: the document does not know the handlers.
- `Allow` is not compared: `GET /jobs/batch` is possible, because a job may have this id.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.specs.openapi import checks

from mainspring import Mainspring
from mainspring.security.asgi_types import AsgiApp, AsgiScope, Receive, Send
from tests.api_site import ApiSite
from tests.operator_api_tests import add_operator_handlers, put
from tests.support import PATIENCE, amount

Case: TypeAlias = Any
"""A request of schemathesis. Its own class has type variables for all kinds of schemas."""
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]
SEQUENCE_CHECKS = [*CHECKS, checks.use_after_free, checks.ensure_resource_availability]
LEFT_OUT = ["follow_events"]
JOB, LETTER, OTHER_LETTER, SCHEDULE, QUEUE = "order-1", "letter-1", "letter-2", "night", "orders"
PICTURE = "picture-1"
WAITING = ["claim_jobs"]
"""Operations that sequences leave out, because they wait."""
ACCEPTED: dict[str, list[Any]] = {
    "type": ["shop.cancel_order", "shop.pay", "shop.charge"],
    "arguments": [{"order_id": 7}, {"order_id": 8}],
    "rule": [
        {"kind": "cron", "expression": "30 2 * * *", "tz": "Europe/Berlin"},
        {"kind": "every", "interval": 300},
    ],
    "id": [None],
    "queue": [None, QUEUE],
    "at": [None],
    "delay": [3600, 0.5],
    "unique": [None, "a key", {"by": ["order_id"]}],
    "sequence": [None, "a key"],
    "retry": [None, {"max_attempts": 3}],
    "timeout": [None, 2.5],
    "expires": [None, 60],
    "start": [None],
    "end": [None],
    "misfire": ["once", "skip"],
    "catch_up": [None],
    "ids": [[LETTER], [LETTER, OTHER_LETTER]],
    "changes": [{}, {"order_id": 8}],
    "without": [[]],
}
"""Values of bodies that an application with these handlers accepts, for most handlers."""
PLAIN: dict[str, Any] = {
    "submit_job": {"type": "shop.cancel_order", "arguments": {"order_id": 7}},
    "submit_jobs": [{"type": "shop.cancel_order", "arguments": {"order_id": 7}}],
    "reschedule_job": {"delay": 3600},
    "change_jobs": {"action": "retry", "queue": "no such queue"},
    "edit_dead_letter": {"changes": {"order_id": 8}},
    "replay_dead_letters": {"ids": [LETTER]},
    "purge_dead_letters": {"ids": [LETTER]},
    "put_schedule": {"type": "shop.cancel_order", "arguments": {"order_id": 7}, "rule": ACCEPTED["rule"][0]},
    "enroll_worker": {"name": "w", "types": ["shop.resize"]},
    "settle_jobs": {
        "jobs": [{"id": PICTURE, "fencing_token": 1, "outcome": "progress", "progress": {"done": 1}}],
    },
    "direct_worker": {"direction": "quiet"},
    "resume_callbacks": {"host": "hooks.example.com"},
}
"""A body for each operation that is not content with an empty one."""
ACCEPTED_IN_QUERIES = {"expression": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-28", "since": "2h"}
CONFLICTING = {"name", "until", "after"}
CHANGES = ("cancel_job", "reschedule_job", "run_job_now")
JOB_OF = {name: f"job of {name}" for name in CHANGES}
"""A PENDING job for each operation that needs one. Other operations may cancel it afterwards."""
EXISTING = {
    "/jobs": [JOB, LETTER],
    "/dead-letters": [LETTER, OTHER_LETTER, JOB],
    "/schedules": [SCHEDULE],
    "/queues": [QUEUE],
    "/workers": [],
}
SUBJECTS = ["server", "jobs", "dead letters", "schedules", "queues", "callbacks", "store", "workers"]


class _Target:
    """The ASGI application of the current test: the parsed document is used for all tests of a process."""

    asgi: AsgiApp
    token: str

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.asgi(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


TARGET = _Target()


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {TARGET.token}"}


@cache
def load_document() -> Any:
    """Return the document of the current application, parsed by schemathesis."""
    config = SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", TARGET, config=config, headers=_headers())
    schema.config.generation.update(with_security_parameters=False)  # rights have tests of their own
    return schema.exclude(operation_id=LEFT_OUT)


def fill(app: Mainspring) -> ApiSite:
    """Add handlers, some jobs, two dead letters and a schedule, and make this application the current one."""
    add_operator_handlers(app)
    site = ApiSite(app)
    with app.running():
        for number, letter in enumerate((LETTER, OTHER_LETTER)):
            site.submit("shop.charge", id=letter, arguments={"order_id": number}, delay=0)
        for letter in (LETTER, OTHER_LETTER):
            assert app.handle(letter).wait(PATIENCE) == "FAILED"
    for job_id in (JOB, *(f"job of {name}" for name in CHANGES)):
        site.submit(id=job_id)
    assert put(site, SCHEDULE).status == 201
    add_remote_workers(site)
    TARGET.asgi, TARGET.token = site.asgi, site.admin
    return site


def add_remote_workers(site: ApiSite) -> None:
    """Enroll two quiet remote workers. The first one runs a job, and the other one leaves."""
    site.app.remote_job("shop.resize")
    numbers = [str(site.post("/workers", {"name": "w", "lease": 3600}).json["number"]) for _ in range(2)]
    site.submit("shop.resize", id=PICTURE, delay=0)
    assert site.post(f"/workers/{numbers[0]}/claim", {"wait": 30}).json["jobs"][0]["id"] == PICTURE
    for number in numbers:
        assert site.post(f"/workers/{number}/direct", {"direction": "quiet"}).status == 200
    EXISTING["/workers"] = numbers[:1]
    JOB_OF["leave_worker"] = numbers[1]


def renew(site: ApiSite) -> None:
    """Store the schedule again, if an operation before has deleted or changed it."""
    assert put(site, SCHEDULE).status in (200, 201)


def make_settings(examples: int, **options: Any) -> settings:
    """Return settings that depend neither on chance, nor on earlier runs, nor on the speed of the machine."""
    return settings(
        max_examples=examples,
        derandomize=amount(True, thorough=False),
        database=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )


def existing_names(operation: Any) -> list[str]:
    """Return names in the store that the path of an operation may have."""
    return next((names for start, names in EXISTING.items() if operation.path.startswith(start)), [])


def plain_case(operation: Any) -> Case:
    """Return a request that succeeds, so that no operation is tested with refusals only."""
    name = operation.definition.raw["operationId"]
    existing = LETTER if name == "retry_job" else JOB_OF.get(name) or next(iter(existing_names(operation)), "")
    found: Case = operation.Case(
        path_parameters={each.name: existing for each in operation.path_parameters},
        query={"expression": "30 2 * * *"} if name == "preview_schedule" else {},
        **({"body": PLAIN.get(name, {}), "media_type": "application/json"} if operation.body else {}),
    )
    return found


def fit(value: Any, data: st.DataObject) -> Any:
    """Return a body with job types, arguments, rules, times and ids that are accepted, in some of the cases."""
    if isinstance(value, list):
        return [fit(each, data) for each in value]
    if not isinstance(value, dict) or not data.draw(st.booleans(), label="fit"):
        return value
    return {
        name: data.draw(st.sampled_from(ACCEPTED[name]), label=name) if name in ACCEPTED else each
        for name, each in value.items()
    }


def fit_query(query: Any, data: st.DataObject) -> Any:
    """Return query parameters that are accepted, in some of the cases."""
    if not query or not data.draw(st.booleans(), label="fit"):
        return query
    return {name: ACCEPTED_IN_QUERIES.get(name, value) for name, value in query.items() if name not in CONFLICTING}


def send(case: Case) -> int:
    """Send a request, check the answer, and return its status."""
    extra = {"Content-Type": "application/json"} if case.method not in ("GET", "HEAD", "DELETE") else {}
    if case.path.endswith("/claim") and isinstance(case.body, dict):
        wait = case.body.get("wait", 20)
        if isinstance(wait, float | int) and 0 < wait <= 30:
            case.body["wait"] = 0.01  # a worker that another request has enrolled would let the client wait
    answer: Response = case.call(headers=_headers() | extra)
    case.validate_response(answer, checks=CHECKS)
    return answer.status_code


# Hypothesis counts the references to its own generator of random numbers, and Python 3.15 counts fewer.
@pytest.mark.filterwarnings("ignore:It looks like `register_random`:hypothesis.errors.HypothesisWarning")
class ContractTests:
    """The tests. A subclass has the fixture `site`, which calls `fill`."""

    valid_requests = amount(8, thorough=400)
    """How many random valid requests are sent for each operation."""
    has_invalid_requests = True
    """Whether the invalid requests are sent on this store."""

    @pytest.mark.parametrize("subject", SUBJECTS)
    def test_every_answer_is_as_the_document_says(self, site: ApiSite, subject: str) -> None:
        operations = [found.ok() for found in load_document().include(tag=subject).get_all_operations()]
        assert operations
        for operation in operations:
            renew(site)
            status = send(plain_case(operation))
            assert status in (200, 201), (operation.label, status)
            self._check_valid(operation)
            if self.has_invalid_requests:
                self._check_invalid(operation)
            for case in _boundary_cases(operation, with_invalid=self.has_invalid_requests):
                send(case)

    def _check_valid(self, operation: Any) -> None:
        existing = existing_names(operation)

        @make_settings(self.valid_requests)
        @given(case=operation.as_strategy(GenerationMode.POSITIVE), data=st.data())
        def check(case: Case, data: st.DataObject) -> None:
            if case.path_parameters and data.draw(st.integers(0, 3), label="exists"):
                name = data.draw(st.sampled_from(existing), label="name")
                case.path_parameters = dict.fromkeys(case.path_parameters, name)
            if data.draw(st.booleans(), label="without conditions"):
                case.headers.clear()
            case.body, case.query = fit(case.body, data), fit_query(case.query, data)
            send(case)

        check()

    def _check_invalid(self, operation: Any) -> None:
        if not (operation.query or operation.headers or operation.body):
            return  # every text is a valid part of a path

        @make_settings(amount(4, thorough=300), phases=(Phase.generate, Phase.shrink))
        @given(case=operation.as_strategy(GenerationMode.NEGATIVE))
        def check(case: Case) -> None:
            send(case)

        check()

    def test_sequences_of_requests_are_answered_as_the_document_says(self, site: ApiSite) -> None:
        class Sequences(load_document().exclude(operation_id=WAITING).as_state_machine()):  # type: ignore[misc] # made from the document
            def get_call_kwargs(self, case: Case) -> dict[str, Any]:
                return {"headers": _headers()}

            def validate_response(self, response: Response, case: Case, **options: Any) -> None:
                case.validate_response(response, checks=SEQUENCE_CHECKS, **options)

        Sequences.run(settings=make_settings(amount(4, thorough=100), stateful_step_count=10))


def _boundary_cases(operation: Any, *, with_invalid: bool) -> Iterator[Case]:
    schema = load_document()
    modes = [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if with_invalid else [])]
    config = schema.config.generation_for(operation=operation)
    found: Iterator[Case] = schema.iter_coverage_cases(operation, generation_modes=modes, generation_config=config)
    return found
