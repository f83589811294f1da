"""Curves as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from bothways.files import write_bytes

# One panel: its title, and the curves in it as name -> (x values, y values).
Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def plot_panels(path: Path, panels: Mapping[str, Curves], *, x_label: str = "step") -> None:
    """Draw panels side by side, each with its own y axis, and write them as one PNG.

    Args:
        path: the PNG file.
        panels: title -> curves; a curve of a single point is drawn as a dashed level line.
        x_label: what the x axis counts.
    """
    from matplotlib.figure import Figure  # slow import

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    for place, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
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
    data = io.BytesIO()
    figure.savefig(data, dpi=110, format="png")
    write_bytes(path, data.getvalue())
