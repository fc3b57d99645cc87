"""The OpenAPI document, and the API inside of other applications."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from fastapi import FastAPI
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette
from starlette.routing import Mount

import mainspring
from mainspring.security.asgi_types import AsgiApp
from mainspring.web.api.openapi import problems_of
from mainspring.web.api.routes import all_endpoints
from mainspring.web.problems import STATUS_OF
from tests.api_site import JSON, ApiSite
from tests.asgi_client import request

pytestmark = pytest.mark.long


@pytest.fixture
def document(site: ApiSite) -> dict[str, Any]:
    answer = site.get("/openapi.json", token=site.token("callback", types=["x"]))  # any token may read it
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_has_every_endpoint(site: ApiSite, document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    declared = {(endpoint.path, endpoint.method.lower()) for endpoint in all_endpoints(site.app)}
    described = {(place, method) for place, methods in document["paths"].items() for method in methods}
    assert described == declared
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"].endswith(".")
        assert operation["responses"]["401"]["content"].keys() == {"application/problem+json"}


def test_every_reference_leads_to_a_schema(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = set(references(document))
    assert found
    assert {reference.rpartition("/")[2] for reference in found} <= set(schemas)
    assert "Problem" in schemas


def test_every_parameter_of_a_path_is_described(document: dict[str, Any]) -> None:
    for place, methods in document["paths"].items():
        for operation in methods.values():
            given = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert given == set(re.findall(r"\{([^}]*)\}", place))
            assert all(each["description"] for each in operation.get("parameters", ()))


def test_the_filters_of_a_list_are_query_parameters(document: dict[str, Any]) -> None:
    parameters = {each["name"]: each for each in document["paths"]["/jobs"]["get"]["parameters"]}
    names = "status queue type argument since until text limit after newest_first"
    assert set(parameters) == set(names.split())
    assert parameters["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
    assert parameters["argument"]["schema"]["propertyNames"] == {"pattern": "^argument\\."}
    assert not parameters["status"]["required"]


def test_every_example_has_the_type_that_it_is_an_example_of(site: ApiSite) -> None:
    for endpoint in all_endpoints(site.app):
        for body in endpoint.body_examples.values():
            msgspec.json.decode(msgspec.json.encode(body), type=endpoint.body)
        for answer in endpoint.answers.values():
            if answer.example is not None:
                decoded = msgspec.json.decode(msgspec.json.encode(answer.example), type=answer.type)
                assert msgspec.to_builtins(decoded).keys() == answer.example.keys()


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_operation_has_an_example_of_its_body_and_of_its_answers(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = body.get("schema", {}).get("$ref")
            assert not body or "examples" in body or schema.endswith("/EmptyBody"), operation["operationId"]
            for status, answer in operation["responses"].items():
                for content in answer["content"].values():
                    assert content["example"], (operation["operationId"], status)


def test_every_write_describes_a_body_so_that_clients_send_its_content_type(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for method, operation in methods.items():
            assert ("requestBody" in operation) == (method not in ("get", "delete")), operation["operationId"]
            if "requestBody" in operation:
                assert operation["requestBody"]["content"].keys() == {"application/json"}


def test_headers_that_endpoints_read_are_parameters(document: dict[str, Any]) -> None:
    def headers(place: str, method: str) -> set[str]:
        parameters = document["paths"][place][method]["parameters"]
        return {each["name"] for each in parameters if each["in"] == "header"}

    assert headers("/jobs", "post") == {"Idempotency-Key"}
    assert headers("/schedules/{name}", "put") == {"Idempotency-Key", "If-Match", "If-None-Match"}
    assert headers("/schedules/{name}", "delete") == {"Idempotency-Key", "If-Match"}
    assert headers("/events", "get") == {"Last-Event-ID"}


def test_an_event_stream_is_text_and_the_type_of_its_data_is_known(document: dict[str, Any]) -> None:
    content = document["paths"]["/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    assert content["schema"]["type"] == "string"
    assert content["x-event-data"] == {"$ref": "#/components/schemas/EventView"}
    assert content["example"].startswith("id: ")


def raised_problems() -> Iterator[tuple[str, int]]:
    """Yield the types of problems that modules of the web server make, each with its status."""
    for module in Path(mainspring.__file__).parent.joinpath("web").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call):
                continue
            named = {each.arg: each.value for each in node.keywords}
            if isinstance(node.func, ast.Name) and node.func.id == "Problem":
                values = [named.get("status"), named.get("type")]
            elif getattr(node.func, "id", getattr(node.func, "attr", "")) in ("refuse", "_send_problem"):
                values = list(node.args[:2])
            else:
                continue
            found = [each.value for each in values if isinstance(each, ast.Constant)]
            if [type(each) for each in found] == [int, str]:  # else a module passes on a problem of another one
                yield str(found[1]), int(str(found[0]))


def test_every_problem_has_its_status_and_is_in_the_documentation() -> None:
    made = dict(raised_problems())
    assert len(made) > 25
    assert made == {name: STATUS_OF.get(name) for name in made}
    text = Path(__file__).parents[3].joinpath("docs", "http.md").read_text()
    assert [name for name in STATUS_OF if f"`{name}`" not in text] == []


def test_every_problem_of_an_endpoint_has_a_status(site: ApiSite) -> None:
    for endpoint in all_endpoints(site.app):
        assert set(problems_of(endpoint)) <= set(STATUS_OF), endpoint.name


def test_a_job_has_all_fields_of_its_schema(site: ApiSite, document: dict[str, Any]) -> None:
    job = site.get(f"/jobs/{site.submit()}").json
    schema = document["components"]["schemas"]["JobView"]
    assert set(job) == set(schema["properties"]) == set(schema["required"])


# -- inside of other applications


def show_shop(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("the shop")


urlpatterns = [path("shop", show_shop)]


def beside_django(api: AsgiApp) -> AsgiApp:
    """Mount the API beside the pages of a Django project, as docs/http-operating.md shows."""
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", DATABASES={})
    return Starlette(routes=[Mount("/jobs-api", api), Mount("/", get_asgi_application())])


def mount(kind: str, api: AsgiApp) -> AsgiApp:
    if kind == "fastapi":
        web = FastAPI()
        web.mount("/jobs-api", api)
        return web
    if kind == "django":
        return beside_django(api)
    if kind == "starlette":
        return Starlette(routes=[Mount("/jobs-api", api)])
    nested = Starlette(routes=[Mount("/api", api)])
    return Starlette(routes=[Mount("/jobs", nested)])


@pytest.mark.parametrize(
    ("kind", "root"), [("fastapi", "/jobs-api"), ("starlette", "/jobs-api"), ("nested", "/jobs/api")]
)
def test_the_api_works_under_a_path_of_another_application(site: ApiSite, kind: str, root: str) -> None:
    web = mount(kind, site.asgi)
    body = b'{"type": "shop.anything", "id": "a/b c", "delay": 3600}'
    answer = request(web, f"{root}/api/v1/jobs", method="POST", token=site.admin, headers=[JSON], body=body)
    assert answer.status == 201
    assert answer.headers["location"] == f"{root}/api/v1/jobs/a%2Fb%20c"
    assert request(web, answer.headers["location"], token=site.admin).json["id"] == "a/b c"
    document = request(web, f"{root}/api/v1/openapi.json", token=site.admin).json
    assert document["servers"] == [{"url": f"{root}/api/v1"}]
    assert request(web, f"{root}/api/v1/none", token=site.admin).problem == "not-found"
    if kind == "django":
        assert request(web, "/shop").body == b"the shop"


def test_a_proxy_may_have_removed_a_part_of_the_path(site: ApiSite) -> None:
    job_id = site.submit()
    answer = request(site.asgi, f"/api/v1/jobs/{job_id}", root_path="/outside", token=site.admin)
    assert answer.json["id"] == job_id
