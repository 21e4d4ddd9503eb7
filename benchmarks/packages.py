"""Do the wheel and the source distribution work for somebody who has nothing else?

    make packages

Both are built, each is installed into an empty environment, and the command line's tests run from a folder that holds
nothing but these tests. So whatever they need must be in the package: configs, templates, data modules, dependencies.
Needs a package index and 8 GB, because torch comes with its CUDA packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("__init__.py", "commands.py", "conftest.py", "test_cli.py")
TOOLS = ("hypothesis", "pytest", "pytest-timeout")
INI = "[pytest]\ntimeout = 180\nmarkers =\n    slow: takes more than ten seconds\n"


def call(*command: str | Path, cwd: Path) -> None:
    """Run a program; its output is shown, its failure is raised."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(list(map(str, command)), cwd=cwd, env=environment, check=True)  # noqa: S603


def built(folder: Path) -> list[Path]:
    """The wheel and the source distribution of this tree."""
    call(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder, cwd=ROOT)
    return sorted(file for file in folder.iterdir() if file.suffix in (".whl", ".gz"))


def check(package: Path, folder: Path, tests: list[str]) -> None:
    """Install a package into an environment below `folder`, and run the tests there."""
    python, elsewhere = folder / "environment" / "bin" / "python", folder / "elsewhere"
    call(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, python.parents[1], cwd=folder)
    call(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, package, *TOOLS, cwd=folder)
    (elsewhere / "tests").mkdir(parents=True)
    for name in TESTS:
        shutil.copy(ROOT / "tests" / name, elsewhere / "tests" / name)
    (elsewhere / "pytest.ini").write_text(INI)
    where = f"import codid_lightning, datamodules, sys; assert codid_lightning.__file__.startswith({str(folder)!r})"
    call(python, "-c", where, cwd=elsewhere)
    call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=elsewhere)


def main() -> None:
    """Build, install and test; ends with an error where something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", nargs="+", default=["tests/test_cli.py"], help="arguments of pytest")
    parser.add_argument("--only", choices=("whl", "gz"), help="one kind of package")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for package in built(folder / "dist"):
            if options.only in (None, package.suffix[1:]):
                own = folder / package.suffix[1:]
                own.mkdir()
                check(package, own, options.tests)
                print(f"{package.name}: installed and tested", flush=True)


if __name__ == "__main__":
    main()
