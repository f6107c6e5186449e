"""Metrics of the whole world: the states of Keras metrics are sums, so the sum over ranks is the state of the union."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from hvdtrain._keras.backends import backend
from hvdtrain._keras.loader import for_evaluation
from hvdtrain._keras.others import listed
from hvdtrain._keras.start import session, sum_over_ranks, world
from hvdtrain._keras.state import average_statistics
from hvdtrain.errors import UserError, refuse_unknown

#: Of `model.evaluate`.
_OPTIONS = ("batch_size", "verbose", "sample_weight", "steps", "callbacks", "return_dict")


@contextmanager
def world_metrics(model: Any) -> Iterator[None]:
    """While inside, the results that `fit` and `evaluate` of `model` report are those of all ranks' samples.

    Keras asks for them at one place, at the end of an epoch and of an evaluation, which every rank reaches.
    """
    # A callback may evaluate within `fit`, which has seen to it: twice would add up sums, and end it with the inner one.
    if world().size == 1 or "_get_metrics_result_or_logs" in vars(model):
        yield
        return
    own: Callable[[Any], Any] = model._get_metrics_result_or_logs

    def of_all_ranks(logs: Any) -> Any:
        mine = [keras.ops.convert_to_numpy(variable) for variable in model.metrics_variables]
        _sum_states(model.metrics_variables, mine)
        result = own(logs)
        known = set(model.get_metrics_result())
        for variable, value in zip(model.metrics_variables, mine, strict=True):
            variable.assign(value)
        if isinstance(result, dict) and set(result) != known:
            # A train_step of the user's own reports what no metric of the model knows.
            return _mean_over_ranks(result)
        return result

    model._get_metrics_result_or_logs = of_all_ranks
    try:
        yield
    finally:
        del model._get_metrics_result_or_logs


def _sum_states(variables: list[Any], mine: list[Any]) -> None:
    flat = np.concatenate([np.ravel(value).astype(np.float64) for value in mine]) if mine else np.zeros(0)
    total = np.asarray(sum_over_ranks(flat.tolist()))
    offset = 0
    for variable, value in zip(variables, mine, strict=True):
        part = total[offset : offset + value.size].reshape(value.shape)
        if variable.aggregation == "mean":
            part = part / world().size
        variable.assign(part.astype(value.dtype))
        offset += value.size


def _mean_over_ranks(logs: dict[str, Any]) -> dict[str, float]:
    names = sorted(logs)
    try:
        values = [float(keras.ops.convert_to_numpy(logs[name])) for name in names]
    except (TypeError, ValueError):
        raise UserError(
            f"train_step returned {names}, not all of them numbers: their mean over the ranks cannot be taken"
        ) from None
    total = sum_over_ranks(values)
    return {name: value / world().size for name, value in zip(names, total, strict=True)}


class _Alive(keras.callbacks.Callback):  # type: ignore[misc]
    """Outside of `fit` no other callback tells that an evaluation goes on."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        session().progress("validation")


def evaluate(model: Any, x: Any = None, y: Any = None, **options: Any) -> dict[str, float]:
    """`model.evaluate` over all ranks' samples, exactly; on every rank. All ranks must call it.

    Moving statistics of batch normalisation, of which each rank has its own, are replaced by their mean before.

    Args:
        x: a `validation_loader`, or a `loader`, each of whose samples counts once; or this rank's share, as `model.evaluate`
            takes it.
        options: passed to `model.evaluate`; the result is a dictionary whatever `return_dict` says.

    Returns:
        Loss and metrics by name.

    Raises:
        UserError: an option that `model.evaluate` does not have.
    """
    refuse_unknown(options, _OPTIONS, "model.evaluate's arguments")
    options.pop("return_dict", None)
    if world().rank != 0:
        options["verbose"] = 0
    given = listed(options.pop("callbacks", None))
    average_statistics(model)
    with world_metrics(model):
        result: dict[str, float] = model.evaluate(
            backend().feed(for_evaluation(x)), y, return_dict=True, callbacks=[*given, _Alive()], **options
        )
    return result
