"""Curves as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bothways.files import write_bytes

# The curves of one panel: name -> (x values, y values).
Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def plot_panels(path: Path, panels: Mapping[str, Curves], *, x_label: str = "step") -> None:
    """Draw panels side by side, each with its own y axis, and write them as one PNG.

    Args:
        path: the PNG file.
        panels: as for :func:`draw_panels`.
        x_label: what the x axis counts.
    """
    write_bytes(path, draw_panels(panels, x_label=x_label))


def draw_panels(panels: Mapping[str, Curves], *, x_label: str = "step") -> bytes:
    """Draw panels side by side, each with its own y axis; returns the bytes of a PNG.

    Args:
        panels: title -> curves; a curve with a single point is drawn as a dashed horizontal line.
        x_label: what the x axis counts.
    """
    from matplotlib.figure import Figure  # slow import

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    for index, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, index)
        for name, (x, y) in curves.items():
            if len(x) == 1:
                axes.axhline(y[0], linestyle="--", linewidth=1, color="0.5", label=name)
            else:
                axes.plot(x, y, linewidth=1.2, label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(x_label)
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(fontsize=8)
    return _png(figure)


def draw_scatter(x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str) -> bytes:
    """Draw points and the diagonal; returns the bytes of a PNG."""
    from matplotlib.figure import Figure  # slow import

    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    ends = [min([*x, *y]), max([*x, *y])]
    axes.plot(ends, ends, linestyle="--", linewidth=1, color="0.5")
    axes.scatter(x, y, s=8, alpha=0.5)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return _png(figure)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, dpi=110, format="png")
    return data.getvalue()
