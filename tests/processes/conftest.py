"""Fixture: a folder for processes that use one store."""

from tests.processes.sandbox import sandbox

__all__ = ["sandbox"]
