"""The estimators of scikit-learn: its conventions, on texts, with a small encoder."""

from __future__ import annotations

import pickle
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks as checks
from sklearn.utils.validation import check_is_fitted

import bothways as bw
from bothways.errors import ConfigError, InputError
from bothways.sklearn import (
    MultiLabelClassifier,
    TextClassifier,
    TextEmbedder,
    TextRegressor,
    TextTagger,
)
from bothways.training.trainer import Trainer
from finetuning_examples import MAGIC, start_model, words

ALL = (TextClassifier, TextRegressor, MultiLabelClassifier, TextTagger, TextEmbedder)
QUICK: dict[str, Any] = {"lr": 3e-3, "max_length": 16, "precision": "fp32", "threads": 1}


def examples(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Is the magic word among the words?"""
    rng = np.random.default_rng(seed)
    texts = [words(rng, 6) for _ in range(count)]
    for text in texts[1::2]:
        text[int(rng.integers(6))] = MAGIC
    return [" ".join(text) for text in texts], ["without", "with"] * (count // 2)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def quick(start: Path) -> Callable[..., Any]:
    def make(kind: type[Any], **options: Any) -> Any:
        return kind(str(start), **{**QUICK, **options})

    return make


@pytest.fixture(scope="module")
def classifier(quick: Callable[..., Any]) -> Any:
    texts, labels = examples(192)
    return quick(TextClassifier, epochs=20).fit(texts, labels)


def test_a_classifier_learns_and_predicts(classifier: Any) -> None:
    texts, labels = examples(40, seed=5)
    assert classifier.classes_.tolist() == ["with", "without"]
    assert classifier.score(texts, labels) > 0.9
    proba = classifier.predict_proba(texts)
    assert proba.shape == (40, 2)
    assert np.allclose(proba.sum(1), 1)
    assert (classifier.classes_[proba.argmax(1)] == classifier.predict(texts)).all()
    assert classifier.model_.predict(texts).labels == classifier.predict(texts).tolist()


def test_texts_come_as_lists_arrays_and_columns(classifier: Any) -> None:
    texts, _ = examples(6, seed=6)
    expected = classifier.predict(texts).tolist()
    for given in (np.array(texts), np.array(texts, dtype=object), tuple(texts), pa.array(texts)):
        assert classifier.predict(given).tolist() == expected
    assert classifier.predict(np.array(texts)[:, None]).tolist() == expected
    alone = [classifier.predict([text])[0] for text in texts]
    assert alone == expected
    for wrong, message in (
        ("one text", "list of texts"),
        ([1], r"X: row 0: is 1"),
        ([], "no texts"),
    ):
        with pytest.raises((ValueError, InputError), match=message):
            classifier.predict(wrong)


def test_what_was_fitted_is_pickled_copied_and_saved(classifier: Any, tmp_path: Path) -> None:
    texts, _ = examples(8, seed=7)
    expected = classifier.predict_proba(texts)
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    for other in (
        pickle.loads(pickle.dumps(classifier)),
        joblib.load(tmp_path / "classifier.joblib"),
        TextClassifier.load(classifier.save(tmp_path / "saved")),
    ):
        assert (other.predict_proba(texts) == expected).all()
        assert other.classes_.tolist() == classifier.classes_.tolist()
    assert (bw.load(tmp_path / "saved").predict_proba(texts) == expected).all()
    with pytest.raises(ConfigError, match="exists already"):
        classifier.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="kind classification; TextRegressor loads"):
        TextRegressor.load(tmp_path / "saved")


def test_ctrl_c_leaves_an_estimator_as_new(
    quick: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also one that was fitted before, with other labels."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    texts, labels = examples(32)
    model = quick(TextClassifier, epochs=1).fit(texts, labels)
    others = [f"other {label}" for label in labels]

    def interrupt(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return step(*_)

    step = Trainer.step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupt)
        capsys.readouterr()
        with pytest.raises(KeyboardInterrupt) as raised:
            model.fit(texts, others)
        assert capsys.readouterr() == ("", "")
        with pytest.raises(KeyboardInterrupt):
            quick(TextClassifier, epochs=1, verbose=True).fit(texts, others)
    lines, notes = capsys.readouterr()
    assert "interrupted after step 1; nothing is kept" in lines
    assert str(tmp_path) not in lines + notes
    assert "note: without dev=, what is called dev is 32 training examples" in notes
    assert raised.value.__context__ is None
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    with pytest.raises(NotFittedError):
        model.predict(texts)
    assert {*model.fit(texts, others).predict(texts)} <= {*others}


def test_pairs(quick: Callable[..., Any]) -> None:
    a, labels = examples(32)
    pairs = [[text, "w9 w10"] for text in a]
    model = quick(TextClassifier, epochs=1).fit(pairs, labels)
    expected = model.predict_proba(pairs)
    assert (model.predict_proba(np.array(pairs)) == expected).all()
    frame = pa.table({"one": a, "two": ["w9 w10"] * 32})
    assert (model.predict_proba(frame) == expected).all()
    with pytest.raises(InputError, match="pairs"):
        model.predict(a)


def test_cross_validation_and_search(quick: Callable[..., Any]) -> None:
    texts, labels = examples(24)
    model = quick(TextClassifier, epochs=1)
    scores = cross_val_score(model, texts, labels, cv=2, scoring="f1_macro")
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()
    search = GridSearchCV(model, {"lr": [1e-3, 3e-3]}, cv=2).fit(np.array(texts), labels)
    assert search.best_params_["lr"] in (1e-3, 3e-3)
    assert search.predict(texts[:2]).shape == (2,)


def test_vectors_before_a_classifier(start: Path) -> None:
    texts, labels = examples(64)
    pipeline = make_pipeline(
        TextEmbedder(str(start)), LogisticRegression(class_weight="balanced", max_iter=500)
    )
    assert cross_val_score(pipeline, texts, labels, cv=2, scoring="f1_macro").shape == (2,)
    pipeline.fit(texts, labels)
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict_proba(texts) == pipeline.predict_proba(texts)).all()
    assert len(pipeline[0].get_feature_names_out()) == pipeline[0].transform(texts).shape[1]
    model = bw.load(start)
    assert (TextEmbedder(model).fit_transform(texts) == model.embed(texts)).all()
    assert (clone(TextEmbedder(model)).transform(texts[:1]) == model.embed(texts[:1])).all()


def test_regression(quick: Callable[..., Any]) -> None:
    texts, labels = examples(96)
    y = np.array([2.5 if label == "with" else -1.0 for label in labels])
    model = quick(TextRegressor, epochs=20).fit(texts, y)
    assert model.predict(texts).shape == (96,)
    assert model.score(texts, y) > 0.2
    both = quick(TextRegressor, epochs=1).fit(texts, np.stack([y, -y], 1))
    assert both.predict(texts).shape == (96, 2)
    with pytest.raises(ValueError, match="finite"):
        quick(TextRegressor).fit(texts, [np.inf] * 96)


def test_several_labels(quick: Callable[..., Any]) -> None:
    texts, labels = examples(64)
    given = [["magic", "any"] if label == "with" else ["any"] for label in labels]
    lists = quick(MultiLabelClassifier, epochs=4).fit(texts, given)
    assert lists.classes_.tolist() == ["any", "magic"]
    assert {*map(type, lists.predict(texts))} == {tuple}
    assert {label for own in lists.predict(texts) for label in own} <= {"any", "magic"}
    matrix = np.array([[1, label == "with"] for label in labels], dtype=int)
    model = quick(MultiLabelClassifier, epochs=4).fit(texts, matrix)
    assert model.predict(texts).shape == (64, 2)
    assert model.predict_proba(texts).shape == (64, 2)
    assert (model.predict(texts) == (model.predict_proba(texts) >= 0.5)).all()
    assert 0 <= model.score(texts, matrix) <= 1


def test_frames_of_labels_and_a_frozen_encoder(quick: Callable[..., Any]) -> None:
    """The columns of a frame are labels or scores; ``freeze`` is a parameter like others."""
    texts, labels = examples(32)
    is_magic = [int(label == "with") for label in labels]
    frame = pd.DataFrame({"any": [1] * 32, "magic": is_magic}, index=range(100, 132))
    quick_fit = {"lr": None, "freeze": True}
    several = quick(MultiLabelClassifier, **quick_fit).fit(texts, frame)
    assert several.classes_.tolist() == ["any", "magic"]
    assert several.predict(texts).shape == (32, 2)
    scores = quick(TextRegressor, **quick_fit).fit(texts, frame)
    assert scores.predict(texts).shape == (32, 2)
    one = quick(TextClassifier, **quick_fit).fit(texts, frame[["magic"]])
    assert one.classes_.tolist() == [0, 1]
    assert clone(one).get_params()["freeze"] is True
    by_options = quick(TextClassifier, lr=None, options={"freeze": True}).fit(texts, is_magic)
    assert (one.predict_proba(texts) == by_options.predict_proba(texts)).all()
    with pytest.raises(ValueError, match=r"y\[0\] is 'without'; give a list of labels"):
        quick(MultiLabelClassifier).fit(texts, labels)
    with pytest.raises(ValueError, match=r"y: could not convert .*; scores are numbers"):
        quick(TextRegressor).fit(texts, labels)
    with pytest.raises(ValueError, match="one class, 'a'; two"):
        quick(TextClassifier).fit(texts, ["a"] * 32)
    with pytest.raises(InputError, match=r"X\[0\] is a str and y\[0\] a str; give a list of words"):
        quick(TextTagger).fit(texts, labels)


def test_tags(quick: Callable[..., Any]) -> None:
    texts, _ = examples(96)
    sentences = [text.split() for text in texts]
    tags = [["B-X" if word == MAGIC else "O" for word in sentence] for sentence in sentences]
    model = quick(TextTagger, epochs=25, batch_size=16).fit(sentences, tags)
    assert sorted(model.classes_) == ["B-X", "I-X", "O"]
    found = model.predict(sentences)
    assert [len(own) for own in found] == [len(sentence) for sentence in sentences]
    assert model.score(sentences, tags) > 0.5
    assert cross_val_score(quick(TextTagger, epochs=1), sentences, tags, cv=2).shape == (2,)
    with pytest.raises(InputError, match="not as many tags"):
        quick(TextTagger).fit([["w1", "w2"]], [["O"]])


@pytest.mark.parametrize("kind", ALL)
def test_the_checks_of_scikit_learn_that_apply_to_text(kind: type[Any]) -> None:
    """``check_estimator`` leaves all but one out for estimators that take no matrix of numbers."""
    name, estimator = kind.__name__, kind()
    for check in (
        checks.check_estimator_cloneable,
        checks.check_estimator_tags_renamed,
        checks.check_valid_tag_types,
        checks.check_estimator_repr,
        checks.check_no_attributes_set_in_init,
        checks.check_parameters_default_constructible,
        checks.check_get_params_invariance,
        checks.check_set_params,
    ):
        check(name, clone(estimator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks.check_estimator(kind())
