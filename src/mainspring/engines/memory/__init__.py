"""Jobs in the memory of this process."""

from mainspring.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
