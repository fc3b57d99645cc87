"""Child processes for handlers with `execution="process"`. They are spawned, never forked, and can be killed.

`pool` runs requests on child processes. `child_process` is the worker's side of one child, `child` is the code
inside of it, and `messages` has the messages between them. This module imports only `handler_location`, because
registering a handler needs no more.
"""

from mainspring.jobs.processes.handler_location import is_child, locate

__all__ = ["is_child", "locate"]
