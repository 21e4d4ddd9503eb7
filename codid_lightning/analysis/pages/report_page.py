"""The report as one HTML page: all tables, figures, and the runs that were left out."""

from collections.abc import Sequence
from typing import Any

from codid_lightning.analysis.pages.page import Picture, render
from codid_lightning.analysis.tables.cells import Table
from codid_lightning.analysis.tables.render import MISSING, TICKS, cell_text, gain_text, headings, label, legend


def report_page(tables: Sequence[Table], pictures: Sequence[Picture], complaints: Sequence[str]) -> str:
    """The whole page."""
    views = [_view(table) for table in tables]
    parts = {"tables": views, "pictures": pictures, "complaints": complaints}
    return render("report.html.j2", title="Results", legend=legend(tables), missing=MISSING, **parts)


def _view(table: Table) -> dict[str, Any]:
    """What the template shows of a table."""
    rows = [
        {
            "title": line.title,
            "needs": line.needs,
            "ticks": [TICKS[choice] for choice in line.choices],
            "cells": [cell_text(cell) for cell in line.cells],
        }
        for line in table.rows
    ]
    if table.gains:
        gains = [gain_text(gain) for gain in table.gains]
        rows.append({"title": "Improvement", "needs": "", "ticks": [""] * len(table.design), "cells": gains})
    return {
        "title": table.title,
        "note": table.note,
        "design": table.design,
        "headings": headings(table),
        "labels": [label(column) for column in table.columns],
        "rows": rows,
    }
