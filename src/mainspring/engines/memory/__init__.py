"""Jobs in the memory of this process.

The engine is imported when it is used, so that `provider` can be imported without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]


def __getattr__(name: str) -> Any:
    if name == "MemoryEngine":
        from mainspring.engines.memory.engine import MemoryEngine  # noqa: PLC0415 - see above

        return MemoryEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
