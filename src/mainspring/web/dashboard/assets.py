"""The style sheet, the script and the icon of the dashboard: read once, compressed once, with a hash in the URL.

The URL changes with the content, so browsers keep the files for a year.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
PREFIX = "static"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_CACHE = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    packed: bytes
    media_type: str


class Assets:
    """The files in the folder `static`, with their compressed form and the hash in their name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets: dict[str, _Asset] = {}  # by the name with the hash
        self._names: dict[str, str] = {}
        for path in sorted(folder.iterdir()):
            media_type = _TYPES.get(path.suffix.removeprefix("."))
            if media_type is None:
                continue
            content = path.read_bytes()
            name = f"{path.stem}-{sha256(content).hexdigest()[:12]}{path.suffix}"
            self._names[path.name] = name
            self._assets[name] = _Asset(content, gzip.compress(content, mtime=0), media_type)

    def path_of(self, name: str) -> str:
        """Return the URL path of a file, with its hash, relative to the path where the application is mounted."""
        return f"/{PREFIX}/{self._names[name]}"

    def response(self, name: str, accepted_encodings: str) -> Response | None:
        """Return the response with a file, by its name with the hash; None if there is no such file.

        The response is compressed if the client accepts gzip.
        """
        asset = self._assets.get(name)
        if asset is None:
            return None
        headers = {"cache-control": _CACHE, "content-type": asset.media_type, "vary": "Accept-Encoding"}
        if "gzip" in accepted_encodings.lower():
            return Response(asset.packed, headers={**headers, "content-encoding": "gzip"})
        return Response(asset.content, headers=headers)
