"""All that a Keras training consists of, as plain values: to start every rank alike, to save, and to go on."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
from keras.src.random import seed_generator

from hvdtrain._keras.backends import backend
from hvdtrain._keras.optimizer import synchronization
from hvdtrain._keras.start import from_rank_zero, gather_objects, in_process, session, sum_over_ranks, world
from hvdtrain.errors import UserError, agreed

_SEED_STRIDE = 1_000_003


def broadcast(model: Any, optimizer: Any = None) -> None:
    """Overwrite the state of model and optimizer with rank 0's, on every rank; needed once, before the first gradient.

    `fit` with `callbacks()` does it. Random layers (dropout, augmentation) get a seed of their own on each rank.

    Args:
        model: built: its variables exist.
        optimizer: from `DistributedOptimizer`; default: the one that the model was compiled with.

    Raises:
        UserError: a model without variables, or an optimizer that is not synchronised.
    """
    optimizer = model.optimizer if optimizer is None else optimizer
    state = synchronization(optimizer)
    if not model.variables:
        raise UserError("the model has no variables yet: call it on a batch, or give it an Input, before broadcast()")
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    _seeds(model)  # if Keras' own is made only now, by a number of Python's, then not in the middle of training
    if world().size > 1:
        shapes = [(variable.path, tuple(variable.shape)) for variable in [*model.variables, *optimizer.variables]]
        _same_everywhere(shapes)
        with session().waiting():
            accumulated = {id(variable) for variable in _accumulators(optimizer)}
            shared = [variable for variable in optimizer.variables if id(variable) not in accumulated]
            backend().ranks().broadcast([*_weights(model), *_seeds(model), *shared])
            # One rank may have made optimizers that the others have not.
            state.wire.number = from_rank_zero(state.wire.number, "wire")
        for variable in _seeds(model):
            seed = keras.ops.convert_to_numpy(variable).copy()
            seed[0] = (int(seed[0]) + _SEED_STRIDE * world().rank) % 2**31
            variable.assign(seed)
        backend().separate_random(_SEED_STRIDE * world().rank)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    state.started = synchronization(inner).started = True


def refuse_differing_steps(steps: int | None) -> None:
    """All ranks must make as many steps in an epoch.

    Raises:
        UserError: says how many each makes.
    """
    counts = gather_objects(steps)
    if len(set(counts)) > 1:
        raise agreed(
            UserError(
                f"the ranks' data make different numbers of steps in an epoch: {counts}. Some would wait for ever. "
                "Use hvdtrain.keras.loader(x, y, batch_size=...), or give steps_per_epoch"
            )
        )


def _same_everywhere(shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    for rank, other in enumerate(gather_objects([shape for _, shape in shapes])):
        mine = [shape for _, shape in shapes]
        if other != mine:
            differing = next((i for i, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]), -1)
            raise UserError(
                f"rank {world().rank} and rank {rank} built different models: {len(mine)} and {len(other)} variables"
                + (f", first differing at {shapes[differing][0]}" if differing >= 0 else "")
            )


def _weights(model: Any) -> list[Any]:
    seeds = {id(variable) for variable in _seeds(model)}
    return [variable for variable in model.variables if id(variable) not in seeds]


def _seeds(model: Any) -> list[Any]:
    """Of its layers, and of what calls `keras.random` without a seed."""
    of_layers = [variable for variable in model.variables if variable.name == "seed_generator_state"]
    if in_process() > 1:
        return of_layers  # it has no copy on each device
    shared = seed_generator.global_seed_generator().state
    return [*of_layers, *([shared] if all(each is not shared for each in of_layers) else [])]


def statistics(model: Any) -> list[Any]:
    """Variables that each rank computes from its own data: moving averages of batch normalisation and their like."""
    # Those that layers may train are the same everywhere, though frozen ones are among the non-trainable.
    frozen = {id(variable) for layer in model._flatten_layers() for variable in layer._trainable_variables}
    return [variable for variable in _not_trained(model) if id(variable) not in frozen]


def _not_trained(model: Any) -> list[Any]:
    seeds = {id(variable) for variable in _seeds(model)}
    return [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in seeds and "float" in keras.backend.standardize_dtype(variable.dtype)
    ]


def average_statistics(model: Any) -> None:
    """Replace each device's moving statistics by their mean over all devices: for evaluation and for saving."""
    variables = statistics(model)
    if in_process() > 1:
        # Reading such a variable gives the mean over this process' devices, writing it sets them all.
        _assign(variables, _values(variables))
    if world().size == 1 or not variables:
        return
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values])
    mean = np.asarray(sum_over_ranks(flat.tolist())) / world().size
    offset = 0
    for variable, value in zip(variables, values, strict=True):
        variable.assign(mean[offset : offset + value.size].reshape(value.shape).astype(value.dtype))
        offset += value.size


def own_state(model: Any) -> dict[str, Any]:
    """What differs between ranks: random generators, seeds of layers, moving statistics, states of metrics."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "backend": backend().random_state(),
        "seeds": _values(_seeds(model)),
        "statistics": _values(statistics(model)),
        "metrics": _values(model.metrics_variables),
    }


def restore_own(model: Any, state: dict[str, Any]) -> None:
    """Of `own_state`, all but the metrics, which Keras resets before an epoch."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    backend().set_random_state(state["backend"])
    # Those of layers come first; earlier versions, and several devices in one process, have no others.
    seeds = list(zip(_seeds(model), state["seeds"], strict=False))
    _assign([variable for variable, _ in seeds], [value for _, value in seeds])
    variables = statistics(model)
    # Earlier versions kept frozen weights among them.
    _assign(variables if len(state["statistics"]) == len(variables) else _not_trained(model), state["statistics"])


def _accumulators(optimizer: Any) -> list[Any]:
    """Of `gradient_accumulation_steps`: each rank's own sums, which only the update averages. Keras keeps them between epochs."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "_accumulated_gradients", None) or [])


def accumulated(optimizer: Any) -> list[Any]:
    """Gradients that this rank has added up towards the next update."""
    return _values(_accumulators(optimizer))


def restore_accumulated(optimizer: Any, ranks: list[Any]) -> None:
    """Each rank's `accumulated`; to another number of ranks goes their mean, which the update would make of them.

    Args:
        ranks: None in each that is of an earlier version.
    """
    variables = _accumulators(optimizer)
    if not variables or ranks[0] is None:
        return
    if len(ranks) == world().size:
        _assign(variables, ranks[world().rank])
    else:
        _assign(variables, [np.mean(values, 0) for values in zip(*ranks, strict=True)])


def restore_own_metrics(model: Any, state: dict[str, Any]) -> None:
    """This rank's, from its `own_state`."""
    _assign(model.metrics_variables, state["metrics"])


def restore_metrics(model: Any, ranks: list[dict[str, Any]]) -> None:
    """The states of the metrics in the middle of an epoch, from every rank's `own_state`.

    They are sums over samples. On another number of ranks rank 0 goes on with those of all, and the others begin with nothing.
    """
    if len(ranks) == world().size:
        restore_own_metrics(model, ranks[world().rank])
        return
    for variable, values in zip(
        model.metrics_variables, zip(*(each["metrics"] for each in ranks), strict=True), strict=True
    ):
        total = np.sum(values, 0, np.float64)
        if variable.aggregation == "mean":
            total = total / len(ranks)
        elif world().rank != 0:
            total = np.zeros_like(total)
        variable.assign(total.astype(values[0].dtype))


def shared_state(model: Any, optimizer: Any) -> dict[str, Any]:
    """What is the same on every rank."""
    return {
        **shared_by(optimizer),
        "weights": _values(_weights(model)),
        "paths": [variable.path for variable in _weights(model)],
    }


def shared_by(optimizer: Any) -> dict[str, Any]:
    """Of it alone."""
    synchronized = synchronization(optimizer)
    return {
        "base_rate": synchronized.base_rate,
        "scaling": synchronized.scaling,
        "steps_before": synchronized.steps_before,
        "steps_per_epoch": synchronized.steps_per_epoch,
        "optimizer": _values(optimizer.variables),
    }


def restore_shared(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """Weights and the optimizer's state, the learning rate that the same base has in this world, and the place in the warm-up.

    Raises:
        UserError: the state is of another model or optimizer.
    """
    weights = _weights(model)
    if not alike(state["weights"], weights) or not alike(state["optimizer"], optimizer.variables):
        raise UserError(
            f"the checkpoint is of another model or optimizer: it holds {len(state['weights'])} variables and "
            f"{len(state['optimizer'])} of the optimizer, this training has {len(weights)} and {len(optimizer.variables)}, "
            "or of other shapes. Train in another folder, or move its checkpoints away"
        )
    _assign(weights, state["weights"])
    restore_optimizer(optimizer, state)


def restore_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """From `shared_by`, with the learning rate that the same base has in this world.

    Raises:
        UserError: the state is of another optimizer.
    """
    if not alike(state["optimizer"], optimizer.variables):
        raise UserError(
            f"the checkpoint is of another optimizer than {type(optimizer).__name__} with {len(optimizer.variables)} variables. "
            "Train in another folder, or move its checkpoints away"
        )
    _assign(optimizer.variables, state["optimizer"])
    now = synchronization(optimizer)
    if state["scaling"] != now.scaling and now.base_rate is not None and state["base_rate"] is not None:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        saved = float(keras.ops.convert_to_numpy(inner.learning_rate))
        untouched = np.float32(saved) == np.float32(state["base_rate"] * state["scaling"])
        # Where callbacks have changed the rate, what they made of the base stays: only the scaling is another.
        base = state["base_rate"] if untouched else saved / state["scaling"]
        inner.learning_rate = base * now.scaling
    _restore_warmup(optimizer, state)


def _restore_warmup(optimizer: Any, state: dict[str, Any]) -> None:
    """It counts epochs, of which a world of another size, or with other batches, made other steps than this one will."""
    now = synchronization(optimizer)
    # Earlier versions kept neither.
    then, now.steps_before = state.get("steps_per_epoch"), state.get("steps_before", 0.0)
    if then:
        keep_epoch(optimizer, then)


def keep_epoch(optimizer: Any, then: float) -> None:
    """The warm-up is at the epoch at which it was when epochs had `then` steps."""
    now = synchronization(optimizer)
    if now.steps_per_epoch and then != now.steps_per_epoch:
        made = float(keras.ops.convert_to_numpy(optimizer.iterations))
        now.steps_before = (made + now.steps_before) / then * now.steps_per_epoch - made


def alike(values: list[Any], variables: list[Any]) -> bool:
    """Whether saved values are of such variables."""
    return [tuple(value.shape) for value in values] == [tuple(variable.shape) for variable in variables]


def _values(variables: list[Any]) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def _assign(variables: list[Any], values: list[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
