"""Figures of a search: its trials over time, and the importance of hyperparameters."""

from __future__ import annotations

import numpy as np
import optuna
from matplotlib.figure import Figure
from optuna.trial import TrialState

from codid_lightning.analysis.figures.style import COLORS, figure_style, new_figure

_PALE = "0.7"


def history(study: optuna.Study, objective: str) -> Figure:
    """The value of every trial in their order, the best so far, and the last value of pruned trials."""
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    pruned = [t for t in study.get_trials(deepcopy=False, states=[TrialState.PRUNED]) if t.intermediate_values]
    with figure_style():
        figure, ((axes,),) = new_figure(1, 1, 4.0, 2.6)
        values = np.array([t.value for t in complete], dtype=float)
        last = [t.intermediate_values[max(t.intermediate_values)] for t in pruned]
        axes.scatter([t.number for t in pruned], last, marker="x", color=_PALE, label="pruned")
        axes.scatter([t.number for t in complete], values, color=COLORS[0], label="complete")
        axes.step([t.number for t in complete], np.maximum.accumulate(values), where="post", color=COLORS[1])
        axes.set(xlabel="Trial", ylabel=objective)
        axes.legend()
    return figure


def importance(study: optuna.Study) -> Figure:
    """Share of the values' variance that each hyperparameter explains (fANOVA)."""
    found = optuna.importance.get_param_importances(study)
    names = [name.removeprefix("model.init_args.") for name in reversed(found)]
    with figure_style():
        figure, ((axes,),) = new_figure(1, 1, 4.0, 0.8 + 0.25 * len(names))
        axes.barh(names, list(reversed(found.values())), color=COLORS[0])
        axes.set(xlabel="Importance", xlim=(0, 1))
    return figure
