"""Search a method's hyperparameters on validation data.

All other arguments are those of `codid fit`: `-c CONFIG`, further overlays, keys and values. Give the same command
several times, on one machine or on several that share the directory, and the processes work on the same study.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence

from jsonargparse import ArgumentParser
from rich.console import Console

from codid_lightning.analysis.figures.style import save
from codid_lightning.errors import RunError
from codid_lightning.experiments.launchers import make_engine
from codid_lightning.training.config_files import packaged_configs

try:
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise RunError("The search needs Optuna: pip install 'codid-lightning[tune]'.") from error

from codid_lightning.analysis.figures import tuning
from codid_lightning.experiments.search import Search


def main(args: list[str]) -> int:
    """Run the trials that are missing; the exit code is 1 if a process failed."""
    parser = ArgumentParser(prog="codid tune", description=__doc__, exit_on_error=False)
    search_fields = parser.add_class_arguments(Search, skip={"arguments"})
    parser.add_argument("--limit", type=int | None, default=None, help="Stop after so many trials of this process.")
    engine_fields = parser.add_function_arguments(make_engine)
    ours, theirs = divide(args, [*search_fields, *engine_fields, "limit"])
    options = parser.parse_args(ours)
    if not theirs:
        raise RunError("name the method to tune, for example -c configs/cmnist/codid.yaml.")
    search = Search(packaged_configs(theirs), **{name: options[name] for name in search_fields})
    console = Console()
    console.print(f"The study is in {search.directory}.", highlight=False, soft_wrap=True)
    failed = 0
    if options.limit is not None or (options.engine == "local" and options.jobs in (None, 1)):
        _show(search, search.run(options.limit), console)
    else:
        failed = _distribute(search, {name: options[name] for name in engine_fields}, console)
    _conclude(search, console)
    return 1 if failed else 0


def divide(args: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """This command's own arguments, and those that describe the runs."""
    ours: list[str] = []
    theirs: list[str] = []
    waiting = iter(args)
    for arg in waiting:
        name, _, value = arg.removeprefix("--").partition("=")
        if arg in ("-h", "--help"):
            ours.append(arg)
        elif arg.startswith("--") and name in names:
            ours += [arg] if value else [arg, next(waiting, "")]
        else:
            theirs.append(arg)
    return ours, theirs


def _show(search: Search, trials: Iterable[FrozenTrial], console: Console) -> None:
    """A line per trial as it ends."""
    for trial in trials:
        over = search.trials - search.missing
        value = (
            f"{search.objective} {trial.value:.4f}" if trial.state == TrialState.COMPLETE else trial.state.name.lower()
        )
        best = search.best
        leader = "" if best is None else f"; best {best.value:.4f} of trial {best.number}"
        console.print(f"[{over}/{search.trials}] trial {trial.number}: {value}{leader}", highlight=False, markup=False)


def _distribute(search: Search, options: dict[str, object], console: Console) -> int:
    """Let an engine run a process per missing trial; how many of them failed."""
    engine = make_engine(**options)  # type: ignore[arg-type]
    name = f"{socket.gethostname()}-{os.getpid()}"
    known = {trial.number for trial in search.study.get_trials(deepcopy=False) if trial.state.is_finished()}
    failures = []
    for outcome in engine.run([search.job(i, name) for i in range(search.missing)]):
        if outcome.state == "failed":
            failures.append(outcome)
            console.print(f"{outcome.job.name} failed: {outcome.error.splitlines()[-1]}", style="red", markup=False)
        new = [t for t in search.study.get_trials(deepcopy=False) if t.state.is_finished() and t.number not in known]
        known |= {trial.number for trial in new}
        _show(search, new, console)
    return len(failures)


def _conclude(search: Search, console: Console) -> None:
    """Write the best config and the figures, as far as there is something to show."""
    best = search.write_best()
    if best is None:
        console.print("No trial is complete yet.")
        return
    counts = {state: search.count(state) for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)}
    states = ", ".join(f"{count} {state.name.lower()}" for state, count in counts.items() if count)
    console.print(f"{search.trials - search.missing} of {search.trials} trials are over: {states}.", highlight=False)
    save(tuning.history(search.study, search.objective), search.directory / "history.png")
    if len({trial.value for trial in search.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])}) > 1:
        save(tuning.importance(search.study), search.directory / "importance.png")
    console.print(f"The best values are in {best}: add -c {best} to the config.", highlight=False, soft_wrap=True)
