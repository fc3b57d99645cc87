"""Access rights: tokens, their scopes, and the identity of a caller; keys and signatures; limits of the server.

The package imports no engine and no web framework.
"""

from mainspring.security.permissions import Identity, Permissions, Scope

__all__ = ["Identity", "Permissions", "Scope"]
