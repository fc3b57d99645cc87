"""`mainspring run`: a worker in the foreground."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

import typer

from mainspring.cli.loading import load_app


def run(
    app: Annotated[str, typer.Argument(help="The application, as module:name.", metavar="MODULE:APP")],
    queues: Annotated[str | None, typer.Option(help="Only these queues, separated by commas.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads for handlers.", min=1)] = None,
    processes: Annotated[int | None, typer.Option(help="Processes for handlers that run in one.", min=1)] = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl+C; a second signal hands back what runs at once.

    Example: mainspring run shop:app --queues orders,mail --threads 16
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    application = load_app(app)
    if queues is not None:
        application.queues = tuple(name.strip() for name in queues.split(",") if name.strip())
        if not application.queues:
            raise typer.BadParameter(f"{queues!r} names no queue; leave --queues out to serve all")
    if threads is not None:
        application.threads = threads
    if processes is not None:
        application.processes = replace(application.processes, count=processes)
    application.run()
