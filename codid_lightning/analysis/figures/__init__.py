"""Figures of runs, drawn with matplotlib."""
