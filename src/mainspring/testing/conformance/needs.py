"""Marks tests of the conformance suite that need optional capabilities of an engine.

`needs` marks a test that only engines with these capabilities can pass. A suite that names one of them in `lacks`
does not have that test: pytest does not skip it, but does not collect it at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mainspring.jobs.engine import Capability

Test = TypeVar("Test", bound=Callable[..., None])

MARK = "needed_capabilities"


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Mark a test that an engine can only pass with all of these capabilities."""
    if not capabilities:
        raise TypeError("needs() without a capability marks nothing; name at least one, or take it away")

    def mark(test: Test) -> Test:
        vars(test)[MARK] = frozenset(capabilities)
        return test

    return mark


def needs_of(test: object) -> frozenset[Capability]:
    """Return the capabilities that a test needs."""
    needed: frozenset[Capability] = getattr(test, MARK, frozenset())
    return needed


def needed_by(suite: type) -> frozenset[Capability]:
    """Return the capabilities that any test of a suite needs, including tests that the suite leaves out."""
    return frozenset(capability for test in all_tests_of(suite).values() for capability in needs_of(test))


def leave_out(suite: type, lacks: frozenset[Capability]) -> None:
    """Hide the tests that need a missing capability from pytest; restore the others."""
    for name, test in all_tests_of(suite).items():
        chosen = None if needs_of(test) & lacks else test
        if getattr(suite, name) is not chosen:
            setattr(suite, name, chosen)


def all_tests_of(suite: type) -> dict[str, Any]:
    """Return all tests of a suite by name, including those that were left out."""
    classes = reversed(suite.__mro__)
    return {
        name: test
        for part in classes
        for name, test in vars(part).items()
        if name.startswith("test_") and test is not None
    }
