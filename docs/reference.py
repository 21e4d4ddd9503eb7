"""The pages of the site that are generated: every command, every key of a config, and the files of results/."""

from __future__ import annotations

import inspect
import io
import json
import pkgutil
import shutil
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from docstring_parser import parse

import codid_lightning
import datamodules
from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS
from codid_lightning.cli.main import main
from codid_lightning.training import registry
from codid_lightning.training.config import KEYS

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("codid_lightning.methods.codid.discovery", "codid_lightning.methods.codid.parts", "codid_lightning.clustering")


def write(folder: Path) -> None:
    """Write all generated pages into a folder that is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(ROOT / "results", folder / "results")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        shutil.copy(ROOT / f"{name}.md", folder / f"{name.lower()}.md")
    write_results(folder / "results")
    (folder / "commands.md").write_text(commands_page())
    write_cards(folder, "methods", METHODS_LEAD, method_classes())
    write_cards(folder, "datasets", DATA_LEAD, dataset_classes())
    (folder / "parts.md").write_text(classes_page("Parts of CoDID and clusterers", PARTS_LEAD, part_classes()))


def write_results(folder: Path) -> None:
    """Give each page of results a title, and list them below the table of their origins."""
    index = folder / "index.md"
    (folder / "README.md").rename(index)
    for page in folder.glob("*.md"):
        if not page.read_text().startswith("# "):
            page.write_text(f"# {page.stem.replace('_', ' ').capitalize()}\n\n{page.read_text()}")
    index.write_text(index.read_text() + "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n")


def site_links(page: str, text: str) -> str:
    """The text of a page in which links to files of the repository lead to their copies on the site."""
    if page.startswith("generated/results/"):
        return text.replace("](../docs/", "](../../").replace("](../README.md", "](../../index.md")
    if page.startswith("generated/"):
        return text.replace("](docs/", "](../").replace("](README.md", "](../index.md")
    home = "../" * page.count("/")  # from the page to docs/
    text = text.replace(f"]({home}../results/README.md", f"]({home}generated/results/index.md")
    text = text.replace(f"]({home}../results/", f"]({home}generated/results/")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = text.replace(f"]({home}../{name}.md", f"]({home}generated/{name.lower()}.md")
    return text.replace(f"]({home}../README.md", f"]({home}index.md")


# ---------------------------------------------------------------------------------------------------------- commands


def commands_page() -> str:
    """What `--help` prints for each command."""
    lines = ["# Commands", "", "What `codid COMMAND --help` prints. All keys of configs: [methods](methods.md), "]
    lines[-1] += "[parts](parts.md), [data sets](datasets.md)."
    for name, text in {**TRAINER_COMMANDS, **COMMANDS}.items():
        shown = io.StringIO()
        with redirect_stdout(shown), suppress(SystemExit):
            main([name, "--help"])
        lines += ["", f"## codid {name}", "", f"{text[0].upper()}{text[1:]}."]
        lines += ["", "```text", shown.getvalue().rstrip(), "```"]
    rows = "\n".join(f"| `{key}` | {text} |" for key, text in KEYS.items())
    return "\n".join([*lines, "", "## Keys of every config", "", "| key | meaning |", "|---|---|", rows, ""])


# ------------------------------------------------------------------------------------------------------------ classes

METHODS_LEAD = """# Methods

Each method has a card: what it assumes, what it costs, what it gave, and its keys below `model.init_args`."""
PARTS_LEAD = "What CoDID is composed of, and the clusterers: each is a `class_path` with `init_args` in a config."
DATA_LEAD = """# Data sets

Each data set has a card: its origin, licence and known problems, and its keys below `data.init_args`. Licences are as
their publishers state them, to our knowledge. Check them before you pass data on."""


def method_classes() -> list[type[Any]]:
    """All methods, the recommended one first."""
    names = registry.method_names()
    return [getattr(codid_lightning, name) for name in sorted(names, key=lambda name: (name != "CoDID", name))]


def dataset_classes() -> list[type[Any]]:
    """All data sets."""
    return [getattr(datamodules, name) for name in registry.dataset_names()]


def part_classes() -> list[type[Any]]:
    """Public classes with arguments of the modules that hold parts."""
    found: dict[str, type[Any]] = {}
    for name in _modules(*PARTS):
        for thing in vars(import_module(name)).values():
            own = inspect.isclass(thing) and thing.__module__ == name and not thing.__name__.startswith("_")
            if own and _parameters(thing) and parse(thing.__doc__ or "").params:
                found[thing.__name__] = thing
    return list(found.values())


# -------------------------------------------------------------------------------------------------------------- cards

FACTS = {  # of docs/cards.yaml, in the order of a card
    "methods": {"assumes": "Assumption", "cost": "Cost", "problems": "Known problems", "citation": "Citation"},
    "datasets": {"origin": "Origin", "licence": "Licence", "problems": "Known problems", "citation": "Citation"},
}
MEASURED = ("adaptive", "paper_schedule", "reproduction")  # files of results/ with runs


def cards() -> dict[str, dict[str, dict[str, str]]]:
    """The facts of `docs/cards.yaml` for `methods` and `datasets`, by class name."""
    read = yaml.safe_load((ROOT / "docs" / "cards.yaml").read_text())
    return {"methods": read["methods"], "datasets": read["data"]}


def write_cards(folder: Path, kind: str, lead: str, classes: list[type[Any]]) -> None:
    """A page for each class, and one that lists them."""
    (folder / kind).mkdir()
    facts = cards()[kind]
    lines = [lead, "", "| card | what it is |", "|---|---|"]
    for cls in classes:
        name, short = cls.__name__, parse(inspect.cleandoc(cls.__doc__ or "")).short_description
        (folder / kind / f"{name}.md").write_text(card(cls, kind, facts[name]))
        lines.append(f"| [{_title(cls)}]({kind}/{name}.md) | {short} |")
    tree = ["", "```{toctree}", ":hidden:", "", *(f"{kind}/{cls.__name__}" for cls in classes), "```", ""]
    (folder / f"{kind}.md").write_text("\n".join([*lines, *tree]))


def card(cls: type[Any], kind: str, facts: Mapping[str, str]) -> str:
    """One page: facts, and what the code and the results say."""
    description, keys = section(cls)
    lines = [f"# {_title(cls)}", "", *description, ""]
    for fact, heading in FACTS[kind].items():
        lines += [f"## {heading}", "", facts[fact], ""]
    lines += attributes_table(cls) if kind == "datasets" else results_table(cls)
    return "\n".join([*lines, "## Settings", "", f"Class `{cls.__name__}`.", *keys, ""])


def attributes_table(cls: type[Any]) -> list[str]:
    """Attributes and their values, where the class states them."""
    names, values = getattr(cls, "attribute_names", ()), getattr(cls, "value_names", ())
    if not isinstance(names, tuple) or not names:
        return []
    lines = ["## Content", "", f"Shape of one sample: `{getattr(cls, 'input_shape', 'from the file')}`.", ""]
    lines += ["| attribute | values |", "|---|---|"]
    rows = [f"| {name} | {', '.join(own)} |" for name, own in zip(names, values, strict=True)]
    modes = getattr(cls, "mode_names", ())
    return [*lines, *rows, *([f"| modes of {names[0]} | {', '.join(modes)} |"] if modes else []), ""]


def results_table(cls: type[Any]) -> list[str]:
    """Mean accuracies of the runs in results/, beside BASE in the same file."""
    rows = []
    for file in MEASURED:
        read = json.loads((ROOT / "results" / f"{file}.json").read_text())
        runs = list(read.values()) if isinstance(read, dict) else read
        for dataset in dict.fromkeys(run["dataset"] for run in runs):
            base = _mean([run for run in runs if (run["dataset"], run["method"]) == (dataset, "base")])
            for method in configs_of(cls):
                own = [run for run in runs if (run["dataset"], run["method"]) == (dataset, method)]
                if own:
                    link = f"[{file}](../results/{file}.md)"
                    rows.append(f"| {dataset} | `{method}` | {len(own)} | {_mean(own)} | {base} | {link} |")
    if not rows:
        return ["## Results", "", "See [all methods on three data sets](../results/methods.md).", ""]
    head = ["## Results", "", "Accuracy of a_1 in %, on tests 1 / 2 / 3 where there are three, mean of the runs.", ""]
    head += ["| data set | config | runs | accuracy | BASE | file |", "|---|---|---|---|---|---|"]
    return [*head, *rows, ""]


def configs_of(cls: type[Any]) -> list[str]:
    """Names of the configs that recommend the class: its overlay, or those of the data sets."""
    if cls.__name__ == "CoDID":
        return ["codid", "codid_adaptive"]
    overlays = (ROOT / "configs" / "baselines").glob("*.yaml")
    named = [file.stem for file in overlays if f"class_path: {cls.__name__}\n" in file.read_text()]
    return ["base"] if cls.__name__ == "Base" else named


def _mean(runs: list[dict[str, Any]]) -> str:
    tests = [test for test in ("test", "test1", "test2", "test3") if runs and f"{test}/acc" in runs[0]["metrics"]]
    return " / ".join(f"{100 * fmean(run['metrics'][f'{test}/acc'] for run in runs):.1f}" for test in tests)


def _title(cls: type[Any]) -> str:
    return str(getattr(cls, "title", None) or cls.__name__)


def classes_page(title: str, lead: str, classes: list[type[Any]]) -> str:
    """A page with a section for each class."""
    lines = [f"# {title}", "", lead, ""]
    for cls in classes:
        description, keys = section(cls)
        lines += [f"## {cls.__name__}", "", *description, *keys, ""]
    return "\n".join(lines)


def section(cls: type[Any]) -> tuple[list[str], list[str]]:
    """The description of a class, and the table of its arguments."""
    doc = parse(inspect.cleandoc(cls.__doc__ or ""))
    description = [text for text in (doc.short_description, "", doc.long_description) if text is not None]
    rows, lines = list(arguments(cls)), []
    if rows:
        lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return description, lines


def arguments(cls: type[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each argument, also those that a class passes on to its parents."""
    seen: set[str] = set()
    for parent in cls.__mro__:
        meanings = {p.arg_name: p.description or "" for p in parse(inspect.cleandoc(parent.__doc__ or "")).params}
        if "__init__" not in vars(parent):
            continue
        passes_on = False
        for parameter in _parameters(parent):
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                passes_on = True
            elif parameter.name not in seen:
                seen.add(parameter.name)
                yield _row(parameter, _meaning(cls, parameter.name) or meanings.get(parameter.name, ""))
        if not passes_on:
            return


def _parameters(cls: type[Any]) -> list[inspect.Parameter]:
    init = vars(cls).get("__init__")
    return [] if init is None else list(inspect.signature(init).parameters.values())[1:]


def _meaning(cls: type[Any], name: str) -> str:
    """What the nearest class in the chain of parents says about an argument."""
    for parent in cls.__mro__:
        for parameter in parse(inspect.cleandoc(parent.__doc__ or "")).params:
            if parameter.arg_name == name:
                return parameter.description or ""
    return ""


def _row(parameter: inspect.Parameter, meaning: str) -> tuple[str, str, str, str]:
    kind = "" if parameter.annotation is parameter.empty else f"`{parameter.annotation}`"
    default = "required" if parameter.default is parameter.empty else f"`{_short(parameter.default)}`"
    return f"`{parameter.name}`", kind, default, meaning


def _short(value: Any) -> str:
    """A default as a config may write it: of an object only its class."""
    return repr(value) if isinstance(value, str | int | float | tuple | list | dict | None) else type(value).__name__


def _modules(*names: str) -> Iterator[str]:
    for name in names:
        yield name
        module = import_module(name)
        for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
            yield f"{name}.{inner.name}"
