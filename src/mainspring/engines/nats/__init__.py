"""The NATS engine: jobs on JetStream, for many machines. It needs the extra: `pip install 'mainspring[nats]'`."""

from mainspring.engines.nats.settings import NatsSettings

__all__ = ["NatsSettings"]
