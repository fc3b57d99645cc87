"""Exports what an application does to monitoring systems: `PrometheusCollector`, `OpenTelemetryMiddleware`.

Each exporter needs a package that an extra of `mainspring` installs, so it is imported at its first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.monitoring.opentelemetry import OpenTelemetryMiddleware
    from mainspring.monitoring.prometheus import PrometheusCollector

__all__ = ["OpenTelemetryMiddleware", "PrometheusCollector"]


def __getattr__(name: str) -> Any:
    if name == "OpenTelemetryMiddleware":
        from mainspring.monitoring.opentelemetry import OpenTelemetryMiddleware  # noqa: PLC0415 - see above

        return OpenTelemetryMiddleware
    if name == "PrometheusCollector":
        from mainspring.monitoring.prometheus import PrometheusCollector  # noqa: PLC0415 - see above

        return PrometheusCollector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
