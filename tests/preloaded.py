"""What the server of forked.py has ready for its forks: what W&B imports late."""

import importlib
from contextlib import suppress

LATE = (
    *("wandb.sdk.launch.inputs.internal", "requests"),
    *("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk.metrics.export"),
    *("opentelemetry.exporter.otlp.proto.http._log_exporter", "opentelemetry.sdk._logs.export"),
)

for name in LATE:
    with suppress(ImportError):  # as in another version of W&B
        importlib.import_module(name)
