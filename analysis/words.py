"""The words that tables and figures share, so that a CPU rank is never called a GPU anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def amount(value: float) -> str:
    """Three significant digits, and never an exponent where there are more: "2.59", "0.575", "6,010"."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def rank_noun(device: str | None, many: bool = True) -> str:
    """What `n_gpus` counts on this device: "CPU ranks", "GPUs", or "ranks" where the device is not known."""
    noun = {"cpu": "CPU rank", "gpu": "GPU"}.get(device or "", "rank")
    return noun + ("s" if many else "")


def ranks(count: int, device: str | None) -> str:
    """ "1 CPU rank", "4 GPUs"."""
    return f"{count} {rank_noun(device, many=count != 1)}"


def common_noun(devices: Iterable[str | None]) -> str:
    """One noun for an axis that holds all of these devices."""
    nouns = sorted({rank_noun(device) for device in devices})
    return nouns[0] if len(nouns) == 1 else f"ranks ({', '.join(nouns)})"


def where(device: str | None, gpu_type: str | None) -> str:
    """The device in a title: "CPU ranks", "v100 GPUs", "GPUs", "device not recorded"."""
    if device is None and gpu_type is None:
        return "device not recorded"
    return rank_noun(device) if gpu_type is None else f"{gpu_type} {rank_noun(device)}"


def listing(items: Sequence[str], most: int = 4) -> str:
    """Items in one line, the middle of a long list left out with its count."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"


def rule(name: str) -> str:
    """A learning-rate rule in a title: "linear learning-rate rule", "no learning-rate scaling"."""
    return "no learning-rate scaling" if name == "none" else f"{name} learning-rate rule"


def counted_to(metric: str) -> str:
    """What epochs of a metric are counted to: "stability", or "the target" that somebody else set."""
    return "stability" if metric == "epochs_to_stability" else "the target"
