"""The verbs that use a model folder: each reads options and gives the lines to print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bothways.config import MaskOptions, PairOptions, PretrainConfig
from bothways.corpus.documents import LONGEST_TEXT_MIB, read_lines
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, InputError, ModelError, StoreError
from bothways.files import write_text
from bothways.model.folder import Loaded, load_model, save_model
from bothways.pretraining.heldout import evaluation_batches
from bothways.pretraining.objective import measure
from bothways.pretraining.plan import unfit
from bothways.shipped import model_folder
from bothways.tasks.answers import score_file
from bothways.tasks.catalogue import task as declared_task
from bothways.tasks.kinds import task_of
from bothways.tasks.predict import (
    Prediction,
    evaluate_file,
    outputs_of,
    predict_choices,
    read_part,
    write_predictions,
)
from bothways.tasks.schemes import OUTSIDE
from bothways.tasks.submission import submission_rows
from bothways.tasks.vectors import (
    check_format,
    embed_texts,
    write_vectors,
)
from bothways.training.precision import choose_precision
from bothways.training.runtime import set_threads
from bothways.use import Model, load, put
from bothways.use_options import (
    AnswerOptions,
    ChooseOptions,
    ConvertOptions,
    DeviceName,
    EmbedOptions,
    EvaluateModelOptions,
    FillMaskOptions,
    NextSentenceOptions,
    PredictOptions,
    ScoreOptions,
)

_EVALUATION_SEQUENCES = 10_000
_EVALUATION_LENGTH = 128


def fill_mask(options: FillMaskOptions) -> list[str]:
    """Lines for `bothways fill-mask`."""
    model = _open(options.model, options.device)
    lines = []
    for text in options.texts:
        lines.append(text)
        for place in model.fill_mask(text, top=options.top):
            lines += [f"  {f.probability:6.1%}  {f.piece:<16} {f.text}" for f in place] + [""]
    cut = sum(model.tokens_cut(text) > 0 for text in options.texts)
    _note_cut(cut, len(options.texts), model.bert.config.positions)
    return lines


def next_sentence(options: NextSentenceOptions) -> str:
    """The line for `bothways next-sentence`."""
    model = _open(options.model, options.device)
    probability = model.next_sentence(options.text_a, options.text_b)
    cut = model.tokens_cut(options.text_a, options.text_b)
    if cut:
        _note(f"{cut} tokens of the pair were cut to fit into {model.bert.config.positions}")
    other = "swapped" if model.loaded.about.get("pairs") == "order" else "random"
    return f"follows: {probability:.1%}   {other}: {1 - probability:.1%}"


def choose(options: ChooseOptions) -> list[str]:
    """Lines for `bothways choose`: the choices, likeliest first."""
    model = _open(options.model, options.device)
    (found,), cut = predict_choices(model.loaded, [options.context], [options.choices])
    if cut:
        _note("the context or a choice was cut to the length the model was fine-tuned with")
    order = np.argsort(-found, kind="stable")
    return [f"{found[i]:6.1%}  {options.choices[i]}" for i in order]


def predict(options: PredictOptions) -> list[str]:
    """Lines for `bothways predict`; a file is written if one is asked for."""
    model = _open_task(options)
    if options.file is not None:
        return _predict_file(model.loaded, options)
    if model.bert.tagger is not None and options.text_b is None:
        lines = _tag_lines(model, options.texts)
    else:
        b = None if options.text_b is None else [options.text_b] * len(options.texts)
        prediction = model.predict(options.texts, b)
        _note_cut(prediction.cut, len(options.texts), prediction.length)
        _note_windows(prediction.several, len(options.texts), prediction.length)
        lines = _prediction_lines(prediction)
    if options.out is None:
        return lines
    write_text(Path(options.out), "\n".join(lines) + "\n")
    return [f"{len(options.texts)} predictions: {options.out}"]


def _predict_file(loaded: Loaded, options: PredictOptions) -> list[str]:
    """The lines of a file's predictions, in the task's format; or where they were written."""
    columns = None if options.task is None else declared_task(options.task).task
    if options.submission and loaded.model.tagger is not None:
        raise ConfigError("--submission is for one prediction an example; a tagger gives many.")
    task, part = read_part(loaded, options.file or "", labelled=False, options=columns)
    for note in part.notes:
        _note(note)
    dtype = choose_precision(options.precision, loaded.model.device).dtype
    found = task.decode(part, outputs_of(loaded, task, part.examples, dtype=dtype))
    if options.out is not None and not options.submission:
        write_predictions(Path(options.out), task, part, found)
    else:
        table = task.table(part, found)
        rows = submission_rows(table) if options.submission else table
        lines = ["\t".join(row) for row in rows]
        if options.out is None:
            return lines
        write_text(Path(options.out), "\n".join(lines) + "\n")
    return [f"{len(part.rows)} predictions: {options.out}"]


def _tag_lines(model: Model, texts: Sequence[str]) -> list[str]:
    """Tab-separated, with a header: each text's entities, or where the tags mark none, words."""
    lines = ["text\ttype\tstart\tend\tprobability\tcharacters"]
    for number, text in enumerate(texts):
        if not text.strip():  # a blank line among many has no word, and no rows
            continue
        found = model.tag(text)
        rows = [(e.type, e.start, e.end, e.probability, e.text) for e in found.entities]
        if set(found.tags) - {OUTSIDE} and not rows:
            words = zip(found.tags, found.spans, found.probabilities, found.words, strict=True)
            rows = [(tag, *span, sure, word) for tag, span, sure, word in words]
        lines += [f"{number}\t{t}\t{a}\t{b}\t{p:.6f}\t{word}" for t, a, b, p, word in rows]
    return lines


def _prediction_lines(prediction: Prediction) -> list[str]:
    """Tab-separated, with a header: label and a probability for each label, or the score."""
    if not prediction.labels:
        return ["score", *(f"{value:.6g}" for (value,) in prediction.values.tolist())]
    header = "\t".join(["label", *(f"p({name})" for name in prediction.names)])
    rows = zip(prediction.labels, prediction.values.tolist(), strict=True)
    return [header, *("\t".join([label, *(f"{p:.6f}" for p in row)]) for label, row in rows)]


def answer(options: AnswerOptions) -> list[str]:
    """Lines for `bothways answer`: probability, place and words of each answer."""
    context = options.context
    if options.file is not None:
        lines = read_lines(Path(options.file), max_line_mib=LONGEST_TEXT_MIB)
        context = "\n".join(line for _, line in lines)
    if not (context or "").strip():
        raise InputError("there is no text to look for an answer in.", path=options.file)
    model = _open(options.model, options.device)
    found = model.answer(options.question, context or "", top=options.top)
    limit = task_of(model.loaded).options.spans.query_length
    if len(model.tokenizer.encode(options.question).tokens) - 2 > limit:
        _note(f"the question was cut to {limit} tokens; what is beyond is not read")
    return [
        f"{a.probability:6.1%}  {f'{a.start}-{a.end}':>11}  "
        + (" ".join(a.text.split()) or "(no answer)")
        for a in found
    ]


def score(options: ScoreOptions) -> str:
    """The scores for `bothways score`, as JSON."""
    found, notes = score_file(options.predictions, options.data, convention=options.convention)
    for note in notes:
        _note(note)
    return json.dumps(found, indent=2)


def embed(options: EmbedOptions) -> str:
    """Write the vectors for `bothways embed`."""
    check_format(Path(options.out))
    model = _open(options.model, options.device)
    texts = options.texts
    if options.file is not None:
        lines = read_lines(Path(options.file), max_line_mib=LONGEST_TEXT_MIB)
        texts = tuple(text for _, text in lines)
    if not texts:
        raise InputError("no text to embed; the file is empty.", path=options.file)
    found = embed_texts(
        model.loaded,
        texts,
        layers=options.layers,
        combine=options.combine,
        pooling=options.pooling,
        normalize=options.normalize,
        length=options.length,
        long=options.long,
    )
    write_vectors(Path(options.out), texts, found)
    limit = options.length or model.bert.config.positions
    _note_cut(found.cut, len(texts), limit)
    if found.long:
        _note(
            f"{found.long:,} of {len(texts):,} texts are longer than {limit} tokens and were "
            "read in windows that overlap"
        )
    if found.pooled is None:
        width = found.tokens[0].vectors.shape[1]
        count = sum(len(own.tokens) for own in found.tokens)
        return f"{count} vectors of {width}, for the tokens of {len(texts)} texts: {options.out}"
    return f"{len(found.pooled)} vectors of {found.pooled.shape[1]}: {options.out}"


def evaluate(options: EvaluateModelOptions) -> list[str]:
    """Lines for `bothways evaluate`: a task head on a file, or pre-training on a corpus."""
    model = _open_task(options)
    if Path(options.file).is_dir():
        if options.task is not None:
            raise InputError("is a folder; --task goes with a labelled file.", path=options.file)
        return [evaluate_pretraining(model.loaded, options.file)]
    columns = None if options.task is None else declared_task(options.task).task
    dtype = choose_precision(options.precision, model.bert.device).dtype
    found = evaluate_file(model.loaded, options.file, options=columns, dtype=dtype)
    for note in found.notes:
        _note(note)
    return [f"{name}: {value:.4f}" for name, value in found.scores.items()]


def evaluate_pretraining(
    loaded: Loaded, corpus: str | Path, *, sequences: int = _EVALUATION_SEQUENCES
) -> str:
    """What the model was pre-trained for, masked LM and next sentence or their variants, measured
    on a corpus's held-out part, or on all of it if it has none.

    Args:
        loaded: a model with a masked-LM head.
        corpus: a corpus folder of the same vocabulary.
        sequences: how many to draw, at most one pass over the text, of 128 tokens (or what the
            encoder has positions for).

    Raises:
        ModelError: the model lacks a pre-training head.
        StoreError: the corpus is damaged, too small, or of another vocabulary.
    """
    if loaded.model.masked_lm is None:
        raise ModelError(
            "this model lacks the pre-training heads that a corpus is measured with; use a folder "
            "that `bothways pretrain` wrote, or name a labelled file (.tsv or .jsonl)."
        )
    recipe = _pretraining_recipe(loaded)
    kind = recipe.pairs.kind
    store = TokenStore.open(corpus, "heldout")
    part = "held-out part"
    if unfit(store, kind):
        store, part = TokenStore.open(corpus), "all documents, for it has no held-out part"
    if store.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise StoreError(
            f"{corpus} was built with another vocabulary than the model has; build it again with "
            "--tokenizer and the model folder."
        )
    length = min(_EVALUATION_LENGTH, loaded.model.config.positions)
    batches = evaluation_batches(store, length, sequences, recipe)
    result = measure(loaded.model, batches, torch.float32, kind)
    what = "sequences" if result.pairs is None else "pairs"
    line = (
        f"{corpus} ({part}), {result.sequences:,} {what}, {result.targets:,} "
        f"{'' if result.causal else 'masked '}tokens: {result.sentence()}"
    )
    if result.pairs is None:
        return line
    accuracy = result.pairs.accuracy
    error = (accuracy * (1 - accuracy) / result.sequences) ** 0.5
    return f"{line} (standard error {error:.2%})"


def _pretraining_recipe(loaded: Loaded) -> PretrainConfig:
    """The kinds of sequences and targets that a model was pre-trained on; the paper's, or without a
    next-sentence head single segments, where its folder does not say."""
    default = "single" if loaded.model.next_sentence is None else "next"
    pairs = PairOptions(kind=loaded.about.get("pairs", default))
    ltr, masking = loaded.model.config.left_to_right, loaded.about.get("masking", "pieces")
    return PretrainConfig(
        pairs=pairs, masking=MaskOptions(kind="left_to_right" if ltr else masking)
    )


def convert(options: ConvertOptions) -> str:
    """Rewrite what can be loaded as a model folder of ours, for `bothways convert`."""
    source, out = model_folder(options.source), Path(options.out)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ModelError(f"{out} exists already; choose a new folder.")
    loaded = load_model(source, vocabulary=options.vocab)
    about = {k: v for k, v in loaded.about.items() if k != "format"}
    about["converted_from"] = source.resolve().name
    save_model(out, loaded.model, loaded.tokenizer, about)
    if loaded.unused:
        _note(f"left out, not used here: {', '.join(loaded.unused)}")
    if loaded.fresh:
        _note(f"not in the source, newly drawn: {', '.join(loaded.fresh)}")
    return f"model: {out}"


def _open(folder: str, device: DeviceName) -> Model:
    set_threads(0)
    return put(load_model(folder), device)


def _open_task(options: PredictOptions | EvaluateModelOptions) -> Model:
    """A model or an ensemble; a run folder is one too."""
    set_threads(0)
    return load(options.model, *options.ensemble, device=options.device)


def _note(text: str) -> None:
    """What a user must know beside the result; on standard error, as results are piped on."""
    print(f"note: {text}", file=sys.stderr)


def _note_windows(several: int, texts: int, length: int) -> None:
    if several:
        _note(f"{several:,} of {texts:,} texts are longer than {length} tokens: read in windows")


def _note_cut(cut: int, texts: int, limit: int) -> None:
    if cut:
        _note(f"{cut:,} of {texts:,} texts were cut to {limit} tokens; what is beyond is not read")
