"""What the server counts, for Prometheus. No label is of a request's content."""

from __future__ import annotations

import os
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from bothways.serving.options import SHARED

disable_created_metrics()  # type: ignore[no-untyped-call]  # two lines for every counter, of no use
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("bothways_requests", "Answers sent.", ["route", "model", "status"])
        self.seconds = histogram(
            "bothways_request_seconds",
            "From a request's first byte in the application to its answer.",
            ["route"],
            buckets=_SECONDS,
        )
        self.refused = counter("bothways_refused", "Requests that were not answered.", ["reason"])
        self.in_flight = gauge("bothways_in_flight", "Requests that are being answered.")
        self.queued = gauge(
            "bothways_queued_tokens",
            "Tokens of accepted requests that are not answered yet.",
            ["model"],
        )
        self.tokens = counter("bothways_tokens", "Tokens computed.", ["model"])
        self.batch = histogram(
            "bothways_batch_sequences",
            "Sequences computed together.",
            ["model"],
            buckets=_SEQUENCES,
        )
        self.computing = counter("bothways_compute_seconds", "Seconds spent computing.", ["model"])
        self.replaced = counter(
            "bothways_replaced_workers", "Workers that ended and were replaced."
        )

    def text(self) -> bytes:
        """All counters in Prometheus' format, those of all processes if several count together."""
        registry = self.registry
        if os.environ.get(SHARED):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
