"""`codid audit`: do shortcuts threaten in my data, and is my model hurt by them?"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from codid_lightning.cli.arguments import without_path
from codid_lightning.cli.table_options import read_table_samples, table_parser
from codid_lightning.errors import RunError
from codid_lightning.training.runs import write_output

FILE = "audit.html"
FAILED = 3  # exit code where --fail-on names a problem that was found
PROBLEMS = ("shortcut", "hurt", "leak", "duplicates")


def main(args: list[str]) -> int:
    """Audit, write the page, print the verdict."""
    if any(argument.partition("=")[0] == "--table" for argument in args):
        return _data(_parser().parse_args(args))
    return _run(args)


def _parser() -> argparse.ArgumentParser:
    parser = table_parser("audit")
    parser.add_argument("--predictions", type=Path)
    parser.add_argument("--prediction_column", "--prediction-column")
    parser.add_argument("--fail-on", "--fail_on", nargs="+", choices=PROBLEMS, default=[], dest="fail_on")
    parser.add_argument("--output", type=Path, default=Path(FILE))
    return parser


def _data(options: argparse.Namespace) -> int:
    from codid_lightning.analysis.data_audit import audit_samples
    from codid_lightning.analysis.data_audit.reading import read_predictions
    from codid_lightning.analysis.pages.data_audit_page import data_audit_page

    if options.output.suffix != ".html":
        raise RunError(f"--output is {options.output}; it should end in .html.")
    samples = read_table_samples(options)
    predicted = None
    if options.predictions:
        predicted = read_predictions(options.predictions, samples, options.prediction_column)
    found = audit_samples(samples, predicted, seed=options.seed)
    for claim in found.claims():
        print(f"\n{claim.claim}\n{indent(claim.reason, '  ')}")
    write_output(options.output, data_audit_page(found, _next(options, samples.leaks)), "--output")
    twin = options.output.with_suffix(".json")
    write_output(twin, json.dumps(found.as_dict(), indent=1) + "\n", "--output")
    print(f"\nThe audit is in {options.output}, its numbers are in {twin}.")
    failed = sorted(found.problems & set(options.fail_on))
    if failed:
        print(f"Found: {', '.join(failed)} (--fail-on).")
    return FAILED if failed else 0


def _next(options: argparse.Namespace, leaks: Sequence[str]) -> list[tuple[str, str]]:
    """What to do next: reasons and commands."""
    base = ["--table", str(options.table), "--target", options.target, "--other", *options.other]
    for name in ("group", "split"):
        if getattr(options, name):
            base += [f"--{name}", getattr(options, name)]
    excluded = list(dict.fromkeys([*options.exclude, *leaks]))
    found = []
    if leaks:
        command = ["codid", "audit", *base, "--exclude", *excluded]
        found.append(("Audit once more without the columns that determine the target.", shlex.join(command)))
    if not options.predictions:
        command = ["codid", "audit", *base, *(["--exclude", *excluded] if excluded else [])]
        found.append(
            (
                "See whether your model is hurt: write its predictions into a column `prediction`.",
                shlex.join([*command, "--predictions", "predictions.csv"]),
            )
        )
    return found


def _run(arguments: list[str]) -> int:
    from codid_lightning.analysis.audit import audit
    from codid_lightning.analysis.evaluation import load_run
    from codid_lightning.analysis.pages.audit_page import audit_page

    arguments, output = without_path(arguments, "--output")
    run = load_run(arguments)
    found = audit(run)
    output = output or (run.directory or Path()) / FILE
    page = audit_page(run, found)
    write_output(output, page, "--output")
    print(f"Hidden correlations: {found.hidden}. Model hurt: {'yes' if found.hurt else 'no'}.")
    print(f"The audit is in {output}.")
    return 0
