"""What the server of forked.py has ready for its forks: what W&B imports late, and the text of scale demo."""

import importlib
from contextlib import suppress

from transformer_pl.data import synthetic

LATE = (
    *("wandb.sdk.launch.inputs.internal", "requests"),
    *("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk.metrics.export"),
    *("opentelemetry.exporter.otlp.proto.http._log_exporter", "opentelemetry.sdk._logs.export"),
)

for name in LATE:
    with suppress(ImportError):  # as in another version of W&B
        importlib.import_module(name)
for split in synthetic.SIZES:
    synthetic.pairs(split)
