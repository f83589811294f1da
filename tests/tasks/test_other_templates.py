"""Tasks, embeddings and pre-training with sequences that are not BERT's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, processors

from bothways.api.model import Model
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, InputError, LengthError, ModelError
from bothways.io.annotations.squad import Questions
from bothways.model.batch import collate
from bothways.model.engine import as_loaded
from bothways.objectives.masked import LeftToRight
from bothways.pretraining.batches import PhaseBatches, find_spans, join_spans
from bothways.pretraining.instances import create_instances
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.tasks.choice import encode_choices
from bothways.tasks.examples import encode_examples
from bothways.tasks.options import SpanOptions
from bothways.tasks.passages import encode_questions
from bothways.tasks.tagging import encode_sentences
from bothways.tasks.windows import encode_windows
from bothways.tokenization.normalization import normalizer, word_splitter
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import PairKind, Phase
from model_examples import small_bert, small_config
from pretraining_examples import random_documents
from tagging_examples import joined

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDS = [f"w{i}" for i in range(92)]
LONG = " ".join(f"w{i % 90}" for i in range(100))


def angled(step: Any, special: list[str] = SPECIAL) -> Tokenizer:
    """A tokenizer with special pieces spelled in angles, some of them in the middle of the ids."""
    pieces = [*WORDS[:40], *special, *WORDS[40:]]
    ids = {piece: i for i, piece in enumerate(pieces)}
    unknown = "<unk>" if "<unk>" in ids else "w0"
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    library.normalizer = normalizer(lowercase=True)
    library.pre_tokenizer = word_splitter()
    library.decoder = decoders.WordPiece()
    library.post_processor = step
    return Tokenizer(library)


DOUBLED = angled(processors.RobertaProcessing(("</s>", 42), ("<s>", 40)))
BARE = angled(processors.ByteLevel(), ["<unk>", "<mask>"])
NO_MASK = angled(processors.RobertaProcessing(("</s>", 41), ("<s>", 40)), ["<s>", "</s>"])
TOKENIZERS = {"doubled": DOUBLED, "bare": BARE}
EACH = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def model_of(tokenizer: Tokenizer, *, segments: int = 1, **heads: Any) -> Model:
    config = replace(small_config((3, 32, 4, 50, tokenizer.vocab_size)), segments=segments)
    return Model(as_loaded(small_bert(config, seed=4, **heads), tokenizer, {}))


def pieces(tokenizer: Tokenizer, examples: Any, number: int = 0) -> str:
    here = slice(*examples.bounds[number : number + 2])
    return " ".join(tokenizer.piece(i) for i in examples.tokens[here].tolist())


def test_pairs_have_two_separators_and_one_segment() -> None:
    examples = encode_examples(DOUBLED, ["w1 w2"], ["w3"], length=20)
    assert pieces(DOUBLED, examples) == "<s> w1 w2 </s> </s> w3 </s>"
    assert not examples.segments.any()
    choices = encode_choices(DOUBLED, ["w1"], [["w2", "w3 w4"]], length=20)
    assert pieces(DOUBLED, choices, 1) == "<s> w1 </s> </s> w3 w4 </s>"
    assert pieces(BARE, encode_examples(BARE, ["w1 w2"], ["w3"], length=20)) == "w1 w2 w3"


def test_lengths_that_leave_no_room() -> None:
    with pytest.raises(LengthError, match=r"5 tokens .* between <s> and </s>; .* at least 6"):
        encode_examples(DOUBLED, ["w1"], ["w2"], length=5)
    assert pieces(DOUBLED, encode_examples(DOUBLED, ["w1 w2"], ["w3"], length=6)).count("w") == 2
    with pytest.raises(LengthError, match="at least 2"):
        encode_examples(BARE, ["w1"], ["w2"], length=1)


@EACH
def test_long_texts_in_windows(tokenizer: Tokenizer) -> None:
    for b in (None, ["w1 w2 w3"]):
        examples = encode_windows(tokenizer, [LONG], b, length=12)
        lengths = np.diff(examples.bounds)
        assert lengths.max() == 12
        parts = 1 if b is None else 2
        text = 100 + 3 * (parts - 1)
        assert examples.whole is not None
        assert examples.whole.tolist() == [text + tokenizer.template.cost(parts)]
        seen = {int(i) for i in examples.tokens} - set(tokenizer.special_ids.tolist())
        assert len(seen) == 90, "every piece of the text is in some window"


@EACH
def test_words_are_read_at_their_own_pieces(tokenizer: Tokenizer) -> None:
    sentences = [["w1", "w2"], LONG.split(), ["\u200b", "w5"]]
    encoded = encode_sentences(tokenizer, joined(sentences), [0, 0, 1], length=12)
    read = encoded.examples.tokens[encoded.examples.read_positions]
    expected = [word for sentence in sentences for word in sentence]
    found = [tokenizer.piece(i) for i in read.tolist()]
    assert [word if word[0] == "w" else "<unk>" for word in expected] == found
    assert encoded.unreadable == 1
    characters = joined([["w1", "w2"], ["\u200b"]], spaces=False)
    assert encode_sentences(tokenizer, characters, None, length=12, spaces=False).unreadable == 1


def test_an_unreadable_word_without_a_piece_for_it() -> None:
    assert NO_MASK.unk_id == NO_MASK.id("w0") == NO_MASK.blank_id
    assert BARE.blank_id == BARE.id("<unk>")


@EACH
def test_answers_lie_in_the_passage(tokenizer: Tokenizer, tmp_path: Path) -> None:
    passage = "w10 w11 w12 w13 w14 w15 w16 w17"
    rows = Questions(tmp_path / "q.json", [passage], ["1"], ["w1 w2"], [0])
    shortest = tokenizer.template.cost(2) + 2
    file = encode_questions(tokenizer, rows, SpanOptions(stride=2), length=shortest + 4)
    examples = file.examples
    assert len(examples) == 3
    assert (np.diff(examples.bounds) == shortest + 4).all()
    words = []
    for number, (start, end) in enumerate(file.passage_bounds.tolist()):
        first = int(examples.bounds[number])
        for at in range(first, int(examples.bounds[number + 1])):
            inside = start <= at - first < end
            text = passage[file.starts[at] : file.ends[at]]
            assert text == (tokenizer.piece(int(examples.tokens[at])) if inside else "")
            words += [text] if file.best[at] else []
            assert inside or not file.best[at]
    assert words == passage.split(), "each once, in the window with the most context"
    with pytest.raises(LengthError, match="leaves no room for text"):
        encode_questions(tokenizer, rows, SpanOptions(), length=shortest - 1)


def test_embeddings_by_hand() -> None:
    model = model_of(DOUBLED)
    for text in ("w1 w2", LONG[:40], ""):
        tokens = DOUBLED.encode(text)
        with torch.inference_mode():
            inputs = collate([tokens.ids], [tokens.segments], max_positions=40)
            states = model.network.encoder(inputs)[: len(tokens.ids)].numpy()
        np.testing.assert_allclose(model.embed([text])[0], states.mean(0), atol=1e-5)
        np.testing.assert_allclose(model.embed([text], pooling="cls")[0], states[0], atol=1e-5)
        (own,) = model.embed_tokens([text])
        np.testing.assert_allclose(own.vectors, states[1:-1], atol=1e-5)
        assert own.tokens == tuple(text.split())


def test_embeddings_of_long_texts_and_without_special_tokens() -> None:
    for tokenizer in (DOUBLED, BARE):
        model = model_of(tokenizer)
        (own,) = model.embed_tokens([LONG], max_length=12)
        assert own.tokens == tuple(LONG.split())
        assert np.isfinite(model.embed([LONG], max_length=12)).all()
    own_mean = model_of(BARE).embed(["w1 w2"])[0]
    (own,) = model_of(BARE).embed_tokens(["w1 w2"])
    np.testing.assert_allclose(own_mean, own.vectors.mean(0), atol=1e-5)
    with pytest.raises(ConfigError, match="puts no special token before a text"):
        model_of(BARE).embed(["w1"], pooling="cls")


def test_fill_mask_knows_the_piece_by_its_role() -> None:
    model = model_of(DOUBLED, masked_lm=True)
    (fillings,) = model.fill_mask("w1 <mask> w3", top=200)
    found = {filling.piece for filling in fillings}
    assert found == set(WORDS), "never special pieces"
    assert fillings[0].text == f"w1 {fillings[0].piece} w3"
    with pytest.raises(InputError, match=r"has no <mask>; write <mask> where a token"):
        model.fill_mask("w1 [MASK] w3")
    with pytest.raises(ModelError, match="no mask token"):
        model_of(NO_MASK, masked_lm=True).fill_mask("w1 <mask>")


def test_pairs_need_as_many_segments_as_the_template_has() -> None:
    assert 0 < model_of(DOUBLED, next_sentence=True).next_sentence("w1", "w2") < 1
    segmented = angled(processors.BertProcessing(("</s>", 42), ("<s>", 40)))
    with pytest.raises(ModelError, match=r"1 segment embedding .* pairs of texts need 2"):
        model_of(segmented, next_sentence=True).next_sentence("w1", "w2")
    assert 0 < model_of(segmented, segments=2, next_sentence=True).next_sentence("w1", "w2") < 1


# ----------------------------------------------------------------------------------- pre-training


def store_of(tokenizer: Tokenizer) -> TokenStore:
    documents = [*random_documents(np.random.default_rng(1), 12, longest=9), [3, 4]]
    lengths = np.array([n for document in documents for n in document], dtype=np.int64)
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    ids = np.random.default_rng(2).choice(ordinary, int(lengths.sum())).astype(np.uint16)
    sentences = np.array([len(document) for document in documents], dtype=np.int64)
    return TokenStore.from_arrays(ids, lengths, sentences, tokenizer)


@EACH
@pytest.mark.parametrize("kind", ["next", "order", "full", "single"])
def test_sequences_are_those_of_the_template(tokenizer: Tokenizer, kind: PairKind) -> None:
    store, template = store_of(tokenizer), tokenizer.template
    options = PairOptions(kind=kind)
    instances = create_instances(store, length=20, options=options, seed=1, epoch=0)
    rows = np.arange(len(instances))
    spans = find_spans(store, instances, rows, kind=kind, length=20, seed=1, epoch=0)
    made = join_spans(store, spans)
    longest = 0
    for row in rows:
        mine = np.flatnonzero(spans.sequence == row)
        texts = [store.tokens_between(spans.start[s], spans.stop[s]).tolist() for s in mine]
        if kind in ("next", "order"):
            expected = template.wrap(*texts)[0].tolist()
        else:
            text = texts[0]
            for other in texts[1:]:
                text = [*text, *(special.id for special in template.border), *other]
            expected = template.wrap(text)[0].tolist()
        found = made.tokens[made.bounds[row] : made.bounds[row + 1]].tolist()
        assert found == expected
        longest = max(longest, len(found))
    assert longest == 20 or kind == "single"
    assert not made.segments.any()


def test_masks_are_the_tokenizers_own() -> None:
    batches = PhaseBatches(
        store_of(DOUBLED),
        Phase(length=20, batch=8, micro_batch=8),
        pairs=PairOptions(kind="full"),
        masking=MaskOptions(),
        seed=1,
    )
    (batch,) = batches.micro_batches(0)
    total = int(batch.inputs.bounds[-1])
    shown = batch.inputs.tokens[batch.masked.positions[: batch.masked.count]]
    assert (shown == DOUBLED.mask_id).float().mean() > 0.6
    assert not np.isin(batch.masked.ids[: batch.masked.count], DOUBLED.special_ids).any()
    assert (batch.inputs.tokens[:total] == DOUBLED.sep_id).sum() >= 8


def test_without_a_mask_piece_only_left_to_right() -> None:
    store = store_of(NO_MASK)
    phase = Phase(length=20, batch=2, micro_batch=2)
    given: dict[str, Any] = {"pairs": PairOptions(kind="single"), "seed": 1}
    with pytest.raises(ModelError, match="no mask token"):
        PhaseBatches(store, phase, masking=MaskOptions(), **given)
    batches = PhaseBatches(store, phase, masking=MaskOptions(), objective=LeftToRight(), **given)
    assert batches.micro_batches(0)[0].masked.count > 0
