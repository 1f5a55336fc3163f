"""Plots that studies share: curves with their intervals as bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterpoint.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; grey prints stay apart by the dashes."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        x: where the curves have values.
        curves: by their label; figures that are None are gaps.
        marks: vertical lines, by their label.
    """

    title: str
    x: Sequence[float]
    curves: Mapping[str, Sequence[Interval]]
    marks: Mapping[str, float] | None = None


def curves(
    panels: Sequence[Panel], x_label: str, y_label: str, y_range: tuple[float, float] | None = None
) -> Callable[[Figure], None]:
    """Panels side by side with a common y axis, each curve with a band from its low to its high end."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        styles: dict[str, int] = {}
        for axis, panel in zip(axes, panels, strict=True):
            for label, intervals in panel.curves.items():
                style = styles.setdefault(label, len(styles) % len(COLOURS))
                axis.plot(panel.x, _column(intervals, 0), color=COLOURS[style], linestyle=DASHES[style], label=label)
                low, high = _column(intervals, 1), _column(intervals, 2)
                axis.fill_between(panel.x, low, high, color=COLOURS[style], alpha=0.18, linewidth=0)
            for label, where in (panel.marks or {}).items():
                axis.axvline(where, color="#888888", linewidth=0.8, linestyle=":")
                axis.annotate(label, (where, 0.02), xycoords=("data", "axes fraction"), fontsize=7, color="#555555")
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel(x_label)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(y_label)
        if y_range is not None:
            axes[0].set_ylim(*y_range)
        handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}  # noqa: B905
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), frameon=False
        )

    return draw


def _column(intervals: Sequence[Interval], place: int) -> list[float]:
    return [float("nan") if interval[place] is None else float(interval[place] or 0.0) for interval in intervals]
