"""What others would predict, given the same sizes: the models that `backtest.py` puts beside ours.

Each takes ranks, log costs (`analysis.models`), and the asked ranks, and returns a log cost for each of these, NaN where it
gives none, or None where it is not installed. None of them states an interval.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from analysis.models import MODELS, fit_model

Floats = NDArray[np.float64]
Rival = Callable[[Floats, Floats, Floats], "Floats | None"]


def amdahl(n: Floats, log_cost: Floats, asked: Floats) -> Floats:
    """Amdahl's law, least squares in logs."""
    return fit_model(MODELS["amdahl"], n, log_cost).log_cost(asked)


def usl(n: Floats, log_cost: Floats, asked: Floats) -> Floats:
    """The universal scalability law, least squares in logs."""
    return fit_model(MODELS["usl"], n, log_cost).log_cost(asked)


def last_point(n: Floats, log_cost: Floats, asked: Floats) -> Floats:
    """The efficiency of the largest measured size, for ever."""
    return np.full(len(asked), log_cost[-1])


def extrap(n: Floats, log_cost: Floats, asked: Floats) -> Floats | None:
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
        function = SingleParameterModeler().create_model(points).hypothesis.function
        values = np.array([float(function.evaluate(float(size))) for size in asked])
    # A model of falling cost may cross zero: that is no prediction.
    return np.log(np.where(values > 0, values, np.nan)) + scale


RIVALS: dict[str, Rival] = {"extrap": extrap, "amdahl": amdahl, "usl": usl, "last_point": last_point}
