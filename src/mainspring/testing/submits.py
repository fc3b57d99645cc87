"""Being told of every submit of an application, with the ids of its jobs, and of those made by handlers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mainspring.jobs.handlers import Handler
from mainspring.jobs.submission import Submission
from mainspring.jobs.submit_options import SubmitOptions


class SubmitWatcher:
    """Derive from this and override what is needed. Everything is called in the submitter."""

    def before(self, handler: str) -> None:
        """Jobs of this handler are about to be submitted; what this raises is the end of it."""

    def after(self, ids: list[str]) -> None:
        """These jobs are stored, and the submitter is about to be told."""

    def translate(self, error: Exception) -> BaseException:
        """Return what the submitter gets instead of an error."""
        return error


def watch_submits(submission: Submission, watcher: SubmitWatcher) -> None:
    """Let somebody watch, for as long as this submission lives."""
    submit, submit_async, submit_many = submission.submit, submission.submit_async, submission.submit_many

    @contextmanager
    def watched(handler: Handler) -> Iterator[list[str]]:
        ids: list[str] = []
        watcher.before(handler.name)
        try:
            yield ids
        except Exception as error:
            other = watcher.translate(error)
            if other is error:
                raise
            raise other from error
        watcher.after(ids)

    def submit_watched(
        handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        with watched(handler) as ids:
            ids.append(submit(handler, options, positional, named))
        return ids[0]

    async def submit_async_watched(
        handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        with watched(handler) as ids:
            ids.append(await submit_async(handler, options, positional, named))
        return ids[0]

    def submit_many_watched(
        handler: Handler, options: SubmitOptions, arguments: Iterable[Any], *, atomic: bool
    ) -> list[str]:
        with watched(handler) as ids:
            ids.extend(submit_many(handler, options, arguments, atomic=atomic))
        return ids

    submission.submit = submit_watched  # type: ignore[method-assign]
    submission.submit_async = submit_async_watched  # type: ignore[method-assign]
    submission.submit_many = submit_many_watched  # type: ignore[method-assign]
