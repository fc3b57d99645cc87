"""Jobs on NATS JetStream, for many machines. The engine needs the extra: `pip install 'mainspring[nats]'`."""

from mainspring.engines.nats.settings import NatsSettings

__all__ = ["NatsSettings"]
