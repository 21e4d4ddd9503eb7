"""`codid audit`: does my data hide correlations, and is my model hurt by them?"""

from pathlib import Path

from codid_lightning.analysis.audit import audit
from codid_lightning.analysis.evaluation import load_run
from codid_lightning.analysis.pages.audit_page import audit_page
from codid_lightning.cli.commands import help_or_arguments
from codid_lightning.errors import RunError
from codid_lightning.training.runs import replacing, writable

FILE = "audit.html"
USAGE = f"""usage: codid audit RUN_DIRECTORY [--output FILE] [--key value ...]
       codid audit -c CONFIG ... --ckpt_path CHECKPOINT [--output FILE] [--key value ...]

Writes one HTML page about any trained model and its data: a verdict, the discovered modes of the first attribute with
exemplars, their correlation with every other attribute, accuracy in each cell of mode and attribute, and leakage into
z1. Modes are CoDID's clusters; for other methods a Dirichlet-process mixture finds them in z1.

  --output       the page; default: {FILE} in the run's directory, or here
  --key value    any argument of `codid test`, for example --data.root"""


def main(args: list[str] | None = None) -> int:
    """Audit, write the page, print the verdict."""
    arguments = help_or_arguments(args, USAGE)
    if arguments is None:
        return 0
    arguments, output = _without_output(arguments)
    run = load_run(arguments)
    found = audit(run)
    output = output or (run.directory or Path()) / FILE
    page = audit_page(run, found)
    with writable(output, "--output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(output) as part:
            part.write_text(page, encoding="utf-8")
    print(f"Hidden correlations: {found.hidden}. Model hurt: {'yes' if found.hurt else 'no'}.")
    print(f"The audit is in {output}.")
    return 0


def _without_output(arguments: list[str]) -> tuple[list[str], Path | None]:
    """The arguments without `--output`, which LightningCLI does not have, and the file."""
    for i, argument in enumerate(arguments):
        if argument.startswith("--output="):
            return arguments[:i] + arguments[i + 1 :], Path(argument.partition("=")[2])
        if argument == "--output":
            if i + 1 == len(arguments):
                raise RunError("--output needs the name of a file.")
            return arguments[:i] + arguments[i + 2 :], Path(arguments[i + 1])
    return arguments, None
