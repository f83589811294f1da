"""The verbs that use a finished model: each takes its options and returns the lines to print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bothways.api.evaluation import Evaluation
from bothways.api.model import Model, check_ranks
from bothways.config.fields import changed
from bothways.errors import ConfigError, InputError, ModelError, Place
from bothways.families.heads import TAGGER
from bothways.io.annotations.tagged import NAMES, holds_examples
from bothways.io.diagnostics import damage_notes, damaged_characters, refuse_other_format
from bothways.io.files import real_path, write_json
from bothways.io.hub import model_folder
from bothways.io.terminal import counted, print_note, progress_of
from bothways.io.text import beginning_lines, read_texts, refuse_records
from bothways.io.written import breaks_in, check_ending, is_known, table_text, write_rows
from bothways.runtime.bulk import Embedding, Labelling, write_in_parts
from bothways.runtime.embeddings import (
    WHOLE,
    check_format,
    embed_texts,
    own_length,
    write_vectors,
)
from bothways.runtime.engine import EngineOptions, check_engine, engines
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.entities import tag_texts
from bothways.runtime.folder import LoadedModel, load_model, no_weights
from bothways.runtime.inspection import Attribution, Inspection
from bothways.runtime.options import (
    ConvertConfig,
    EmbedConfig,
    EvaluateConfig,
    FillMaskConfig,
    InspectConfig,
    NextSentenceConfig,
    PredictConfig,
    RankConfig,
)
from bothways.runtime.pipeline import (
    Prediction,
    check_pairs,
    choose_length,
    encode_file,
    evaluate_file,
    named_columns,
    outputs_of,
    predict_choices,
    rank_texts,
    task_for_file,
    unknown_notes,
)
from bothways.runtime.saving import save_loaded, with_heads
from bothways.runtime.texts import FileTexts, check_kept, kept_columns, text_windows
from bothways.tasks.answers import score_file
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.examples import CHUNK
from bothways.tasks.options import TaskOptions
from bothways.tasks.passages import query_limit
from bothways.tasks.readers import row_windows
from bothways.tasks.schemes import OUTSIDE
from bothways.tasks.tagging import TaggingTask
from bothways.tasks.task import Task, number_columns, submission_rows
from bothways.tasks.texts import LabelTask, TextTask, check_columns
from bothways.tasks.windows import Reading
from bothways.tokenization.normalization import count_decomposed, decomposed_notes
from bothways.tokenization.tokenizer import Tokenizer


def fill_mask(config: FillMaskConfig) -> list[str]:
    """Lines for `bothways fill-mask`."""
    with _open(config) as model:
        lines = []
        for text in config.texts:
            lines.append(text)
            for fillings in model.fill_mask(text, top=config.top):
                lines += [f"  {f.probability:6.1%}  {f.piece:<16} {f.text}" for f in fillings]
                lines.append("")
    cut = sum(model.tokens_cut(text) > 0 for text in config.texts)
    _note_cut(cut, len(config.texts), model.loaded.config.positions)
    _note_decomposed(config.texts, model.tokenizer)
    return lines


def next_sentence(config: NextSentenceConfig) -> str:
    """The line for `bothways next-sentence`."""
    with _open(config) as model:
        probability = model.next_sentence(config.text, config.text_b)
    cut = model.tokens_cut(config.text, config.text_b)
    if cut:
        print_note(f"{cut} tokens of the pair were cut to fit into {model.loaded.config.positions}")
    other = "swapped" if model.loaded.about.get("pairs") == "order" else "random"
    return f"follows: {probability:.1%}   {other}: {1 - probability:.1%}"


def rank(config: RankConfig) -> list[str]:
    """Lines for `bothways rank`: the texts with their scores, best first."""
    with _open(config, check_ranks) as model:
        ranked, found = rank_texts(model.loaded, config.query, config.texts)
    _note_cut(found.cut, len(config.texts), found.length)
    _note_windows(found.several, len(config.texts), found.length)
    _note_decomposed((config.query, *config.texts), model.tokenizer)
    return [f"{one.score:9.6f}  {one.text}" for one in ranked[: config.top]]


def predict(config: PredictConfig) -> list[str]:
    """Lines for `bothways predict`; with ``out`` the predictions are written there instead."""
    if config.question is not None:
        return _answers(config, config.question)
    if config.choices:
        return _chosen(config)
    _refuse_to_overwrite(config.out, config.file, config.task)
    if config.out is not None:
        check_ending(Path(config.out))
    if config.file is None:
        _refuse_bulk(config, "a --file")
    with _open(config) as model:
        if config.file is not None:
            return _predict_file(model.loaded, config)
        if _tags(model.loaded) and config.text_b is None:
            lines = _tag_lines(model, config.texts)
        else:
            b = None if config.text_b is None else [config.text_b] * len(config.texts)
            prediction = model.predict(config.texts, b)
            _note_cut(prediction.cut, len(config.texts), prediction.length)
            _note_windows(prediction.several, len(config.texts), prediction.length)
            lines = _prediction_lines(prediction, model.loaded.task)
        _note_decomposed(config.texts, model.tokenizer)
    if config.out is None:
        return lines
    rows = [line.split("\t") for line in lines]
    numbers = {name for name in rows[0] if name.startswith("p(")} | _ENTITY_NUMBERS
    write_rows(Path(config.out), rows, numbers)
    return [f"{len(config.texts)} predictions: {config.out}"]


_LITTLE = 100_000
"""Characters. Beyond, the engine that is faster once it runs has made up for its longer start."""
_ENTITY_NUMBERS = {"text", "start", "end", "probability", "score"}


def _columns(loaded: LoadedModel, config: PredictConfig | EvaluateConfig) -> TaskOptions | None:
    """How a file is laid out, if options say it; otherwise it is as in fine-tuning."""
    if config.task is not None:
        return changed(task_recipe(config.task).task, config.written)
    named: dict[str, Any] = {"text": config.text, "text_b": config.text_b}
    if isinstance(config, EvaluateConfig):
        named |= {"label": config.label, "labels": config.labels}
    columns = named_columns(loaded, named)
    return changed(columns or loaded.task.options, config.written) if config.written else columns


def _predict_file(loaded: LoadedModel, config: PredictConfig) -> list[str]:
    """The lines of a file's predictions, in the task's format; or the file they were written to."""
    config = replace(config, keep=tuple(dict.fromkeys(config.keep)))
    check_kept(config.keep, loaded.task.options.labels)
    columns = _columns(loaded, config)
    if config.submission and _tags(loaded):
        raise ConfigError("submission needs one prediction per example; tagging gives many.")
    if config.out is not None and not config.submission:
        for path in loaded.task.output_files(Path(config.out)):
            _refuse_to_overwrite(path, config.file, config.task)
    if config.format is not None and TAGGER not in loaded.heads:
        raise ConfigError(
            "--format is for tagging; the suffix of --out says how others are written."
        )
    if config.format is not None and config.format not in NAMES:
        raise ConfigError(f"format is {config.format!r}; choose from {', '.join(NAMES)}.")
    if isinstance(loaded.task, TextTask):
        return _predict_rows(loaded, config, columns)
    _refuse_bulk(config, "files with a text in each row")
    task, split = encode_file(loaded, config.file or "", labelled=False, options=columns)
    kept = kept_columns(Path(config.file or ""), config.keep, task, split)
    for note in split.notes:
        print_note(note)
    _note_precision(loaded)
    with progress_of("predicting") as progress:
        outputs = outputs_of(loaded, task, split.examples, progress=progress)
    predictions = task.decode(split, outputs)
    if config.out is not None and config.format is not None:
        assert isinstance(task, TaggingTask)
        task.write(Path(config.out), split, predictions, config.format)
    elif config.out is not None and config.keep:
        table = task.table(split, predictions)
        with_columns = [
            [row[0], *own, *row[1:]]
            for row, own in zip(table, [[*config.keep], *kept], strict=True)
        ]
        numbers = number_columns(table[0], scores=task.loss == "score")
        out = Path(config.out)
        write_rows(out, with_columns, numbers)
        _note_tabs(out, breaks_in(out.suffix.lower(), chain.from_iterable(kept)))
    elif config.out is not None and not config.submission:
        task.write(Path(config.out), split, predictions)
    else:
        table = task.table(split, predictions)
        rows = submission_rows(table) if config.submission else table
        lines = ["\t".join(row) for row in rows]
        if config.out is None:
            return lines
        write_rows(Path(config.out), rows)
    return [f"{len(split.rows)} predictions: {config.out}"]


def _predict_rows(
    loaded: LoadedModel, config: PredictConfig, columns: TaskOptions | None
) -> list[str]:
    """The same for a table with a text or pair in each row, of any size."""
    task, notes = task_for_file(loaded, columns)
    assert isinstance(task, TextTask)
    check_pairs(loaded, pair=task.pair)
    check_columns(task.options)
    path, out = Path(config.file or ""), None if config.out is None else Path(config.out)
    suffix = "" if out is None else out.suffix.lower()
    at_once = out is None or suffix == ".json"
    windows = row_windows(
        *(path, task.options),
        labelled=False,
        keep=config.keep,
        skip=config.broken == "skip",
        whole=at_once,
    )
    first, second = next(windows), next(windows, None)
    # A folder may leave things open, such as metrics; they are decided here, as in training.
    task = type(task).define(task.options, first)
    length = choose_length(loaded, None)
    job = Labelling(
        *((config.model, *config.ensemble), loaded.options, suffix, task, length),
        keep=config.keep,
        submission=config.submission,
    )
    _note_precision(loaded)
    if second is not None:
        assert out is not None
        _, counts = write_in_parts(
            job,
            loaded,
            chain([first, second], windows),
            *(path, out, "predicting"),
            workers=config.workers,
            cluster=config.cluster,
        )
        reading = Reading(**{name: counts[name] for name in vars(Reading())})
        notes = (
            *notes,
            *task.for_measuring().reading_notes(loaded.tokenizer, path.name, reading, length),
            *first.broken.notes(path.name),
            *unknown_notes(loaded.tokenizer, reading, path),
        )
        for note in notes:
            print_note(note)
        _note_tabs(out, counts["breaks"])
        return [f"{counts['rows']:,} predictions: {config.out}"]
    file = job.prepare(loaded, first)
    reading = Reading.of(loaded.tokenizer, file.examples, contents=task.contents(first))
    for note in (*notes, *file.notes, *unknown_notes(loaded.tokenizer, reading, first.path)):
        print_note(note)
    with progress_of("predicting") as progress:
        table = job.table(loaded, file, progress)
    if out is None:
        return table_text("", table).removesuffix("\n").split("\n")
    write_rows(out, table, job.numbers(table[0]))
    _note_tabs(out, job.breaks(first))
    return [f"{len(first)} predictions: {config.out}"]


def _note_tabs(out: Path, breaks: int) -> None:
    """Note what the columns of a file are written with, if its name does not say it, and in how
    many kept cells spaces stand for tabs and line breaks."""
    if not is_known(out):
        print_note(
            f"{out.name}: its columns are separated by tabs; a name that ends in .csv, .jsonl, "
            ".json or .parquet selects those formats"
        )
    if breaks:
        print_note(
            f"tabs and line breaks of {counted(breaks, 'kept cell')} are spaces in {out.name}; "
            "CSV, JSON and Parquet keep them"
        )


def _refuse_bulk(config: PredictConfig | EmbedConfig, of: str) -> None:
    """Refuse options that are for large files where they would do nothing."""
    given = {
        "workers": config.workers != 1,
        "cluster": config.cluster is not None,
        "broken": config.broken != "stop",
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"{' and '.join(names)}: for {of} only; leave it out.")


def _tags(loaded: LoadedModel) -> bool:
    """Whether the task is one of tags."""
    return TAGGER in loaded.heads and isinstance(loaded.task, TaggingTask)


def _tag_lines(model: Model, texts: Sequence[str]) -> list[str]:
    """Tab-separated, with a header: the entities of each text, or its words if the tags do not mark
    entities."""
    lines = ["text\ttype\tstart\tend\tprobability\tcharacters"]
    blocks = (texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK))
    found = (tagged for block in blocks for tagged in tag_texts(model.loaded, block))
    long = 0
    for number, tagged in enumerate(found):
        long += tagged.windows > 1
        rows = [(e.type, e.start, e.end, e.probability, e.text) for e in tagged.entities]
        if set(tagged.tags) - {OUTSIDE} and not rows:
            words = zip(tagged.tags, tagged.spans, tagged.probabilities, tagged.words, strict=True)
            rows = [(tag, *span, p, word) for tag, span, p, word in words]
        for tag, start, end, p, word in rows:
            shown = " ".join(word.split())  # an entity may have tabs or line breaks in it
            lines.append(f"{number}\t{tag}\t{start}\t{end}\t{p:.6f}\t{shown}")
    _note_windows(long, len(texts), choose_length(model.loaded, None))
    if len(lines) == 1:
        print_note(f"no entities found in {len(texts):,} text{'s'[: len(texts) != 1]}")
    return lines


def _prediction_lines(prediction: Prediction, task: Task[Any, Any]) -> list[str]:
    """Tab-separated, with a header: the label and a probability per label, or the scores."""
    if not prediction.labels:
        scores = ["\t".join(f"{value:.6g}" for value in row) for row in prediction.values.tolist()]
        return ["\t".join(prediction.names), *scores]
    header = "\t".join(["label", *(f"p({name})" for name in prediction.names)])
    shown = prediction.labels
    if isinstance(task, LabelTask) and task.several:
        shown = [*map(task.shown, shown)]
    rows = zip(shown, prediction.values.tolist(), strict=True)
    return [header, *("\t".join([label, *(f"{p:.6f}" for p in row)]) for label, row in rows)]


def _chosen(config: PredictConfig) -> list[str]:
    """The choices, most likely first."""
    with _open(config) as model:
        (probabilities,), cut = predict_choices(
            model.loaded, [config.context or ""], [config.choices]
        )
    if cut:
        print_note("the context or a choice was cut to the length the model was fine-tuned with")
    order = np.argsort(-probabilities, kind="stable")
    return [f"{probabilities[i]:6.1%}  {config.choices[i]}" for i in order]


def _answers(config: PredictConfig, question: str) -> list[str]:
    """Probability, position and text of each answer."""
    context = config.context
    if config.file is not None:
        context = _text_to_search(Path(config.file))
    if not (context or "").strip():
        raise InputError("the text to search is empty.", place=Place(config.file or "input"))
    with _open(config) as model:
        answers = model.answer(question, context or "", top=config.top)
    spans = model.loaded.task.options.spans
    if spans.no_answer is None:
        print_note(
            "the model folder does not say whether questions may have no answer, so every question "
            "is answered; with a --file of questions and a --task that has kind: spans and "
            "spans_no_answer: true they can be left unanswered"
        )
    length = choose_length(model.loaded, None)
    limit = query_limit(model.tokenizer, spans, length=length)
    texts = [question, context or ""]
    query, passage = map(len, model.tokenizer.encode_plain(texts))
    room = model.tokenizer.template.room(length, 2)
    if query > limit:
        print_note(f"the question was cut to {limit} of its {query} tokens")
    _note_windows(int(min(query, limit) + passage > room), 1, length)
    return [
        f"{a.probability:6.1%}  {f'{a.start}-{a.end}':>11}  "
        + (" ".join(a.text.split()) or "(no answer)")
        for a in answers
    ]


def _text_to_search(path: Path) -> str:
    """The text of a file, and notes on odd characters in it.

    Raises:
        InputError: it cannot be read, or holds something else than text.
    """
    refuse_records(path, "write the text to a .txt file")
    refuse_other_format(beginning_lines(path), path, "write the text alone to a .txt file")
    lines = [line for _, line in read_texts(path)]
    for note in damage_notes(damaged_characters(lines)).values():
        print_note(f"{path.name}: {note}")
    return "\n".join(lines)


def embed(config: EmbedConfig) -> str:
    """Write the vectors for `bothways embed`."""
    out = Path(config.out)
    # The texts are a column of the output themselves, but for arrays.
    keep = tuple(n for n in dict.fromkeys(config.keep) if n != "text" or out.suffix == WHOLE)
    check_format(out, keep, tokens=config.pooling == "tokens")
    _refuse_to_overwrite(out, config.file, config.task)
    how: dict[str, Any] = {
        "layers": config.layers,
        "combine": config.combine,
        "pooling": None if config.pooling == "auto" else config.pooling,
        "normalize": config.normalize,
        "prompt": config.prompt,
        "max_length": config.max_length,
        "long": config.long,
    }
    if config.file is None:
        _refuse_bulk(config, "a --file")
    with _open(config) as model:
        loaded = model.loaded
        windows = iter([FileTexts(tuple(config.texts))])
        if config.file is not None:
            at_once = out.suffix == WHOLE
            windows = text_windows(
                *(Path(config.file), loaded),
                text=config.text,
                task=config.task,
                keep=keep,
                form=config.form,
                skip=config.broken == "skip",
                whole=at_once,
            )
        first, second = next(windows), next(windows, None)
        if {*config.keep} - {*keep} and first.column not in ("text", None):
            raise ConfigError(
                f"keep: text is a column of the output, with the texts of {first.column!r}; rename "
                "yours in the file."
            )
        if second is not None:
            job = Embedding((config.model,), loaded.options, out.suffix, how)
            every, last = _with_last(chain([first, second], windows))
            about, counts = write_in_parts(
                job,
                loaded,
                every,
                *(Path(config.file or ""), out, "embedding"),
                workers=config.workers,
                cluster=config.cluster,
            )
            _note_column(Path(config.file or ""), last[-1], config.text)
            seen = (counts["rows"], counts["cut"], counts["long"])
            decomposed = counts["decomposed"]
            vectors, size, tokens = counts["vectors"], about["size"], config.pooling == "tokens"
        else:
            if config.file is not None:
                _note_column(Path(config.file), first, config.text)
            if not first.texts:
                raise InputError("there is no text to embed.", place=Place(config.file or "-"))
            with progress_of("embedding") as progress:
                found = embed_texts(loaded, first.texts, **how, progress=progress)
            seen, tokens = (len(first.texts), found.cut, found.long), found.pooled is None
            decomposed = count_decomposed(first.texts, loaded.tokenizer.normalize)
            if found.pooled is None:
                size = found.tokens[0].vectors.shape[1]
                vectors = sum(len(text.tokens) for text in found.tokens)
            else:
                vectors, size = found.pooled.shape
    if second is None:
        write_vectors(out, first.texts, found, first.kept)
    length = config.max_length or own_length(loaded, tokens=tokens) or loaded.config.positions
    _note_embedded(loaded, *seen, length)
    for note in decomposed_notes(decomposed, seen[0]):
        print_note(note)
    if tokens:
        return f"{vectors} vectors of size {size}, for the tokens of {seen[0]} texts: {config.out}"
    return f"{vectors} vectors of size {size}: {config.out}"


def _with_last(windows: Iterator[FileTexts]) -> tuple[Iterator[FileTexts], list[FileTexts]]:
    """Windows, and a list that has the last one, which knows all of the file, without its texts."""
    last: list[FileTexts] = []

    def passed() -> Iterator[FileTexts]:
        for window in windows:
            last[:] = [replace(window, texts=(), kept={})]
            yield window

    return passed(), last


def _note_embedded(loaded: LoadedModel, texts: int, cut: int, long: int, limit: int) -> None:
    if left_out := loaded.about.get("modules_left_out"):
        print_note(
            f"the model folder has further layers ({', '.join(left_out)}), which are not computed: "
            "the vectors are not those of sentence-transformers"
        )
    if settings := loaded.about.get("settings_left_out"):
        print_note(f"with sentence-transformers {' and '.join(settings)}; not so here")
    _note_cut(cut, texts, limit)
    if long:
        print_note(
            f"{long:,} of {texts:,} texts are longer than {limit} tokens and were read in "
            "overlapping windows"
        )


def evaluate(config: EvaluateConfig) -> list[str]:
    """Lines for `bothways evaluate`: a task on a labelled file, or pre-training on a corpus."""
    if config.predictions is not None:
        scores, notes = score_file(
            config.predictions, config.file, convention=config.convention, odds=config.odds
        )
        for note in notes:
            print_note(note)
        return [json.dumps(scores, indent=2)]
    with _open(config) as model:
        if Path(config.file).is_dir() and not holds_examples(Path(config.file)):
            if config.task is not None:
                raise InputError(
                    "is a folder, but --task needs a labelled file.",
                    place=Place(config.file or "input"),
                )
            from bothways.pretraining.evaluation import evaluate_pretraining

            return [evaluate_pretraining(model.loaded, config.file)]
        columns = _columns(model.loaded, config)
        _note_precision(model.loaded)
        with progress_of("predicting") as progress:
            evaluation = evaluate_file(
                model.loaded, config.file, options=columns, progress=progress
            )
    for note in evaluation.notes:
        print_note(note)
    return Evaluation(evaluation.scores, parts=evaluation.parts).lines()


def inspect(config: InspectConfig) -> list[str]:
    """Lines for `bothways inspect`: a row for each token; with ``out`` all is written there."""
    _refuse_to_overwrite(config.out, config.model)
    found: Inspection | Attribution
    with _open(config) as model:
        if config.attribute is None:
            found = model.inspect(config.text, config.text_b)
        else:
            found = model.attribute(
                config.text, config.text_b, target=config.target, method=config.attribute
            )
    if config.out is not None:
        path = Path(config.out)
        if path.suffix == ".html":
            found.to_html(path)
        else:
            write_json(path, found.as_json())
        return [f"{len(found)} tokens: {path}"]
    if isinstance(found, Attribution):
        return repr(found).splitlines()
    # The mean over the heads of each layer is what can be shown in a terminal.
    means = found.attentions.mean(1)
    rows = [["token", "id", "characters", *(f"layer {n + 1} reads" for n in range(len(means)))]]
    for n, (token, part) in enumerate(zip(found.tokens, found.parts.tolist(), strict=True)):
        place = "-".join(map(str, found.offsets[n].tolist())) if part >= 0 else ""
        most = means[:, n].argmax(-1).tolist()
        reads = [f"{found.tokens[j]} {means[at, n, j]:.2f}" for at, j in enumerate(most)]
        rows.append([token, str(found.ids[n]), place, *reads])
    print_note(
        "layer N reads: the token that gets most of this one's attention in the layer, and its "
        "share, as the mean over the heads; --out PAGE.html shows all heads"
    )
    return [*("\t".join(row) for row in rows), *repr(found).splitlines()[1:]]


def convert(config: ConvertConfig) -> str:
    """Convert a model to a bothways model folder, for `bothways convert`."""
    source, out = model_folder(config.source), Path(config.out)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ModelError(f"{out} exists already; choose a new folder.")
    loaded = load_model(source, vocabulary=config.tokenizer)
    for note in loaded.notes:
        print_note(note)
    if loaded.weights is None:
        raise ModelError(no_weights(source))
    loaded = with_heads(loaded, config.heads)
    loaded.refuse_part_of_head()
    about = {k: v for k, v in loaded.about.items() if k != "format"}
    here = Path(config.source).exists()
    about["converted_from"] = real_path(source).name if here else config.source
    loaded.about = about
    if loaded.fresh:  # what the source lacks is drawn by torch
        from bothways.model.engine import network_of
        from bothways.model.folder import save_model

        network = network_of(replace(loaded, options=EngineOptions(next(iter(engines())))))
        save_model(out, network, loaded.tokenizer, about, dtype=loaded.dtype)
    else:
        save_loaded(out, loaded)
    for note in loaded.differences():
        print_note(note)
    return f"model: {out}"


_ModelVerb = (
    FillMaskConfig
    | NextSentenceConfig
    | PredictConfig
    | RankConfig
    | EmbedConfig
    | EvaluateConfig
    | InspectConfig
)


@contextmanager
def _open(
    config: _ModelVerb, check: Callable[[LoadedModel], None] | None = None
) -> Iterator[Model]:
    """The model that a verb names, or an ensemble of several; the process is its engine's inside
    the block. ``check`` refuses a model before an engine is started for it."""
    check_engine(config.engine)
    options = EngineOptions(
        config.engine, config.device, config.precision, few=_computes_little(config)
    )
    if isinstance(config, PredictConfig | EvaluateConfig):  # a run folder is an ensemble too
        loaded = load_ensemble([config.model, *config.ensemble], options)
    else:
        loaded = load_model(config.model, options=options)
    if check is not None:
        check(loaded)
    for note in loaded.notes:
        print_note(note)
    with loaded.engine.working():
        yield Model(loaded)
    if loaded.options.timed:  # once on a machine; after an error, which stands alone, not at all
        print_note(loaded.options.reason)


def _computes_little(config: _ModelVerb) -> bool:
    """Whether a verb computes so few texts that starting an engine is most of its time."""
    if isinstance(config, EmbedConfig):
        return False  # the vectors of a text are the same as in a file of many
    if isinstance(config, InspectConfig) and config.attribute == "gradients":
        return False  # one engine alone gives them
    texts: Sequence[str] = getattr(config, "texts", ())
    return getattr(config, "file", None) is None and sum(map(len, texts)) <= _LITTLE


def _note_precision(loaded: LoadedModel) -> None:
    """Say so if dev was measured in another arithmetic."""
    precision = loaded.engine.precision
    # Folders of 0.1 were measured in the precision of training.
    measured = loaded.about.get("measured_in", loaded.about.get("precision", precision))
    if measured != precision:
        print_note(
            f"the model was measured on dev in {measured}, this is {precision}: scores may "
            f"differ in the last digits (--precision {measured} for the same)"
        )


def _refuse_to_overwrite(out: str | Path | None, *inputs: str | None) -> None:
    """Refuse to write to a file that is read, under whatever name."""
    for given in inputs:
        if out is None or given is None or not (Path(out).exists() and Path(given).exists()):
            continue
        if Path(out).samefile(given):
            raise ConfigError(
                f"--out would overwrite {given}, which is read ({out} is the same file); choose "
                "another name."
            )


def _note_windows(long: int, texts: int, length: int) -> None:
    if long:
        print_note(f"{long:,} of {texts:,} texts are longer than {length} tokens: read in windows")


def _note_column(path: Path, found: FileTexts, named: str | None) -> None:
    for note in found.notes:
        print_note(note)
    if found.column is not None and named is None:
        print_note(f"{path.name}: the texts are those of the column {found.column!r}")
    if found.other is not None:
        print_note(
            f"{path.name}: the second texts are not embedded; --text {found.other} embeds them"
        )


def _note_cut(cut: int, texts: int, limit: int) -> None:
    if cut:
        print_note(f"{cut:,} of {texts:,} texts were cut to {limit} tokens; the rest is ignored")


def _note_decomposed(texts: Sequence[str], tokenizer: Tokenizer) -> None:
    for note in decomposed_notes(count_decomposed(texts, tokenizer.normalize), len(texts)):
        print_note(note)
