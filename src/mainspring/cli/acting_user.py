"""Names the user of a command in the audit trail: `alice@web-1`, by the operating system.

The name comes from the user id of the process, not from variables such as USER, which every user can set. After
`sudo`, the entry also has the user who called it, as `sudo_user`. That name comes from the variable SUDO_USER.
"""

from __future__ import annotations

import os
import platform
from contextlib import AbstractContextManager

from mainspring.jobs.audit import acting_as


def acting_user() -> AbstractContextManager[None]:
    """Return a context manager: changes inside of its `with` block are those of the user of this process."""
    sudo_user = os.environ.get("SUDO_USER") or None
    if sudo_user is not None and not sudo_user.isprintable():
        sudo_user = None
    return acting_as(f"{user_name()}@{platform.node()}", source="cli", sudo_user=sudo_user)


def user_name() -> str:
    """Return the name of the user of this process, or the number if it has no name."""
    try:
        import pwd  # noqa: PLC0415 - Windows has none
    except ImportError:
        from getpass import getuser  # noqa: PLC0415 - only for Windows

        return getuser()
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
