"""Estimators of scikit-learn: texts and labels from memory in, a fine-tuned encoder inside.

``bw.sklearn.TextClassifier`` and the others work in ``cross_val_score``, ``GridSearchCV`` and
``Pipeline``, and can be pickled. What they hold is a model folder (:attr:`model_`), which ``save``
writes for :func:`bothways.load` and for transformers. No file is left where the program runs.

Texts are a list, an array or a column of a data frame; pairs of texts a list of pairs, an array or
a frame of two columns.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from bothways.api import rows
from bothways.api.calls import finetune
from bothways.api.model import Model, load
from bothways.errors import ConfigError, InputError, type_of
from bothways.io.files import new_folder
from bothways.io.run_folders import passing_runs
from bothways.io.terminal import print_note, shown
from bothways.runtime.entities import tag_texts
from bothways.runtime.pipeline import Prediction
from bothways.shipped import DEFAULT

_MEASURED = 32
"""Training examples that stand in for a dev set where none is held out: their scores are shown to
nobody."""

Texts = tuple[list[str], list[str] | None]


class ModelFiles:
    """A model folder of its own in the system's place for temporary files, for as long as this
    object lives; pickled, it is the content of its files.

    Args:
        folder: what is copied.
    """

    def __init__(self, folder: Path):
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        self.__setstate__({name: path.read_bytes() for name, path in files.items()})

    def __getstate__(self) -> dict[str, bytes]:
        files = [path for path in self.path.rglob("*") if path.is_file()]
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in files}

    def __setstate__(self, files: Mapping[str, bytes]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="bothways-")
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self._temporary.name) / "model"

    @cached_property
    def model(self) -> Model:
        """The model in it."""
        return load(self.path)


class _Finetuned(BaseEstimator):  # type: ignore[misc]
    """What the estimators that are fine-tuned have in common.

    Args:
        model: a model folder, the name of a bundled model, or a :class:`bothways.Model`.
        epochs: passes over the training data.
        lr: peak learning rate. Default: by the encoder's width.
        batch_size: batch size in examples.
        max_length: maximum sequence length in tokens. Default: 128.
        dev: share of the examples to hold out and measure on, such as 0.1; for options that choose
            by a score, such as ``options={"keep": "best"}``. Default: all are trained on.
        freeze: leave the encoder as it is and fit a linear head alone, in seconds; ``epochs``,
            ``lr`` and ``batch_size`` do not apply.
        seed: of the order of the data, the new head and dropout.
        device, precision, threads: as for `bothways finetune`, but in fp32 unless another is given:
            what ``auto`` chooses by a measurement may differ from one fit to the next. With
            ``n_jobs``, give one thread to each process.
        options: further options of :func:`bothways.finetune`, by name.
        verbose: show lines and a bar.

    Attributes:
        model_: the fine-tuned model.
        result_: the scores on dev as a dictionary, if a share is held out.
    """

    _kind = ""

    def __init__(
        self,
        model: Any = DEFAULT,
        *,
        epochs: int = 3,
        lr: float | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        dev: float | None = None,
        freeze: bool = False,
        seed: int = 0,
        device: str = "auto",
        precision: str = "fp32",
        threads: int = 0,
        options: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ):
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.max_length = max_length
        self.dev = dev
        self.freeze = freeze
        self.seed = seed
        self.device = device
        self.precision = precision
        self.threads = threads
        self.options = options
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        return tags

    @property
    def model_(self) -> Model:
        """The fine-tuned model."""
        check_is_fitted(self, "files_")
        model: Model = self.files_.model
        return model

    def save(self, folder: str | Path) -> Path:
        """Write the model as a folder, for :func:`bothways.load`, transformers and :meth:`load`.

        Args:
            folder: a new one.

        Raises:
            ConfigError: it exists already.
        """
        check_is_fitted(self, "files_")
        out = Path(folder)
        if out.exists():
            raise ConfigError(f"{out} exists already; choose a new folder.")
        with new_folder(out) as partial:
            shutil.copytree(self.files_.path, partial, dirs_exist_ok=True)
        return out

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The estimator of a model folder that was fine-tuned on such a task. Labels are texts, as
        a folder has them (``pickle`` and joblib keep their types).

        Raises:
            ModelError: it is no model folder.
            ConfigError: it was fine-tuned on another kind of task.
        """
        kind = load(folder).loaded.about.get("kind")
        own = cls(str(folder))
        if kind not in own._kinds:
            what = f"was fine-tuned on the kind {kind}" if kind else "has no head of a task"
            raise ConfigError(
                f"{folder} {what}; {cls.__name__} loads what was fine-tuned on the kind "
                f"{' or '.join(own._kinds)}."
            )
        own.files_ = ModelFiles(Path(folder))
        own._learned(own.files_.model.classes_)
        return own

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (self._kind,)

    def _learned(self, labels: list[str]) -> None:
        """Set what follows from the labels of a folder."""

    def _given(self) -> dict[str, Any]:
        """The options of the call; those that are unset are left out."""
        names = ("epochs", "lr", "batch_size", "max_length", "device", "precision", "threads")
        own = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.freeze:
            own["freeze"] = True
        if not isinstance(self.options, Mapping | None):
            raise ConfigError(f"options is {type_of(self.options)}; give a dictionary.")
        if twice := own.keys() & (self.options or {}).keys():
            raise ConfigError(f"options has {', '.join(twice)}, which has a parameter of its own.")
        return {**own, **(self.options or {})}

    def _tune(self, columns: dict[str, list[Any]], kind: str, **options: Any) -> None:
        """Fine-tune on examples, and keep the model. What was learned before is forgotten first, so
        that after Ctrl-C or an error the estimator is as new."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        size = len(next(iter(columns.values())))
        dev: Any = self.dev
        if dev is None:
            picked = np.unique(np.linspace(0, size - 1, min(size, _MEASURED)).astype(int))
            dev = {name: [values[i] for i in picked] for name, values in columns.items()}
            with shown(self.verbose):
                print_note(f"without dev=, what is called dev is {len(picked)} training examples")
        with tempfile.TemporaryDirectory(prefix="bothways-") as folder, passing_runs():
            result = finetune(
                self.model,
                columns,
                dev,
                text="text",
                text_b="text_b" if "text_b" in columns else None,
                label="label",
                kind=kind,
                run=Path(folder) / "run",
                seeds=[self.seed],
                verbose=self.verbose,
                **self._given(),
                **options,
            )
            self.files_ = ModelFiles(result.best.model)
            self.result_ = None if self.dev is None else dict(result.best.measurement.scores)

    def _predicted(self, X: Any) -> Prediction:
        check_is_fitted(self, "files_")
        a, b = texts_of(X)
        if not a:
            raise ValueError("X has no texts.")
        return self.model_.predict(a, b)


class TextClassifier(ClassifierMixin, _Finetuned):  # type: ignore[misc]
    """A class for each text or pair of texts, by a fine-tuned encoder.

    Args:
        model, epochs, lr, batch_size, max_length, dev, freeze, seed: as for all estimators of this
            module.
        device, precision, threads, options, verbose: likewise.
        class_weight: ``balanced``, a dictionary of weights by class, or None for equal ones.

    Attributes:
        classes_: the classes, sorted.
    """

    _kind = "classification"

    def __init__(
        self,
        model: Any = DEFAULT,
        *,
        epochs: int = 3,
        lr: float | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        dev: float | None = None,
        freeze: bool = False,
        seed: int = 0,
        device: str = "auto",
        precision: str = "fp32",
        threads: int = 0,
        options: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ):
        super().__init__(
            model,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            max_length=max_length,
            dev=dev,
            freeze=freeze,
            seed=seed,
            device=device,
            precision=precision,
            threads=threads,
            options=options,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune.

        Args:
            X: texts or pairs of texts.
            y: a class for each.

        Raises:
            ValueError: lengths differ, or there are fewer than two classes.
            InputError: something that is not a text, or ``y`` has strings and numbers.
        """
        columns, given = _examples(X, y)
        if any(isinstance(label, list) for label in given):
            if not all(isinstance(label, list) and len(label) == 1 for label in given):
                raise ValueError(
                    "y has several values for a text; give one class for each. Several labels are "
                    "for MultiLabelClassifier."
                )
            given = [label for (label,) in given]  # a matrix of one column
        _check_one_type(given)
        labels = np.asarray(given)
        check_classification_targets(labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            only = classes.tolist()[0]
            raise ValueError(f"y has one class, {only!r}; two or more are needed.")
        names = _names(classes)
        columns["label"] = [names[n] for n in numbers.tolist()]
        weights: Any = self.class_weight
        if isinstance(weights, Mapping):
            known = dict(zip(classes.tolist(), names, strict=True))
            if unknown := [key for key in weights if key not in known]:
                raise ValueError(
                    f"class_weight has {unknown[0]!r}, which is no class of y; they are "
                    f"{', '.join(map(repr, known))}."
                )
            weights = {known[key]: weight for key, weight in weights.items()}
        weighed = {} if weights is None else {"class_weights": weights}
        if weighed and "class_weights" in (self.options or {}):
            raise ValueError("class_weight and class_weights in options: leave one of them out.")
        self._tune(columns, self._kind, labels=names, **weighed)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each text, [texts]."""
        prediction = self._predicted(X)
        numbers = {name: n for n, name in enumerate(prediction.names)}
        classes: NDArray[Any] = self.classes_[[numbers[label] for label in prediction.labels]]
        return classes

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, [texts, classes], in the order of ``classes_``."""
        return self._predicted(X).values

    def _learned(self, labels: list[str]) -> None:
        self.classes_ = np.array(labels)


class TextRegressor(RegressorMixin, _Finetuned):  # type: ignore[misc]
    """A score, or several, for each text or pair of texts, by a fine-tuned encoder."""

    _kind, _several = "regression", "multiregression"

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (self._kind, self._several)

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune.

        Args:
            X: texts or pairs of texts.
            y: a number for each, or several: [texts, scores].

        Raises:
            ValueError: lengths differ, or a score is not a finite number.
        """
        columns, given = _examples(X, y)
        try:
            scores = np.asarray(given, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"y: {error}; scores are numbers.") from None
        if not np.isfinite(scores).all():
            raise ValueError("y has NaN or infinity; scores are finite numbers.")
        columns["label"] = scores.tolist()
        self._tune(columns, self._kind if scores.ndim == 1 else self._several)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The score of each text, [texts], or the scores, [texts, scores]."""
        values = self._predicted(X).values
        return values[:, 0] if values.shape[1] == 1 else values


class MultiLabelClassifier(ClassifierMixin, _Finetuned):  # type: ignore[misc]
    """Any number of labels for each text or pair of texts, by a fine-tuned encoder.

    A label is given from a probability of 0.5 on; with a share of ``dev``, from the threshold that
    is best there.

    Attributes:
        classes_: the labels; if they were given as a matrix of 0 and 1, the numbers of the columns,
            or the names of those of a frame.
    """

    _kind = "multilabel"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune.

        Args:
            X: texts or pairs of texts.
            y: a matrix or frame of 0 and 1, [texts, labels]; or for each text a list of its labels.

        Raises:
            ValueError: lengths differ, or a text has a string in place of a list.
            InputError: ``y`` has strings and numbers.
        """
        columns, given = _examples(X, y)
        lists = not _is_matrix(given)
        for place, labels in enumerate(given):
            if isinstance(labels, list) and None in labels:
                raise ValueError(f"y[{place}] has a missing label (NaN or None).")
            if not isinstance(labels, list):
                raise ValueError(
                    f"y[{place}] is {labels!r}; give a list of labels for each text, such as "
                    f"[{labels!r}], or a matrix of 0 and 1."
                )
        if lists:
            every = [label for labels in given for label in labels]
            _check_one_type(every)
            classes = np.unique(every)
            names = _names(classes)
            of_label = dict(zip(classes.tolist(), names, strict=True))
            columns["label"] = [[of_label[label] for label in labels] for labels in given]
        else:
            classes = np.array(rows.names_of(y) or range(len(given[0])))
            names = _names(classes)
            columns["label"] = [[names[n] for n, is_on in enumerate(r) if is_on] for r in given]
        # Thresholds are tuned on what is held out; what a model was trained on has none to tell.
        fixed = {} if self.dev is not None else {"multilabel_tune": "none"}
        self._tune(columns, self._kind, labels=names, **fixed)
        self.classes_, self.lists_ = classes, lists
        return self

    def predict(self, X: Any) -> Any:
        """The labels of each text, in the form that ``fit`` was given: a matrix [texts, labels] of
        0 and 1, or a list of tuples."""
        prediction = self._predicted(X)
        numbers = {name: n for n, name in enumerate(prediction.names)}
        found = [[numbers[label] for label in labels] for labels in prediction.labels]
        if self.lists_:
            return [tuple(self.classes_[n].item() for n in own) for own in found]
        matrix = np.zeros((len(found), len(self.classes_)), dtype=np.int64)
        for row, own in zip(matrix, found, strict=True):
            row[own] = 1
        return matrix

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each label, [texts, labels], in the order of ``classes_``."""
        return self._predicted(X).values

    def _learned(self, labels: list[str]) -> None:
        self.classes_, self.lists_ = np.array(labels), True


class TextTagger(_Finetuned):
    """A tag for each word of sentences, by a fine-tuned encoder.

    ``options={"scheme": "none"}`` if the tags are not entities, as for parts of speech.

    Attributes:
        classes_: the tags that the model learned.
    """

    _kind = "tagging"

    def fit(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> Self:
        """Fine-tune.

        Args:
            X: sentences, each a list of words.
            y: a tag for each word.

        Raises:
            InputError: a sentence has not as many tags as words.
        """
        columns = {"text": rows.listed(X, "X"), "label": rows.listed(y, "y")}
        _check_lengths(columns["text"], columns["label"])
        for place, (words, tags) in enumerate(zip(*columns.values(), strict=True)):
            if not (isinstance(words, list) and isinstance(tags, list)):
                raise InputError(
                    f"X[{place}] is {type_of(words)} and y[{place}] {type_of(tags)}; give a list "
                    "of words and a list of as many tags for each sentence."
                )
            if len(words) != len(tags):
                raise InputError(
                    f"X[{place}] has {len(words)} words, but not as many tags: y[{place}] has "
                    f"{len(tags)}."
                )
        self._tune(columns, self._kind)
        self._learned(self.files_.model.classes_)
        return self

    def predict(self, X: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tags of each sentence's words."""
        check_is_fitted(self, "files_")
        found = tag_texts(self.model_.loaded, rows.listed(X, "X"))
        return [[*tagged.tags] for tagged in found]

    def score(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> float:
        """The task's main metric: F1 of entities, or accuracy where tags are not entities."""
        check_is_fitted(self, "files_")
        found = self.model_.evaluate({"tokens": X, "tags": y})
        assert not isinstance(found, str)
        return next(iter(found.values()))

    def _learned(self, labels: list[str]) -> None:
        self.classes_ = np.array(labels)


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A vector for each text, by an encoder that stays as it is.

    Before a classifier of scikit-learn it is the quick way to labels: seconds on a CPU
    (``make_pipeline(TextEmbedder(), LogisticRegression(class_weight="balanced"))``).

    Args:
        model: a model folder, the name of a bundled model, or a :class:`bothways.Model`.
        pooling, normalize, max_length, layers, combine, long: as for :meth:`bothways.Model.embed`.
    """

    def __init__(
        self,
        model: Any = DEFAULT,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        layers: int | Sequence[int] = (-1,),
        combine: str = "mean",
        long: str | None = None,
    ):
        self.model = model
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = max_length
        self.layers = layers
        self.combine = combine
        self.long = long

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002
        """Nothing is learned."""
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The vectors, float32 [texts, H]."""
        texts, pairs = texts_of(X)
        if pairs is not None:
            raise ValueError(
                "X has pairs of texts, or two columns; vectors are of single texts: give one."
            )
        options: dict[str, Any] = {
            "pooling": self.pooling,
            "normalize": self.normalize,
            "max_length": self.max_length,
            "layers": self.layers,
            "combine": self.combine,
            "long": self.long,
        }
        return self._encoder.embed(texts, **options)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:  # noqa: ARG002
        """Names for the columns of the vectors."""
        width = self._encoder.loaded.config.hidden
        layers = [self.layers] if isinstance(self.layers, int) else self.layers
        width *= len(layers) if self.combine == "concat" else 1
        return np.array([f"textembedder{n}" for n in range(width)], dtype=object)

    @property
    def _encoder(self) -> Model:
        """The model, opened once."""
        opened = self.__dict__.get("_opened")
        if opened is None or opened[0] != str(self.model):
            model = self.model if isinstance(self.model, Model) else load(self.model)
            self._opened = opened = (str(self.model), model)
        found: Model = opened[1]
        return found

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_opened"}


# ----------------------------------------------------------------------------- texts and labels


def texts_of(X: Any) -> Texts:
    """Texts, and their second texts if they are pairs.

    Args:
        X: a list, an array or a column of texts; or of pairs, or an array or frame of two columns.

    Raises:
        InputError: something that is not a text, by its place.
        ValueError: more than two columns, or a single text.
    """
    if isinstance(X, str | bytes) or not (isinstance(X, Iterable) or hasattr(X, "columns")):
        raise ValueError(f"X is {type_of(X)}; give a list of texts.")
    if (names := rows.names_of(X)) is not None:
        listed = [rows.listed(X[name], "X") for name in names]
        items: list[Any] = [*map(list, zip(*listed, strict=True))]
    else:
        items = rows.listed(X, "X")
    widths = {len(item) for item in items if isinstance(item, list)}
    if not widths:
        return _checked(items), None
    if widths == {1}:
        return _checked([item[0] for item in items if isinstance(item, list)]), None
    if widths != {2} or not all(isinstance(item, list) for item in items):
        raise ValueError("X has rows of several columns; give texts, or pairs of texts.")
    return _checked([item[0] for item in items]), _checked([item[1] for item in items])


def _checked(texts: list[Any]) -> list[str]:
    return [*rows.checked_lines(texts, "X")]


def _examples(X: Any, y: Any) -> tuple[dict[str, list[Any]], list[Any]]:
    """The columns of a task's examples without the labels, and what ``y`` has for each."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None.")
    a, b = texts_of(X)
    labels = _labels(y)
    _check_lengths(a, labels)
    if b is not None and labels in (a, b):
        raise ValueError("a column of X is y; give the texts alone, such as X['text'].")
    return ({"text": a} if b is None else {"text": a, "text_b": b}), labels


def _labels(y: Any) -> list[Any]:
    """What ``y`` has for each text: of a frame its rows, or the values of its only column."""
    if (names := rows.names_of(y)) is not None:
        columns = [rows.listed(y[name], "y") for name in names]
        return columns[0] if len(columns) == 1 else [*map(list, zip(*columns, strict=True))]
    return rows.listed(y.toarray() if hasattr(y, "toarray") else y, "y")


def _check_lengths(X: list[Any], y: list[Any]) -> None:
    if not X:
        raise ValueError("X has no texts.")
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} texts and y {len(y)} labels; they must be as many.")
    for place, label in enumerate(y):
        if label is None:
            raise ValueError(f"y[{place}] is missing (NaN or None).")


def _check_one_type(labels: list[Any]) -> None:
    """Refuse strings beside other labels, which NumPy makes strings of, or cannot sort."""
    of_kinds = {isinstance(label, str): label for label in reversed(labels)}
    if len(of_kinds) > 1:
        raise InputError(
            f"y has strings and other values, such as {of_kinds[True]!r} and {of_kinds[False]!r}; "
            "give labels of one type."
        )


def _names(classes: NDArray[Any]) -> list[str]:
    """Names of classes for the model folder: as they are written, or numbers if they cannot be."""
    names = [str(value) for value in classes.tolist()]
    if len({*names}) < len(names) or any(n != n.strip() or len(n.split()) == 0 for n in names):
        return [str(number) for number in range(len(names))]
    return names


def _is_matrix(y: list[Any]) -> bool:
    """Whether labels are rows of 0 and 1, equally many in each."""
    return (
        all(isinstance(row, list) and row for row in y)
        and len({len(row) for row in y}) == 1
        and all(value in (0, 1) and not isinstance(value, str) for row in y for value in row)
    )
