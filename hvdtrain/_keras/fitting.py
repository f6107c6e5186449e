"""`model.fit` that refuses to train unsynchronised, goes on from checkpoints, and ends the same on every rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from hvdtrain import stop
from hvdtrain._keras import state
from hvdtrain._keras.alone import fit_alone
from hvdtrain._keras.around import BeforeOthers, OnlyNewSteps
from hvdtrain._keras.backends import Wire, backend
from hvdtrain._keras.further import Optimizers
from hvdtrain._keras.loader import Loader, for_evaluation
from hvdtrain._keras.loss_weight import UnionLosses
from hvdtrain._keras.metrics import world_metrics
from hvdtrain._keras.monitor import Monitor
from hvdtrain._keras.optimizer import (
    agree_on_scale,
    is_distributed,
    is_upstreams,
)
from hvdtrain._keras.others import Others, knows_ranks, listed
from hvdtrain._keras.refused import refuse_what_differs
from hvdtrain._keras.start import world
from hvdtrain._keras.training import Training
from hvdtrain.errors import UserError

# Calls of `fit` in this process, and the last epoch that they recorded: a later one (fine-tuning, say) is recorded after it.
_fits = 0
_recorded = 0
#: Callbacks that write files: one rank does it for all, since all have the same model and the same logs.
_WRITERS = {"ModelCheckpoint", "OrbaxCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor"}


def callbacks(
    *,
    checkpoints: Path | str | bool | None = None,
    keep: int = 2,
    replica_check: bool = True,
    monitor: str | None = None,
    mode: str = "auto",
) -> list[keras.callbacks.Callback]:
    """What `model.fit` needs to stay in step; add your own callbacks to the list.

    All ranks start from rank 0's state, metrics and validation are those of all ranks' samples, early stopping and plateaus
    decide alike, epochs are recorded, and a signal (SIGTERM, SIGUSR1, SIGUSR2) to any rank makes all of them write one checkpoint
    after the same step and end with status 75. The next start goes on from there.

    Args:
        checkpoints: None: under the run folder, if there is one; a path; False: none.
        keep: newest checkpoints that stay, besides the best.
        replica_check: compare the ranks' parameters after the first step and every 200 steps.
        monitor: name in the logs whose best value marks the best checkpoint; default: validation accuracy, else a loss.
        mode: "min" or "max", where the metric itself ("auto") does not say which value of `monitor` is the best.
    """
    return [Training(checkpoints, keep, replica_check, Monitor(monitor, mode))]


def guard_fit() -> None:
    """Have every `model.fit` of this process checked: Keras alone would train each rank by itself without a word."""
    if getattr(keras.Model.fit, "hvdtrain", False):
        return
    original = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def guarded(model: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(model, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        return _fit(model, arguments, original)

    guarded.hvdtrain = True  # type: ignore[attr-defined]
    keras.Model.fit = guarded


def _fit(model: Any, arguments: dict[str, Any], original: Any) -> Any:
    given = listed(arguments["callbacks"])
    ours = next((each for each in given if isinstance(each, Training)), None)
    _check_optimizer(model)
    _without_xla(model)
    if ours is None:
        if world().size == 1:
            return fit_alone(model, arguments, original)
        raise UserError(
            "model.fit runs in a world of several ranks without callbacks=hvdtrain.keras.callbacks(): nothing would make them "
            "start alike or report the metrics of all"
        )
    train = arguments["x"]
    ours.loader = train if isinstance(train, Loader) else None
    ours.validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    _prepare(model, arguments, ours)
    ours.others = Others(_others(given, ours))
    arguments["callbacks"] = [BeforeOthers(ours), *ours.others.callbacks, ours]
    if world().rank != 0:
        arguments["verbose"] = 0
    global _fits, _recorded
    _fits += 1
    first = arguments["initial_epoch"]
    ours.begin(_fits, _recorded, first)
    if ours.content is not None:
        _go_on(model, ours, arguments)
        _build_metrics(model, ours)
        if ours.content["consumed"]:
            arguments["callbacks"] = [BeforeOthers(ours), OnlyNewSteps(ours), ours]
    arguments["x"], ours.make_step = backend().training(model, train, arguments["class_weight"])
    arguments["validation_data"] = backend().feed(arguments["validation_data"])
    wires = Optimizers(model).wires
    with stop.watching(), world_metrics(model), UnionLosses(wires[0]) as losses, _steps(model, wires, losses):
        try:
            history = original(model, **arguments)
        finally:
            ours.end()
            _recorded = ours.recorded
            if ours.loader is not None:
                ours.loader.train_as()
                ours.loader.start(ours.loader.epoch)  # whole, where it went on in its middle
    if ours.left_early:
        ours.checkpoints.leave_early()
    history.history = ours.history
    history.epoch = list(range(first, first + len(next(iter(ours.history.values()), []))))
    return history


def _go_on(model: Any, ours: Training, arguments: dict[str, Any]) -> None:
    content = ours.content
    assert content is not None
    ours.history = {key: list(values) for key, values in content["history"].items()}
    if content["consumed"] and model.steps_per_execution > 1:
        content["consumed"], content["anew"] = 0, True  # calls of several steps cannot begin at any step
    over = content["epoch"] >= arguments["epochs"] or content.get("stopped_early", False)
    ours.over = over
    arguments["initial_epoch"] = max(arguments["initial_epoch"], arguments["epochs"] if over else content["epoch"])
    if world().rank != 0:
        return
    size = len(content["ranks"])
    ranks = "" if size == world().size else f" of {size} rank{'s' if size > 1 else ''}, now {world().size}"
    if over:
        early = " and stopped early" if content.get("stopped_early") else ""
        print(
            f"hvdtrain: {content['epoch']} epochs were trained before{early} ({ours.checkpoints.folder}): nothing is left to do"
        )
    else:
        part = ", in its middle" if content["consumed"] else ""
        print(
            f"hvdtrain: going on with epoch {content['epoch'] + 1}{part}, from {ours.checkpoints.folder}{ranks}",
            flush=True,
        )


def _check_optimizer(model: Any) -> None:
    if not getattr(model, "compiled", False):
        raise UserError(
            "the model is not compiled: call model.compile(hvdtrain.keras.DistributedOptimizer(optimizer), loss) before fit"
        )
    optimizer = model.optimizer
    if optimizer is None or (
        world().size == 1 and not is_distributed(getattr(optimizer, "inner_optimizer", optimizer))
    ):
        if is_upstreams(optimizer):
            _refuse(optimizer)
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and is_distributed(inner) and not is_distributed(optimizer):
        agree_on_scale(optimizer)  # compile() put it around ours for mixed precision
    if not is_distributed(optimizer):
        _refuse(optimizer)


def _refuse(optimizer: Any) -> None:
    upstreams = is_upstreams(optimizer)
    what = (
        "is wrapped by horovod's own DistributedOptimizer, which averages nothing on Keras 3"
        if upstreams
        else "is a plain one"
    )
    raise UserError(
        f"the model's optimizer ({type(optimizer).__name__}) {what}: each of the {world().size} ranks would train by itself. "
        "Compile the model with hvdtrain.keras.DistributedOptimizer(optimizer)"
    )


def _without_xla(model: Any) -> None:
    """Keras' "auto" turns XLA on wherever there is a GPU.

    Horovod has no XLA kernels; and with one rank, too, what the distributed optimizer keeps is in the host's memory, which a
    program of XLA's on a GPU cannot reach.
    """
    if keras.backend.backend() == "tensorflow" and is_distributed(model.optimizer):
        model.jit_compile = False


def _prepare(model: Any, arguments: dict[str, Any], ours: Training) -> None:
    """Build the model, and mend or refuse what in `compile` and `fit` does not go together with several ranks."""
    arguments["validation_data"] = for_evaluation(arguments["validation_data"])
    if ours.loader is not None:
        arguments["shuffle"] = False  # Keras would shuffle the batches once more, in another order on each rank
        # Keras would begin an epoch where the one before ended, with batches that weigh otherwise.
        ours.loader.train_as(arguments["steps_per_epoch"], arguments["class_weight"])
        arguments["steps_per_epoch"] = arguments["class_weight"] = None
    _build(model, arguments["x"])
    if ours.loader is not None and model.steps_per_execution > 1:
        weights = {batch.weight for batch in ours.loader.batches()}
        if weights != {1.0}:
            raise UserError(
                f"steps_per_execution={model.steps_per_execution} cannot weight the last step, which the samples do not fill; "
                'give the loader uneven="drop", or leave steps_per_execution at 1'
            )
    if world().size > 1:
        refuse_what_differs(model, None if ours.loader is not None else arguments["x"])


def _build(model: Any, x: Any) -> None:
    """Variables must exist before the first gradient, so that all ranks can start from the same; Keras would make them in it."""
    # One that trains its parts by a `train_step` of its own, and has no `call`, is built with them.
    if all(layer.built for layer in model._flatten_layers(include_self=_can_be_called(model))):
        return
    if isinstance(x, keras.utils.PyDataset):
        batch = x[0]
    elif hasattr(x, "element_spec"):
        batch = next(iter(x))
    elif hasattr(x, "shape"):
        batch = (x[:1],)
    else:
        raise UserError(
            "the model has layers that are not built, and no batch can be taken from this data without losing it. Call the model "
            "on a batch before fit, or begin it with keras.Input"
        )
    model(batch[0] if isinstance(batch, (tuple, list)) else batch, training=False)


def _can_be_called(model: Any) -> bool:
    return type(model).call is not keras.Model.call


def _build_metrics(model: Any, ours: Training) -> None:
    """Where training goes on in the middle of an epoch, metrics must exist before their states come back."""
    if ours.content is None or not ours.content["consumed"] or ours.loader is None:
        return
    compiled = [model._compile_loss, model._compile_metrics]
    if not _can_be_called(model) or all(each is None or each.built for each in compiled):
        return
    x, y, weight = keras.utils.unpack_x_y_sample_weight(ours.loader[0])
    seeds = state.own_state(model)
    output = model(x, training=False)
    if model.loss is not None:
        model.compute_loss(x, y, output, weight)  # with several outputs it has metrics of its own
    model.compute_metrics(x, y, output, sample_weight=weight)
    state.restore_own(model, seeds)


def _others(given: list[Any], ours: Training) -> list[Any]:
    others = [each for each in given if each is not ours]
    if world().size > 1:
        for each in others:
            if "BackupAndRestore" in _names(each):
                raise UserError(
                    "BackupAndRestore would restore rank 0 alone; hvdtrain.keras.callbacks(checkpoints=folder) saves and goes on "
                    "for all ranks"
                )
        others = [each for each in others if not _on_rank_zero_only(each) or world().rank == 0]
    return others


def _on_rank_zero_only(callback: Any) -> bool:
    """Of Keras' writers, or derived from one and not marked as one that knows of ranks."""
    kind = type(callback)
    if not _names(callback) & _WRITERS or knows_ranks(callback):
        return False
    if world().rank == 0 and any(name.startswith("on_") for name in vars(kind)) and kind.__name__ not in _WRITERS:
        print(
            f"hvdtrain: note: {kind.__name__}, which is derived from a callback that writes files, acts on rank 0 only; "
            "on_all_ranks = True in it makes it act on all",
            flush=True,
        )
    return True


def _names(callback: Any) -> set[str]:
    """Of its class and those that it is derived from."""
    return {each.__name__ for each in type(callback).__mro__}


class _steps:
    """Around the model's own step, which is the first that sees a batch: tells the clock, and makes losses the union's."""

    def __init__(self, model: Any, wires: Sequence[Wire], losses: UnionLosses) -> None:
        self._model, self._wires, self._losses = model, wires, losses

    def __enter__(self) -> None:
        own = self._model.train_step

        def train_step(data: Any) -> Any:
            for wire in self._wires:
                wire.data_arrived(data)
            with self._losses.step():
                return own(data)

        self._model.train_step = train_step
        self._model.make_train_function(force=True)

    def __exit__(self, *exception: Any) -> None:
        del self._model.train_step
        self._model.make_train_function(force=True)
