"""Commands in the documentation exist, with their options, configs and programs; each result says where it is from."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from codid_lightning.cli.arguments import FIGURES
from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS
from codid_lightning.training import resolve
from tests.commands import codid

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *(ROOT / "docs").rglob("*.md")]
PAGES = [page for page in PAGES if "generated" not in page.parts]
PAGES += [
    *(ROOT / "benchmarks").glob("*.py"),
    *(ROOT / "benchmarks").glob("*.yaml"),
    *(ROOT / "configs").rglob("*.yaml"),
]
PROGRAMS = ("codid ", "python benchmarks/", "python -m ", "make ")
PREFIXES = r"(?:\w+=\S+ |srun |\S+/bin/)*"  # environment, launcher, folder
MADE_THERE = {"configs/baselines/mean_match.yaml", "configs/stripes/base.yaml"}  # by the recipes of CONTRIBUTING.md
OWN = """
data: {class_path: datamodules.OwnArrays, init_args: {root: x, file: x.csv, inputs: [x], attributes: [a, b]}}
model: {class_path: codid_lightning.CoDID}
"""


def code(page: Path) -> str:
    """What may hold commands: indented and fenced lines as they are, and a line for each piece between backticks."""
    text = page.read_text().replace("\\\n", " ")
    if page.suffix != ".md":
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    pieces = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return "\n".join([text, *(" ".join(piece.split()) for piece in pieces)])


def commands_of(page: Path) -> list[str]:
    """Commands without comments, redirection, environment and launcher."""
    found = []
    for line in code(page).splitlines():
        for part in line.strip().split(" && "):
            part = re.sub(rf"^{PREFIXES}", "", part)
            if part.startswith(PROGRAMS) and not re.match(r"codid [A-Z=]|.*/NAME\.|make (?!\w+( |$))", part):
                found.append(re.split(r" [>#|;] ?|  +[#>]|>> ", part)[0].strip())
    return found


COMMANDS_SAID = sorted({(page.relative_to(ROOT).as_posix(), said) for page in PAGES for said in commands_of(page)})


@cache
def help_of(*command: str) -> str:
    from contextlib import redirect_stdout
    from io import StringIO

    if command[0] == "benchmarks/mutation.py":
        pytest.importorskip("mutmut", reason="not among the tools of developers: pip install mutmut")
    with redirect_stdout(StringIO()) as said:
        if command[0] == "codid":
            assert codid(*command[1:], "--help") == 0
        else:
            sys.argv = [*command, "--help"]
            with pytest.raises(SystemExit):
                runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    return said.getvalue()


def check_codid(command: str, arguments: list[str], own: Path) -> None:
    if "--help" in (command, *arguments):
        assert codid(command, *arguments) == 0
        return
    assert command in {**TRAINER_COMMANDS, **COMMANDS}
    if command in TRAINER_COMMANDS:
        keys = [argument for argument in arguments if argument != "--print_config"]
        check_keys([str(own) if is_of_user(argument) else argument for argument in keys], own)
        return
    if command == "figure" and arguments and not arguments[0].isupper():
        assert arguments[0] in FIGURES
    known = help_of("codid", command, *(["canine-bg"] if command == "prepare" else []))
    for option in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
        if command == "tune" and option.startswith(("--data.", "--model.", "--trainer.")):
            continue  # tune gives them to its runs
        assert option in known, f"codid {command} has no {option}"


def is_of_user(argument: str) -> bool:
    """Whether a config is one that the reader has written or that a run has left."""
    return argument.endswith(".yaml") and not argument.startswith("configs/")


def check_keys(arguments: list[str], own: Path) -> None:
    """All keys and values are accepted, those of a checkpoint's config on top of one like it."""
    if "-c" not in arguments:
        arguments = ["-c", str(own), *arguments]
    if not any(argument in MADE_THERE for argument in arguments):
        resolve(arguments)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("own") / "own.yaml"
    file.write_text(OWN)
    return file


def test_commands_are_found():
    assert len(COMMANDS_SAID) > 100
    assert ("README.md", "codid fit -c configs/cmnist/base.yaml -c configs/baselines/dann.yaml") in COMMANDS_SAID
    assert ("docs/reproduction.md", "codid benchmark -c benchmarks/paper_schedule.yaml") in COMMANDS_SAID
    assert {said.split()[0] for _, said in COMMANDS_SAID} == {"codid", "python", "make"}


@pytest.mark.parametrize(("page", "said"), COMMANDS_SAID, ids=lambda text: text)
def test_a_command_can_be_given(page, said, own, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["codid"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    program, *arguments = shlex.split(said.replace("[", "").replace("]", ""))
    for argument in arguments:
        if argument.startswith(("configs/", "benchmarks/")) and argument not in MADE_THERE:
            assert Path(argument).exists(), argument
    if program == "codid":
        check_codid(arguments[0], arguments[1:], own)
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif arguments[0] == "-m" and not arguments[1].startswith("benchmarks."):
        assert find_spec(arguments[1])
    else:
        file = arguments[1].replace(".", "/") + ".py" if arguments[0] == "-m" else arguments[0]
        options = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert (ROOT / file).is_file()
        assert not options or options <= set(re.findall(r"--\w+", help_of(file)))


RESULTS = re.findall(
    r"^\| \[(\S+)\]\(\S+\) \| (.+) \| (.+) \| (\S+) \|$", (ROOT / "results/README.md").read_text(), re.M
)


def test_every_result_names_its_command_revision_and_date():
    assert sorted(name for name, *_ in RESULTS) == sorted(
        f.name for f in (ROOT / "results").iterdir() if f.name != "README.md"
    )
    for name, command, revisions, date in RESULTS:
        assert re.match(r"`.+`", command), name
        assert all(re.fullmatch(r"[0-9a-f]{7,40}", revision) for revision in revisions.split(", ")), name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", date), name


def test_every_revision_of_a_result_is_in_the_history_or_named_as_missing():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    history = subprocess.check_output([git, "-C", str(ROOT), "rev-list", "HEAD"], text=True).split()
    if len(history) < 100:
        pytest.skip("the history is cut off")
    missing = (ROOT / "results/README.md").read_text().partition("Not in the history are")[2].partition("| file |")[0]
    for name, _, revisions, _ in RESULTS:
        for revision in revisions.split(", "):
            assert revision in missing or any(known.startswith(revision) for known in history), (name, revision)
