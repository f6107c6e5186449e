"""What others would predict, given the same sizes: the models that `backtest.py` puts beside ours.

Each takes ranks, log costs (`analysis.models`), and the asked ranks, and returns a log cost, or None where it gives none.
None of them states an interval.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from analysis.models import MODELS, fit_model

Floats = NDArray[np.float64]
Rival = Callable[[Floats, Floats, float], "float | None"]


def amdahl(n: Floats, log_cost: Floats, asked: float) -> float:
    """Amdahl's law, least squares in logs."""
    return float(fit_model(MODELS["amdahl"], n, log_cost).log_cost(np.array([asked]))[0])


def usl(n: Floats, log_cost: Floats, asked: float) -> float:
    """The universal scalability law, least squares in logs."""
    return float(fit_model(MODELS["usl"], n, log_cost).log_cost(np.array([asked]))[0])


def last_point(n: Floats, log_cost: Floats, asked: float) -> float:
    """The efficiency of the largest measured size, for ever."""
    return float(log_cost[-1])


def extrap(n: Floats, log_cost: Floats, asked: float) -> float | None:
    """Extra-P's performance model normal form, single parameter, its defaults; None where it is not installed.

    It is given the step time: it models growing functions best, and that is how its users measure weak scaling.
    """
    try:
        from extrap.entities.coordinate import Coordinate
        from extrap.entities.measurement import Measurement
        from extrap.modelers.single_parameter.basic import SingleParameterModeler
    except ImportError:
        return None
    logging.getLogger().setLevel(logging.ERROR)
    scale = float(log_cost[0])
    points = [
        Measurement(Coordinate(float(size)), None, None, [float(np.exp(cost - scale))])
        for size, cost in zip(n, log_cost, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleParameterModeler().create_model(points)
        value = float(model.hypothesis.function.evaluate(asked))
    return float(np.log(value)) + scale if value > 0 else None


RIVALS: dict[str, Rival] = {"extrap": extrap, "amdahl": amdahl, "usl": usl, "last_point": last_point}


def extrap_epochs(batches: Floats, epochs: Floats, asked: float) -> float | None:
    """Extra-P on epochs against batch."""
    found = extrap(batches, np.log(epochs), asked)
    return None if found is None else float(np.exp(found))
