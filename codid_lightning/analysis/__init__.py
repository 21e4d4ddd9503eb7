"""Analysis of trained runs: metrics, audits, tables, figures, pages and dashboards."""
