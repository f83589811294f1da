"""Fine-tune a model on tasks with several seeds, and the same network without pre-training.

Starts: the model; the same shape with random weights; and the same shape primed (`model.init`) but
untrained. Each call uses one setting for all its tasks; nothing is chosen on dev. Results are added
to a JSON file, and results it already has are not computed again, so only the file needs to be
kept.

    python scripts/score_model.py mini-en --out results/mini-en --glue GLUE --sick SICK \\
        --squad SQUAD_BY_ARTICLE --ner CONLL2003 --lr 3e-4 --batch 32 --epochs 4 --seeds 5
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import SeedResult
from bothways.finetuning.setup import check_files, file_digests, model_digest
from bothways.io.files import new_folder, sha256, write_json, write_text
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.model.priming import prime_first_layer
from bothways.runtime.folder import LoadedModel, load_model
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import SplitConfig
from bothways.tasks.split import split
from bothways.training.runfolder import versions

STARTS = ("model", "random", "primed")
TASKS = {  # the option with the folder of the files, and the scores shown
    "cola": ("glue", ("matthews",)),
    "sst2": ("glue", ("accuracy",)),
    "mrpc": ("glue", ("f1", "accuracy")),
    "stsb": ("glue", ("pearson", "spearman")),
    "rte": ("glue", ("accuracy",)),
    "wnli": ("glue", ("accuracy",)),
    "qnli": ("glue", ("accuracy",)),
    "sick-entailment": ("sick", ("accuracy",)),
    "sick-relatedness": ("sick", ("pearson", "spearman")),
    "squad": ("squad", ("f1", "exact_match")),
    "squad2": ("squad2", ("f1", "exact_match", "no_answer_precision", "no_answer_recall")),
    "conll2003": ("ner", ("f1",)),
    "wnut17": ("wnut", ("f1",)),
    **{f"codah-{fold}": ("codah", ("accuracy",)) for fold in range(5)},
    "nsmc": ("ko", ("accuracy",)),
    "korsts": ("ko", ("spearman", "pearson")),
    "korquad": ("ko", ("f1", "exact_match")),
}


def main() -> None:
    """Train what the file lacks, and write the table after each task and start."""
    options = _arguments()
    loaded = load_model(options.model)
    known = model_digest(loaded, weights=True)
    path = options.out / "scores.json"
    found: dict[str, Any] = {"model": known, "runs": {}}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["model"] != known:
            raise SystemExit(f"{path} holds scores of another model; move it away")
    for task in options.tasks or [t for t, (data, _) in TASKS.items() if getattr(options, data)]:
        for start in options.starts:
            began = time.monotonic()
            if _add(task, start, options, loaded, found["runs"].setdefault(task, {})):
                write_json(path, found)
                write_text(options.out / "scores.md", "\n".join(table(found)) + "\n")
                print(f"{task} {start}: {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(table(found)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="model folder, or the name of a model that is shipped")
    parser.add_argument("--out", type=Path, required=True, help="folder of scores.json, scores.md")
    parser.add_argument("--work", type=Path, default=Path("runs/scores"), help="run folders")
    parser.add_argument("--glue", type=Path, help="folder with CoLA, SST-2 ...")
    parser.add_argument("--sick", type=Path)
    parser.add_argument("--squad", type=Path, help="folder with train.json, dev.json, test.json")
    parser.add_argument("--squad2", type=Path, help="the same, with questions without an answer")
    parser.add_argument("--ner", type=Path, help="folder with eng.train, eng.testa, eng.testb")
    parser.add_argument("--wnut", type=Path, help="folder of WNUT-17")
    parser.add_argument("--codah", type=Path, help="folder with fold_0 to fold_4")
    parser.add_argument("--ko", type=Path, help="folder with nsmc, korsts, korquad")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="default: those with data")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    for name, kind in (("lr", float), ("batch", int), ("epochs", int), ("dropout", float)):
        parser.add_argument(f"--{name}", type=kind, help="default: what the task declares")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def _add(
    task: str, start: str, options: argparse.Namespace, loaded: LoadedModel, runs: dict[str, Any]
) -> bool:
    """Train the seeds of a start that its runs lack, and add them; whether there were any."""
    recipe = _recipe(task, options)
    check_files(recipe.task)
    fitted = recipe.for_encoder(loaded.config)
    setting = {**fitted.setting, "dropout": fitted.dropout, "length": fitted.length}
    entry = runs.setdefault(start, {"setting": setting, "seeds": []})
    if entry["setting"] != setting:
        raise SystemExit(f"{task}, {start}: was measured with {entry['setting']}, not {setting}")
    done = {run["seed"] for run in entry["seeds"]}
    data = file_digests(recipe.task)
    if entry.setdefault("data", data) != data:
        raise SystemExit(f"{task}, {start}: was measured on other files; move scores.json away")
    if not (seeds := tuple(seed for seed in range(options.seeds) if seed not in done)):
        return False
    result = finetune(
        dataclasses.replace(
            recipe,
            model=_primed(loaded, options.work) if start == "primed" else options.model,
            from_scratch=start == "random",
            run=str(options.work / f"{task}-{start}"),
            seeds=seeds,
            jobs=min(options.jobs, len(seeds)),
            threads=options.threads,
        )
    )
    records = [*entry["seeds"], *({**_record(s), "versions": versions()} for s in result.seeds)]
    entry["seeds"] = sorted(records, key=lambda record: record["seed"])
    entry["baseline"] = result.baseline
    return True


def _primed(loaded: LoadedModel, work: Path) -> str:
    """An untrained model of the same shape with primed heads."""
    folder = work / f"primed-{model_digest(loaded, weights=False)}"
    if not folder.exists():
        network = EncoderModel(loaded.config, seed=0)
        prime_first_layer(network.encoder)
        save_model(folder, network, loaded.tokenizer)
    return str(folder)


def _recipe(name: str, options: argparse.Namespace) -> FinetuneConfig:
    """A task with its files and the settings of the command line."""
    recipe = _declared(name, options).located()
    given = {n: getattr(options, n) for n in ("batch", "epochs", "dropout")}
    return dataclasses.replace(
        recipe,
        task=dataclasses.replace(recipe.task, test=None, predict=()),
        optimizer=dataclasses.replace(recipe.optimizer, lr=options.lr or recipe.optimizer.lr),
        **{n: value for n, value in given.items() if value is not None},
    )


def _declared(name: str, options: argparse.Namespace) -> FinetuneConfig:
    folder = TASKS[name][0]
    data: Path = getattr(options, folder)
    questions = {"task.train": "train.json", "task.dev": "dev.json"}
    if folder in ("squad", "squad2"):
        return task_recipe(name, data=str(data), **questions, **{"task.measure": ["test.json"]})
    if name == "qnli":  # without its training file: train on four fifths of dev
        parts = _split(data / "QNLI" / "dev.tsv", name, options.work, by="sentence")
        files = {f"task.{part}": f"{part}.tsv" for part in ("train", "dev")}
        return task_recipe(name, data=str(parts), **files)
    if name == "korquad":  # the same
        file = data / "korquad" / "KorQuAD_v1.0_dev.json"
        return task_recipe(name, data=str(_split(file, name, options.work)), **questions)
    if folder == "codah":
        return task_recipe(folder, data=str(data / f"fold_{name[-1]}"))
    return task_recipe(name, data=str(data / name if folder == "ko" else data))


def _split(file: Path, name: str, work: Path, by: str | None = None) -> Path:
    """A folder with the two parts of a file."""
    parts = work / f"{name}-split-{sha256(file)[:16]}"
    if not parts.exists():
        with new_folder(parts) as folder:
            split(SplitConfig(file=str(file), out=str(folder), by=by))
    return parts


def _record(seed: SeedResult) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "dev": seed.measurement.scores,
        "collapsed": seed.measurement.collapsed,
        "notes": list(seed.measurement.notes),
        "further": {name: more.scores for name, more in seed.further.items()},
        "further_notes": {name: more.notes for name, more in seed.further.items()},
        "seconds": round(seed.seconds, 1),
    }


def table(found: dict[str, Any]) -> list[str]:
    """Means and standard deviations over the seeds, as Markdown; dev, then labelled test files."""
    starts = [s for s in STARTS if any(s in runs for runs in found["runs"].values())]
    lines = [f"| of 100 | seeds | {' | '.join(starts)} | constant prediction |"]
    lines.append("|---" * (len(starts) + 3) + "|")
    for task, (_, metrics) in TASKS.items():
        by_start = {s: runs for s, runs in found["runs"].get(task, {}).items() if runs["seeds"]}
        if not by_start:
            continue
        first = next(iter(by_start.values()))
        counts = " / ".join(dict.fromkeys(str(len(runs["seeds"])) for runs in by_start.values()))
        for part in ["dev", *first["seeds"][0]["further"]]:
            for metric in metrics:
                cells = [_cell(by_start.get(s), part, metric) for s in starts]
                constant = f"{100 * first['baseline'][metric]:.1f}" if part == "dev" else ""
                name = f"{task} {part}, {metric}"
                lines.append(f"| {name} | {counts} | {' | '.join(cells)} | {constant} |")
    return lines + _over_folds(found["runs"], starts)


def _over_folds(runs: dict[str, Any], starts: list[str]) -> list[str]:
    """CODAH's score, the mean over the test files of its folds, once all of them have been run."""
    cells, counts = [], set()
    for start in starts:
        folds = [runs.get(f"codah-{fold}", {}).get(start) for fold in range(5)]
        if not all(fold and fold["seeds"] for fold in folds):
            cells.append("")
            continue
        (part,) = folds[0]["seeds"][0]["further"]
        by_fold = [_values(fold, part, "accuracy") for fold in folds]
        common = min(map(len, by_fold))  # seeds are 0, 1, ...; some folds may have more
        counts.add(common)
        cells.append(_mean([statistics.fmean(v[s] for v in by_fold) for s in range(common)]))
    if not any(cells):
        return []
    number = " / ".join(map(str, sorted(counts)))
    return [f"| codah, mean of the folds' tests, accuracy | {number} | {' | '.join(cells)} | |"]


def _cell(runs: dict[str, Any] | None, part: str, metric: str) -> str:
    return "" if runs is None else _mean(_values(runs, part, metric))


def _values(runs: dict[str, Any], part: str, metric: str) -> list[float]:
    """The score of each seed, of 100."""
    scores = [run["dev"] if part == "dev" else run["further"][part] for run in runs["seeds"]]
    return [100 * score[metric] for score in scores]


def _mean(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


if __name__ == "__main__":
    try:
        main()
    except BothwaysError as error:
        raise SystemExit(f"error: {error}") from None
