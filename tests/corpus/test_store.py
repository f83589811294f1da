"""corpus/store.py: what was written is what is read, and damage is named."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.corpus import store as module
from bothways.corpus.store import (
    Manifest,
    TokenStore,
    id_type,
    options_fingerprint,
    verify_store,
    write_shard,
)
from bothways.errors import StoreError
from bothways.tokenization.tokenizer import Tokenizer

OPTIONS = {"heldout": 0.0}


def make_store(
    folder: Path, tokenizer: Tokenizer, shards: list[list[list[list[int]]]], **changes: int
) -> Path:
    """A corpus folder with these ids by shard, document and sentence as its training part."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    written = []
    for number, documents in enumerate(shards):
        sentences = [sentence for document in documents for sentence in document]
        vocab_size = changes.get("vocab_size", tokenizer.vocab_size)
        written.append(
            write_shard(
                folder / f"train-{number:05}.arrow",
                np.array([i for s in sentences for i in s], dtype=id_type(vocab_size)),
                np.array([len(s) for s in sentences]),
                np.array([len(d) for d in documents]),
                tokenizer.fingerprint,
                options_fingerprint(OPTIONS),
            )
        )
    Manifest(
        options={**OPTIONS, "out": str(folder)},
        vocabulary=tokenizer.fingerprint,
        vocab_size=changes.get("vocab_size", tokenizer.vocab_size),
        shards={"train": written, "heldout": []},
        report={},
    ).write(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path, tiny_tokenizer: Tokenizer) -> Path:
    """Two shards with 2 + 1 documents."""
    return make_store(
        tmp_path / "corpus",
        tiny_tokenizer,
        [[[[5, 6, 7], [8]], [[9, 10], [11, 12]]], [[[13], [14], [15, 16]]]],
    )


sentences = st.lists(st.integers(0, 65_535), min_size=1, max_size=5)
documents = st.lists(sentences, min_size=1, max_size=4)


@settings(max_examples=40)
@given(shards=st.lists(st.lists(documents, min_size=1, max_size=4), max_size=3), wide=st.booleans())
def test_every_document_and_sentence_comes_back(
    shards: list[list[list[list[int]]]],
    wide: bool,
    tiny_tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    vocab_size = 2**16 + wide
    store = TokenStore.open(make_store(folder, tiny_tokenizer, shards, vocab_size=vocab_size))
    expected = [document for shard in shards for document in shard]
    found = [
        [
            store.tokens_between(*store.sentence_bounds[s : s + 2].tolist()).tolist()
            for s in range(store.document_bounds[d], store.document_bounds[d + 1])
        ]
        for d in range(store.documents)
    ]
    assert found == expected
    assert (store.documents, store.sentences) == (len(expected), sum(map(len, expected)))
    assert store.tokens == store.sentence_bounds[-1]
    assert store.tokens_between(0, store.tokens).tolist() == [
        i for document in expected for sentence in document for i in sentence
    ]
    assert store.tokens_between(0, 0).dtype == (np.uint32 if wide else np.uint16)


def test_ids_are_views_of_the_file(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    before = pa.total_allocated_bytes()
    found = store.tokens_between(1, 5)
    assert found.tolist() == [6, 7, 8, 9]
    assert found.dtype == np.uint16
    assert not found.flags.owndata
    assert not found.flags.writeable
    assert pa.total_allocated_bytes() == before
    again = store.tokens_between(1, 5)
    assert found.__array_interface__["data"] == again.__array_interface__["data"]


def test_a_document_of_more_ids_than_32_bits_count(
    tmp_path: Path, tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_OFFSET", 3)
    folder = make_store(tmp_path / "corpus", tiny_tokenizer, [[[[5, 6], [7]]], [[[8, 9], [5, 5]]]])
    kinds = [
        str(pa.ipc.open_file(folder / f"train-0000{n}.arrow").schema.field("sentences").type)
        for n in range(2)
    ]
    assert [kind.startswith("large_list") for kind in kinds] == [False, True]
    store = TokenStore.open(folder)
    assert store.tokens_between(0, 7).tolist() == [5, 6, 7, 8, 9, 5, 5]
    assert store.document_bounds.tolist() == [0, 2, 4]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 14), (14, 15)])
def test_ranges_outside_the_split_are_refused(start: int, stop: int, corpus: Path) -> None:
    with pytest.raises(IndexError):
        TokenStore.open(corpus).tokens_between(start, stop)


def test_an_empty_heldout_part_opens(corpus: Path) -> None:
    store = TokenStore.open(corpus, "heldout")
    assert (store.documents, store.sentences, store.tokens) == (0, 0, 0)
    assert store.document_bounds.tolist() == store.sentence_bounds.tolist() == [0]


def test_the_tokenizer_is_the_one_that_made_the_ids(
    corpus: Path, tiny_tokenizer: Tokenizer
) -> None:
    assert TokenStore.open(corpus).tokenizer.fingerprint == tiny_tokenizer.fingerprint
    Tokenizer.from_pieces(tiny_tokenizer.pieces, lowercase=False).save(corpus)
    with pytest.raises(StoreError, match="not the one that made the ids"):
        _ = TokenStore.open(corpus).tokenizer
    assert any("not the one that made the ids" in problem for problem in verify_store(corpus))


def test_fingerprint_is_of_the_content_alone(
    corpus: Path, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    same = make_store(
        tmp_path / "elsewhere",
        tiny_tokenizer,
        [[[[5, 6, 7], [8]], [[9, 10], [11, 12]]], [[[13], [14], [15, 16]]]],
    )
    other = make_store(
        tmp_path / "other", tiny_tokenizer, [[[[5, 6, 7], [8]], [[9, 10], [11, 13]]]]
    )
    prints = [TokenStore.open(folder).fingerprint for folder in (corpus, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_a_sound_folder_has_no_problems(corpus: Path, tiny_corpus: Path) -> None:
    assert verify_store(corpus) == []
    assert verify_store(tiny_corpus) == []


# ------------------------------------------------------------------------------------------ damage


def refused(folder: Path, *words: str) -> None:
    """Both opening and doctor name the damage and what to do."""
    with pytest.raises(StoreError) as caught:
        TokenStore.open(folder)
    problems = verify_store(folder)
    for word in (*words, "bothways corpus"):
        assert word in str(caught.value)
        assert any(word in problem for problem in problems)


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_truncated_shard(size: int, corpus: Path) -> None:
    path = corpus / "train-00001.arrow"
    path.write_bytes(path.read_bytes()[:size])
    refused(corpus, str(path), "checksum differs")


def test_a_longer_shard(corpus: Path) -> None:
    path = corpus / "train-00000.arrow"
    path.write_bytes(path.read_bytes() + b"x")
    refused(corpus, str(path), "checksum differs")


def test_a_missing_shard(corpus: Path) -> None:
    (corpus / "train-00000.arrow").unlink()
    refused(corpus, "train-00000.arrow", "cannot be read")


def test_no_manifest(corpus: Path) -> None:
    (corpus / "corpus.json").unlink()
    refused(corpus, str(corpus), "no corpus.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "fingerprint": "x"}', "\xff"])
def test_a_damaged_manifest(text: str, corpus: Path) -> None:
    (corpus / "corpus.json").write_bytes(text.encode("latin-1"))
    refused(corpus, "corpus.json", "damaged")


def test_a_manifest_changed_by_hand(corpus: Path) -> None:
    path = corpus / "corpus.json"
    manifest = json.loads(path.read_text())
    manifest["options"]["heldout"] = 0.5
    path.write_text(json.dumps(manifest))
    refused(corpus, "changed since it was written")


def test_a_later_format(corpus: Path) -> None:
    path = corpus / "corpus.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    refused(corpus, "format 3")


def test_a_shard_of_another_vocabulary(
    corpus: Path, tmp_path: Path, tiny_tokenizer: Tokenizer
) -> None:
    cased = Tokenizer.from_pieces(tiny_tokenizer.pieces, lowercase=False)
    other = make_store(tmp_path / "other", cased, [[[[5, 6, 7], [8]], [[9, 10], [11, 12]]]])
    shutil.copy(other / "train-00000.arrow", corpus)
    refused(corpus, "train-00000.arrow")


def test_a_shard_of_other_lengths(corpus: Path, tmp_path: Path, tiny_tokenizer: Tokenizer) -> None:
    """As many ids, sentences and documents: only the lengths tell."""
    other = make_store(tmp_path / "o", tiny_tokenizer, [[[[5, 6], [7, 8]], [[9, 10], [11, 12]]]])
    assert len((other / "train-00000.arrow").read_bytes()) == len(
        (corpus / "train-00000.arrow").read_bytes()
    )
    shutil.copy(other / "train-00000.arrow", corpus)
    refused(corpus, "train-00000.arrow")


def test_a_flipped_byte_is_found_by_opening_or_is_an_id(corpus: Path) -> None:
    path = corpus / "train-00000.arrow"
    sound = path.read_bytes()
    expected = TokenStore.open(corpus)
    unseen = 0
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
        assert any("checksum" in problem for problem in verify_store(corpus))
        # Opening has no other way to fail: not by a crash, and not with other lengths.
        with contextlib.suppress(StoreError):
            store = TokenStore.open(corpus)
            assert np.array_equal(store.sentence_bounds, expected.sentence_bounds)
            assert np.array_equal(store.document_bounds, expected.document_bounds)
            unseen += 1
    assert unseen == 2 * 8, "bytes of the eight ids"


def test_doctor_names_every_problem(corpus: Path) -> None:
    for name in ("train-00000.arrow", "train-00001.arrow"):
        (corpus / name).unlink()
    for name in ("vocab.txt", "tokenizer.json"):
        (corpus / name).unlink()
    assert len(verify_store(corpus)) == 3
