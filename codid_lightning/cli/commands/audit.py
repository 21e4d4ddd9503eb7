"""`codid audit`: does my data hide correlations, and is my model hurt by them?"""

from pathlib import Path

from codid_lightning.analysis.audit import audit
from codid_lightning.analysis.evaluation import load_run
from codid_lightning.analysis.pages.audit_page import audit_page
from codid_lightning.cli.commands import help_or_arguments, without_path
from codid_lightning.training.runs import write_output

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
    arguments, output = without_path(arguments, "--output")
    run = load_run(arguments)
    found = audit(run)
    output = output or (run.directory or Path()) / FILE
    page = audit_page(run, found)
    write_output(output, page, "--output")
    print(f"Hidden correlations: {found.hidden}. Model hurt: {'yes' if found.hurt else 'no'}.")
    print(f"The audit is in {output}.")
    return 0
