"""Tables as terminal output, Markdown, LaTeX and CSV, and the texts of their cells for any format."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape as escape_rich
from rich.table import Table as RichTable
from rich.text import Text

from codid_lightning.analysis.comparison import MIN_PAIRS
from codid_lightning.analysis.tables.cells import Gain, Table, TableCell, interval
from codid_lightning.analysis.tables.scores import Score
from codid_lightning.analysis.tables.specs import Column

SPREAD = "mean ±std over seeds"
INTERVAL = f"mean (95 % bootstrap interval over seeds or groups; ±std for fewer than {MIN_PAIRS} of them)"
BEFORE = (
    "First line: {spread}, number of seeds in brackets ([2 of 3]: one seed has no finite value or not all "
    "groups); second line: the paper. The best is bold, the runner-up underlined."
)
TESTED = (
    "* Differs from {reference}: two-sided paired t-test over seeds, or over held-out groups where there are more, "
    f"significant at 5 % after Holm's correction over the table; fewer than {MIN_PAIRS} pairs are not tested."
)
AFTER = (
    "† Some held-out groups are missing. Needs: what a method must know besides a1 of training samples: a2 of training "
    "samples, val. a2 of validation samples, or true modes. – No run, or no finite value."
)
ORIGINS = "‡ Some runs are of other code than most on the data set. § Some are of other data."
MISSING = "–"
TICKS = {"+": "✓", ".": "✗", "-": "-", " ": ""}  # a space: not known


class CellText(NamedTuple):
    """The texts of a cell: our mean (None: no run), its rank, what follows the mean, and the paper's number."""

    mean: str | None
    rank: int | None = None
    rest: str = ""
    paper: str = ""


class Markup(NamedTuple):
    """How one format writes plain text, the best, the runner-up, the paper's numbers and missing cells."""

    escape: Callable[[str], str]
    best: Callable[[str], str]
    second: Callable[[str], str]
    paper: Callable[[str], str]
    missing: str


class Line(NamedTuple):
    """One row in one format: method and ticks, our scores, the paper's numbers (empty where it has none)."""

    lead: list[str]
    own: list[str]
    paper: list[str]

    def stacked(self, newline: str) -> list[str]:
        """All cells, the paper's number below ours."""
        return [*self.lead, *(o + newline * bool(p) + p for o, p in zip(self.own, self.paper, strict=True))]


def escape_latex(text: str) -> str:
    """Escape all characters that are special in TeX."""
    special = {c: f"\\{c}" for c in "&%$#_{}"}
    special |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "↓": r"$\downarrow$"}
    special |= {"‡": r"$\ddagger$", "§": r"\S{}"}
    special |= {"±": r"$\pm$", "†": r"$\dagger$", "–": "--", "✓": r"$\surd$", "✗": r"$\times$"}
    return "".join(special.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Escape all characters that are special in Markdown; line breaks become spaces."""
    return "".join(f"\\{c}" if c in r"\`*_|<>[]#" else c for c in text.replace("\n", " "))


RICH = Markup(
    escape_rich,
    "[bold]{}[/bold]".format,
    "[underline]{}[/underline]".format,
    "[dim]{}[/dim]".format,
    f"[red]{MISSING}[/red]",
)
MARKDOWN = Markup(escape_markdown, "**{}**".format, "<u>{}</u>".format, "<sub>{}</sub>".format, MISSING)
LATEX = Markup(escape_latex, r"\textbf{{{}}}".format, r"\underline{{{}}}".format, r"{{\scriptsize {}}}".format, "--")


def cell_text(cell: TableCell) -> CellText:
    """What a table shows for one method and column."""
    paper = "" if cell.paper is None else cell.column.text(cell.paper.mean) + _spread(cell.column, cell.paper.std)
    if cell.ours is None:
        return CellText(None, paper=paper)
    ours = cell.ours
    differs = cell.comparison is not None and cell.comparison.differs
    marks = "*" * differs + "†" * ours.partial + "‡" * ours.other_code + "§" * ours.other_data
    left_out = f" of {ours.all_seeds}" if ours.all_seeds > ours.seeds else ""
    rest = f"{_range(cell)}{marks} [{ours.seeds}{left_out}]"
    return CellText(cell.column.text(ours.mean), cell.rank, rest, paper)


def _range(cell: TableCell) -> str:
    """The interval of a cell, or else its standard deviation."""
    if cell.interval is None:
        return _spread(cell.column, cell.ours.std if cell.ours else None)
    low, high = map(cell.column.text, cell.interval)
    return f" ({low} to {high})"


def legend(tables: Iterable[Table]) -> str:
    """What the marks of these tables mean."""
    tables = list(tables)
    scores = [cell.ours for table in tables for row in table.rows for cell in row.cells if cell.ours]
    references = [table.reference for table in tables if table.reference]
    parts = [
        BEFORE.format(spread=INTERVAL if any(table.intervals for table in tables) else SPREAD),
        *(TESTED.format(reference=reference) for reference in references[:1]),
        AFTER,
        *([ORIGINS] if any(s.other_code or s.other_data for s in scores) else []),
    ]
    return " ".join(parts)


def gain_text(gain: Gain) -> CellText:
    """What a table shows for the reference's improvement in one column."""
    ours, paper = (None if v is None else gain.column.text(v, signed=True) for v in (gain.ours, gain.paper))
    return CellText(ours, paper=paper or "")


def _spread(column: Column, std: float | None) -> str:
    return "" if std is None else f" ±{column.text(std)}"


def lines(table: Table, markup: Markup) -> Iterator[Line]:
    """The rows of a table as text, the improvement last."""
    for row in table.rows:
        lead = [
            markup.escape(row.title),
            markup.escape(row.needs),
            *(markup.escape(TICKS[choice]) for choice in row.choices),
        ]
        yield _line(lead, [cell_text(cell) for cell in row.cells], markup)
    if table.gains:
        yield _line(["Improvement", ""], [gain_text(gain) for gain in table.gains], markup)


def _line(lead: list[str], texts: Sequence[CellText], markup: Markup) -> Line:
    return Line(lead, [_own(text, markup) for text in texts], [_paper(text, markup) for text in texts])


def _own(text: CellText, markup: Markup) -> str:
    if text.mean is None:
        return markup.missing
    mean = markup.escape(text.mean)
    if text.rank is not None:
        mean = (markup.best if text.rank == 1 else markup.second)(mean)
    return mean + markup.escape(text.rest)


def _paper(text: CellText, markup: Markup) -> str:
    return markup.paper(markup.escape(text.paper)) if text.paper else ""


def headings(table: Table) -> list[tuple[str, int]]:
    """Headings and the number of columns that each of them spans."""
    return [(heading, len(list(columns))) for heading, columns in groupby(c.heading for c in table.columns)]


def label(column: Column) -> str:
    """A column's label, with an arrow where less is better."""
    return f"{column.label} ↓" if column.better == "low" else column.label


def to_terminal(tables: Sequence[Table], console: Console) -> None:
    """Print with rich; a table that is wider than the terminal is printed in parts."""
    for table in tables:
        rows = [_with_choices_in_words(line, table) for line in lines(table, RICH)]
        titles = [escape_rich(f"{c.heading}\n{label(c)}".replace(" (", "\n(")) for c in table.columns]
        printed = any(any(line.paper) for line in rows)  # cells of two lines need rules between them
        for part in _parts(table, titles, rows, console.width):
            grid = RichTable(
                "Method", "Needs", *["Design"] * bool(table.design), title=escape_rich(table.title), show_lines=printed
            )
            for title in titles[part]:
                grid.add_column(title, justify="right", no_wrap=True)
            for line in rows:
                grid.add_row(*Line(line.lead, line.own[part], line.paper[part]).stacked("\n"))
            console.print(grid)
        console.print(escape_rich(table.note), style="dim")
    console.print(escape_rich(legend(tables)), style="dim")


def _with_choices_in_words(line: Line, table: Table) -> Line:
    """List the names of a variant's design choices: seven columns of ticks are too wide for a terminal."""
    made = [name for name, tick in zip(table.design, line.lead[2:], strict=False) if tick == TICKS["+"]]
    words = [" ".join(made[:4]) + "\n" * (len(made) > 4) + " ".join(made[4:])] if table.design else []
    return line._replace(lead=[*line.lead[:2], *words])


def _parts(table: Table, titles: list[str], rows: list[Line], width: int) -> list[slice]:
    """Slices of columns that fit into `width` characters; columns with one heading stay together where they fit."""

    def span(texts: Iterable[str]) -> int:
        return 3 + max(len(part) for text in texts for part in Text.from_markup(text).plain.split("\n"))

    lead = 1 + sum(span(line.lead[i] for line in rows) for i in range(len(rows[0].lead)))
    widths = [
        span([title, *(line.own[i] for line in rows), *(line.paper[i] for line in rows)])
        for i, title in enumerate(titles)
    ]
    parts = [slice(0, 0)]

    def add(size: int) -> None:
        start, end = parts[-1].start, parts[-1].stop + size
        if parts[-1].stop > start and lead + sum(widths[start:end]) > width:
            parts.append(slice(parts[-1].stop, end))
        else:
            parts[-1] = slice(start, end)

    for _, size in headings(table):
        end = parts[-1].stop + size
        fits = lead + sum(widths[parts[-1].stop : end]) <= width
        for columns in [size] if fits else [1] * size:
            add(columns)
    return parts


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured Markdown."""
    parts = []
    for table in tables:
        titles = [escape_markdown(f"{c.heading} {label(c)}") for c in table.columns]
        head = ["Method", "Needs", *map(escape_markdown, table.design), *titles]
        rows = [head, ["---"] * len(head), *(line.stacked("<br>") for line in lines(table, MARKDOWN))]
        rows = [row + [""] * (len(head) - len(row)) for row in rows]
        grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"## {escape_markdown(table.title)}\n\n{grid}\n\n{escape_markdown(table.note)}\n")
    return "\n".join([*parts, escape_markdown(legend(tables))]) + "\n"


def to_latex(tables: Iterable[Table]) -> str:
    """LaTeX `table` environments; the document needs the packages booktabs and graphicx."""
    return "\n".join(_latex_table(table) for table in tables)


def _latex_table(table: Table) -> str:
    lead = 2 + len(table.design)
    above = " & ".join([*[""] * lead, *(rf"\multicolumn{{{n}}}{{c}}{{{escape_latex(h)}}}" for h, n in headings(table))])
    ends = list(accumulate((n for _, n in headings(table)), initial=lead))
    rules = " ".join(rf"\cmidrule(lr){{{first + 1}-{last}}}" for first, last in pairwise(ends))
    below = " & ".join(
        ["Method", "Needs", *map(escape_latex, table.design), *(escape_latex(label(c)) for c in table.columns)]
    )
    rows = []
    for line in lines(table, LATEX):
        padding = [""] * (lead - len(line.lead))
        rows.append(" & ".join([*line.lead, *padding, *line.own]) + r" \\")
        if any(line.paper):
            rows.append(" & ".join([r"\quad paper", *[""] * (lead - 1), *line.paper]) + r" \\")
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{escape_latex(f'{table.title}. {legend([table])}')}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{ll{'c' * len(table.design)}{'r' * len(table.columns)}}}",
            r"\toprule",
            *(above + r" \\", rules, below + r" \\"),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(tables: Iterable[Table]) -> str:
    """CSV with one line per cell and unrounded numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    key_names, flag_names = ("table", "method", "dataset", "metric"), ("partial", "other_code", "other_data")
    score_names, test_names = ("mean", "std", "seeds", "all_seeds"), ("pairs", "p_value")
    intervals = ("low", "high")
    writer.writerow([*key_names, *score_names, *intervals, *test_names, *flag_names, "paper_mean", "paper_std"])
    for table in tables:
        for row in table.rows:
            for cell in row.cells:
                ours = [getattr(cell.ours, name, None) for name in score_names]
                ends = (interval(cell.ours) if isinstance(cell.ours, Score) else cell.interval) or (None, None)
                test = [getattr(cell.comparison, name, None) for name in test_names]
                flags = [int(getattr(cell.ours, name)) if cell.ours else "" for name in flag_names]
                key = (table.name, row.method, cell.column.dataset, cell.column.metric)
                writer.writerow([*key, *ours, *ends, *test, *flags, *(cell.paper or (None, None))])
    return out.getvalue()
