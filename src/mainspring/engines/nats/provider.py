"""Provides the NATS engine for URLs with `nats://` and `tls://`."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engines.nats.settings import SCHEMES, NatsSettings, parse_url, without_password, without_secrets
from mainspring.engines.registry import EngineConfig, EngineProvider
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.jobs.engine import Engine


def is_nats(url: str) -> bool:
    """Return whether a URL names a NATS store."""
    return url.startswith(SCHEMES)


class NatsProvider(EngineProvider):
    """Describes the NATS engine to the registry: jobs on NATS JetStream, for any number of machines."""

    examples = "'nats://host:4222'"
    doctor = "mainspring.doctor.nats_examination:examine_store"
    bench = "mainspring.bench.stores:NatsStores"
    needs_projection = True

    def make_engine(self, config: EngineConfig) -> Engine:
        try:
            from mainspring.engines.nats.engine import NatsEngine  # noqa: PLC0415 - only with the extra
        except ImportError as error:
            raise EngineUnavailable(
                engine=f"url {without_password(config.url)!r}",
                reason=f"the client for NATS is not installed, or cannot be imported ({error})",
                remedy="pip install 'mainspring[nats]'",
            ) from error
        settings: NatsSettings = config.settings or NatsSettings()
        return NatsEngine(
            config.url,
            settings=replace(settings, prepared=True) if config.read_only else settings,
            retention=config.retention,
            clock=config.clock,
            make_projection=config.make_projection,
        )

    def import_engine(self) -> None:
        with suppress(ImportError):  # `make_engine` raises an error that says what to install
            import_module("mainspring.engines.nats.engine")

    def check_url(self, url: str) -> None:
        parse_url(url, NatsSettings())

    def public_url(self, url: str) -> str:
        return without_password(url)

    def store_name(self, url: str) -> str:
        servers, _ = parse_url(url, NatsSettings())
        return f"nats://{','.join(sorted(without_secrets(servers).split(',')))}"
