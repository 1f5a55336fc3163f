"""The page `report.html`: a diagnosis to read, in one file that opens from disk."""

from counterpoint.diagnostics.report.page import render

__all__ = ["render"]
