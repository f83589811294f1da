"""Draw README's picture: time and score of fine-tuning beside transformers' Trainer.

    python scripts/draw_speed_and_score.py

The figures are read from the file of the benchmark, so the picture shows nothing that was not
measured; tests compare it with what this script would draw.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
BENCHMARK = ROOT / "benchmarks/2026-11-23-finetuning.md"
PICTURE = ROOT / "docs/speed-and-score.svg"
CONTENDERS = ("bothways, bf16", "Trainer, bf16", "Trainer, fp32 (its default)")
COLOURS = ("#1f5fa8", "#b9b9b9", "#8a8a8a")


def seconds(text: str) -> dict[str, list[float]]:
    """The median time of each contender, by task."""
    rows = re.findall(r"^\| (MRPC|SST-2),[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", text, re.MULTILINE)
    medians = {
        task: [
            statistics.median(float(s.replace(",", "")) for s in cell.split(", ")) for cell in cells
        ]
        for task, *cells in rows
    }
    assert len(medians) == 2
    return medians


def scores(text: str) -> dict[str, list[float]]:
    """The median accuracy on dev of each contender, in percent, by task."""
    found = re.search(
        r"MRPC accuracy ([\d., ]+) \(ours\) and ([\d., ]+) \(theirs\), ([\d.]+) in fp32; "
        r"SST-2 ([\d.]+) and ([\d.]+), ([\d.]+) in fp32",
        " ".join(text.split()),
    )
    assert found
    medians = [statistics.median(map(float, group.split(", "))) for group in found.groups()]
    return {"MRPC": medians[:3], "SST-2": medians[3:]}


def draw(path: Path) -> None:
    """Draw the picture, the same bytes each time."""
    text = BENCHMARK.read_text(encoding="utf-8")
    panels = {
        "seconds in all (shorter is better)": seconds(text),
        "accuracy on dev, %": scores(text),
    }
    plt.rcParams.update({"svg.hashsalt": "bothways", "font.size": 9, "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.6), layout="constrained")
    for axis, (title, tasks) in zip(axes, panels.items(), strict=True):
        names = [*reversed(tasks)]
        for place, (contender, colour) in enumerate(zip(CONTENDERS, COLOURS, strict=True)):
            heights = [row + 0.27 * (1 - place) for row in range(len(names))]
            values = [tasks[name][place] for name in names]
            bars = axis.barh(heights, values, 0.25, color=colour, label=contender)
            axis.bar_label(bars, fmt="%.0f" if "seconds" in title else "%.1f", padding=2)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(title, loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.12)
    figure.legend(
        *axes[0].get_legend_handles_labels(), ncols=3, loc="outside lower center", frameon=False
    )
    figure.patch.set_facecolor("white")
    figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(PICTURE)
