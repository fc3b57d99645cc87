"""Write docs/reference.md, the page with every option of the public calls: python -m scripts.reference.

The options and their defaults come from the signatures. The meaning of an option is a line of the docstring, such
as "- `queue`: the queue of the jobs", or the docstring below the field of a class. A test compares the page with
the code, so a new option needs a description and this command.
"""

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from mainspring import (
    CallbackPolicy,
    Concurrency,
    HttpLimits,
    JobFunction,
    Keep,
    Mainspring,
    NatsSettings,
    ProcessSettings,
    Rate,
    Retry,
    ThreadPool,
    Unique,
)
from mainspring.jobs.tokens import Tokens
from mainspring.monitoring import OpenTelemetryMiddleware, PrometheusCollector

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference of options

Every option of the calls that applications make, with its default. `python -m scripts.reference` writes this page
from the docstrings. Durations are seconds or a `timedelta`; instants are `datetime`s with a time zone.
"""
ITEM = re.compile(r"^- `(?P<name>\w+)`: (?P<text>.*?)(?=^- `|^\S|\Z)", re.MULTILINE | re.DOTALL)


class Call(NamedTuple):
    """A call of the public API, and the page that explains its use."""

    title: str
    target: Callable[..., Any]
    page: str


CALLS = [
    Call("Mainspring(...)", Mainspring, "jobs.md"),
    Call("@app.job(...)", Mainspring.job, "jobs.md"),
    Call("job.options(...)", JobFunction.options, "jobs.md"),
    Call("app.remote_job(...)", Mainspring.remote_job, "http-workers.md"),
    Call("@app.cron(...)", Mainspring.cron, "schedules.md"),
    Call("@app.every(...)", Mainspring.every, "schedules.md"),
    Call("app.http_job(...)", Mainspring.http_job, "callbacks.md"),
    Call("CallbackPolicy(...)", CallbackPolicy, "callbacks.md"),
    Call("app.queue(...)", Mainspring.queue, "policies.md"),
    Call("app.activity(...)", Mainspring.activity, "operations.md"),
    Call("Retry(...)", Retry, "jobs.md"),
    Call("Unique(...)", Unique, "policies.md"),
    Call("Concurrency(...)", Concurrency, "policies.md"),
    Call("Rate(...)", Rate, "policies.md"),
    Call("Keep(...)", Keep, "jobs.md"),
    Call("ProcessSettings(...)", ProcessSettings, "execution.md"),
    Call("NatsSettings(...)", NatsSettings, "nats.md"),
    Call("app.asgi(...)", Mainspring.asgi, "http-operating.md"),
    Call("app.tokens.create(...)", Tokens.create, "http.md"),
    Call("HttpLimits(...)", HttpLimits, "http-operating.md"),
    Call("ThreadPool(...)", ThreadPool, "runners.md"),
    Call("PrometheusCollector(...)", PrometheusCollector, "monitoring.md"),
    Call("OpenTelemetryMiddleware(...)", OpenTelemetryMiddleware, "tracing.md"),
]


def described_options(target: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of options: from the list in the docstring, and from docstrings below fields."""
    listed = ITEM.finditer(inspect.getdoc(target) or "")
    texts = {found["name"]: found["text"] for found in listed}
    if inspect.isclass(target):
        texts |= dict(_field_docstrings(target))
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _field_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, str(text.value.value)


def options_of(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a user gives by name or position."""
    parameters = inspect.signature(target).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.name not in ("self", "function") and each.kind not in variadic]


def shown_default(default: Any) -> str:
    """Return a default as a user would write it; a dash if the option has none."""
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, enum.Enum):
        return f"`{type(default).__name__}.{default.name}`"
    if default == Retry():
        return "`Retry()`"
    if isinstance(default, timedelta):
        return f"`timedelta(days={default.days})`" if default.days else f"`{default.total_seconds():g}`"
    text = repr(default)
    return "see its meaning" if text.startswith("<") else f"`{text}`"


def section(call: Call) -> str:
    """Return the part of the page about one call."""
    meanings = described_options(call.target)
    rows = [
        f"| `{option.name}` | {shown_default(option.default)} | {meanings[option.name]} |"
        for option in options_of(call.target)
    ]
    head = f"## `{call.title}`\n\nExplained in [{call.page}]({call.page})."
    return "\n".join([head, "", "| option | default | meaning |", "|---|---|---|", *rows])


def page() -> str:
    """Return the text of the page."""
    return "\n\n".join([HEAD.strip(), *map(section, CALLS)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
