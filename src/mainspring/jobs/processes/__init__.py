"""Handlers in processes of their own: spawned, never forked, and killed when nothing else helps.

`pool` runs requests on children, `child_process` is one child as its worker sees it, `child` is what runs inside,
`messages` is what they say to each other. Only `locating` is imported here: registering a handler needs no more.
"""

from mainspring.jobs.processes.locating import is_child, locate

__all__ = ["is_child", "locate"]
