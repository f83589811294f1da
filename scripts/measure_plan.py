"""Compare `bothways plan` with short runs of `bothways pretrain`: tokens per second, peak memory.

Each case plans and then trains on the corpus, in separate processes. Writes OUT after each case,
and a Markdown table next to it. Cases that OUT already has are not repeated; those that were
measured with other options are refused.

    python scripts/measure_plan.py CORPUS --out plan.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bothways.training.monitor import read_metrics

# By name: size, sequences per step, per micro-batch, recomputing, steps of the run.
CASES = {
    "tiny": ("tiny", 32, 32, False, 80),
    "mini": ("mini", 32, 32, False, 40),
    "mini, 4 micro-batches": ("mini", 32, 8, False, 40),
    "small": ("small", 32, 32, False, 20),
    "base": ("base", 32, 32, False, 8),
    "base, --recompute": ("base", 32, 32, True, 6),
}
WARM_UP = 2  # steps at the start of a run that are not measured
MIB = 2**20


def main() -> None:
    """Measure the cases that are missing, and write the table."""
    options = _arguments()
    out = Path(options.out)
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for name, case in found.items():
        if case["settings"]["words"] != (words := _words(options, *CASES[name])):
            raise SystemExit(
                f"{out}: {name!r} was measured with {' '.join(case['settings']['words'])}, not "
                f"{' '.join(words)}; move the file away, or choose another --out"
            )
    for name in options.cases:
        if name not in found:
            start = time.perf_counter()
            found[name] = _measure(_words(options, *CASES[name]))
            out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    table = _table(found)
    out.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", help="corpus folder")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--out", default="plan.json")
    return parser.parse_args()


def _words(
    options: argparse.Namespace,
    size: str,
    batch: int,
    micro_batch: int,
    recompute: bool,
    steps: int,
) -> list[str]:
    """The options of `bothways plan` and `bothways pretrain` in a case."""
    phase = f"{{length: {options.length}, batch: {batch}, micro_batch: {micro_batch}}}"
    return [
        *("--corpus", options.corpus, "--size", size, "--phases", f"[{phase}]"),
        *("--steps", str(steps), "--threads", str(options.threads)),
        *("--recompute", str(recompute).lower()),
        *("--set", "evaluate_sequences=64", "--evaluate-every", "1000", "--set", "log_every=1"),
    ]


def _measure(words: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        forecast, run = Path(folder, "plan.json"), Path(folder, "run")
        plan_seconds, _ = _run("plan", *words, "--json", str(forecast))
        run_seconds, peak = _run("pretrain", *words, "--run", str(run))
        planned = json.loads(forecast.read_text(encoding="utf-8"))
        records = [r for r in read_metrics(run / "metrics.jsonl") if "tokens_per_second" in r]
        disk = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    (planned_phase,) = planned["phases"]
    rates = [r["tokens_per_second"] for r in records[WARM_UP:]]
    return {
        "settings": {"words": words, "versions": planned["versions"]},
        "plan_seconds": plan_seconds,
        "run_seconds": run_seconds,
        "planned_tokens_per_second": planned_phase["tokens_per_second"],
        "tokens_per_second": rates,
        "planned_peak_mib": planned_phase["peak"] / MIB,
        "peak_mib": peak / MIB,
        "planned_disk_mib": (planned["checkpoint"] + planned["model_folder"]) / MIB,
        "disk_mib": disk / MIB,
        "plan": planned,
    }


def _run(verb: str, *words: str) -> tuple[float, int]:
    """Seconds that a command took, and its peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bothways", verb, *words], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"bothways {verb} failed: {' '.join(words)}")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * unit


def _table(found: dict[str, Any]) -> str:
    lines = [
        "| | tokens/s planned | measured (median, quartiles) | planned / measured "
        "| peak MiB planned | measured | planned / measured | disk MiB planned | measured "
        "| seconds to plan |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in found.items():
        low, middle, high = statistics.quantiles(case["tokens_per_second"], n=4)
        speed, peak = case["planned_tokens_per_second"], case["planned_peak_mib"]
        lines.append(
            f"| {name} | {speed:,.0f} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) "
            f"| {speed / middle:.2f} | {peak:,.0f} | {case['peak_mib']:,.0f} "
            f"| {peak / case['peak_mib']:.2f} | {case['planned_disk_mib']:,.0f} "
            f"| {case['disk_mib']:,.0f} | {case['plan_seconds']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
