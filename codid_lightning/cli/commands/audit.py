"""`codid audit`: does my data hide correlations, and is my model hurt by them?"""

from pathlib import Path

from codid_lightning.analysis.audit import audit
from codid_lightning.analysis.evaluation import load_run
from codid_lightning.analysis.pages.audit_page import audit_page
from codid_lightning.cli.arguments import without_path
from codid_lightning.training.runs import write_output

FILE = "audit.html"


def main(args: list[str]) -> int:
    """Audit, write the page, print the verdict."""
    arguments, output = without_path(args, "--output")
    run = load_run(arguments)
    found = audit(run)
    output = output or (run.directory or Path()) / FILE
    page = audit_page(run, found)
    write_output(output, page, "--output")
    print(f"Hidden correlations: {found.hidden}. Model hurt: {'yes' if found.hurt else 'no'}.")
    print(f"The audit is in {output}.")
    return 0
