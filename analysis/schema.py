"""The tidy table: one row per measurement, the same columns whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = (
    "source",
    "workload",
    "gpu_type",
    "n_gpus",
    "n_nodes",
    "per_gpu_batch",
    "global_batch",
    "lr_rule",
    "precision",
    "device",
    "replicate",
    "epochs",
    "metric",
    "value",
    "unit",
)
#: A measurement is none without these.
REQUIRED = ("n_gpus", "metric", "value")
WORDS = ("source", "workload", "gpu_type", "lr_rule", "precision", "device", "metric", "unit")
COUNTS = ("n_gpus", "n_nodes", "per_gpu_batch", "global_batch", "epochs")
DEVICES = ("cpu", "gpu")

#: Measurements are comparable when these agree; ranks are what may differ.
GROUP = ("workload", "gpu_type", "device", "per_gpu_batch", "lr_rule", "precision")


@dataclass(frozen=True)
class Metric:
    """What one metric counts. `unit` is the one in the table; `aliases` are read as the same unit."""

    unit: str
    aliases: tuple[str, ...] = ()
    is_time: bool = False


METRICS = {
    "throughput": Metric("samples/s", ("images/s", "img/s", "samples/sec", "images/sec")),
    "steps_per_s": Metric("steps/s", ("1/s", "it/s", "steps/sec")),
    "epoch_time": Metric("s", is_time=True),
    "total_time": Metric("s", is_time=True),
    "time_to_target": Metric("s", is_time=True),
    "epochs_to_stability": Metric("epochs", ("epoch",)),
    "epochs_to_target": Metric("epochs", ("epoch",)),
    "val_acc": Metric("fraction", ("1",)),
    "train_acc": Metric("fraction", ("1",)),
    "train_loss": Metric("1"),
    "forward_time": Metric("s", is_time=True),
    "backward_time": Metric("s", is_time=True),
    # McCandlish et al. 2018: the simple noise scale, an estimate of the critical batch.
    "noise_scale": Metric("samples"),
    "energy": Metric("J", ("joule", "joules")),
    "price": Metric("USD", ("$", "usd", "eur")),
}
