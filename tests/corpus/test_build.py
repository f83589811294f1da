"""corpus/build.py: the store holds the text's ids, whatever built it, and bad text is refused."""

from __future__ import annotations

import errno
import lzma
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from bothways.corpus import build, encode, sources
from bothways.corpus.assemble import SourceRange, heldout_below, join_single_sentences
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import SPLITS, TokenStore, verify_store
from bothways.errors import BothwaysError, ConfigError, DiskError, InputError
from bothways.tokenization.tokenizer import Tokenizer

Config = Callable[..., CorpusConfig]


@pytest.fixture
def config(tmp_path: Path, tiny_text_file: Path, tiny_tokenizer_folder: Path) -> Config:
    """Options for ``tiny_text_file``, or for other text written to a file of its own."""

    def make(text: str | bytes | None = None, **options: Any) -> CorpusConfig:
        if text is not None:
            path = tmp_path / "text" / "given.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            options["files"] = (str(path),)
        return CorpusConfig(
            **{
                "files": (str(tiny_text_file),),
                "tokenizer": str(tiny_tokenizer_folder),
                "out": str(tmp_path / "corpus"),
                **options,
            }
        )

    return make


def documents_of(store: TokenStore) -> list[list[list[int]]]:
    """Ids by document and sentence."""
    return [
        [
            store.tokens_between(*store.sentence_bounds[s : s + 2].tolist()).tolist()
            for s in range(store.document_bounds[d], store.document_bounds[d + 1])
        ]
        for d in range(store.documents)
    ]


def all_documents(folder: str | Path) -> dict[str, list[list[list[int]]]]:
    return {split: documents_of(TokenStore.open(folder, split)) for split in SPLITS}


def contents(folder: str | Path) -> dict[str, bytes]:
    """Every file but the manifest, whose report has the time it took."""
    paths = sorted(Path(folder).iterdir())
    return {path.name: path.read_bytes() for path in paths if path.name != "corpus.json"}


# ------------------------------------------------------------------------------------- what is kept


def test_the_store_holds_the_ids_of_the_text(
    tiny_corpus: Path, tiny_documents: list[list[str]], tiny_tokenizer: Tokenizer
) -> None:
    expected = [tiny_tokenizer.encode_plain(document) for document in tiny_documents]
    found = all_documents(tiny_corpus)
    assert 2 <= len(found["heldout"]) < 30
    assert len(list(tiny_corpus.glob("train-*.arrow"))) > 1
    # Each split in the order of the text, and together all of it.
    for documents in found.values():
        assert documents == [document for document in expected if document in documents]
    assert sorted(found["train"] + found["heldout"]) == sorted(expected)


words = st.text("ab.?!é안 \u200b\t", max_size=12)
texts = st.lists(st.lists(words, max_size=4), max_size=6)


@settings(max_examples=40)
@given(files=st.lists(texts, min_size=1, max_size=3), by_file=st.booleans(), drop=st.booleans())
@example(
    files=[[["a. b."], ["\u200b"], ["b"], ["a! b?", "\u200b", "a"]]], by_file=False, drop=False
)
def test_tokens_in_order_equal_direct_encoding(
    files: list[list[list[str]]],
    by_file: bool,
    drop: bool,
    tiny_tokenizer: Tokenizer,
    tiny_tokenizer_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("build")
    expected: list[list[list[int]]] = []
    count = 0
    for number, documents in enumerate(files):
        text = "\n\n".join("\n".join(lines) for lines in documents)
        (folder / f"{number}.txt").write_text(text)
        blocks: list[list[str]] = [[]]
        for line in text.split("\n"):
            if line.strip():
                blocks[-1].append(line.strip())
            elif not by_file:
                blocks.append([])
        encoded = [[ids for ids in tiny_tokenizer.encode_plain(block) if ids] for block in blocks]
        encoded = [document for document in encoded if document]
        expected.extend(d for d in encoded if len(d) > 1 or not drop)
        if not drop and len(encoded) == 1 and len(encoded[0]) == 1:
            expected.pop()  # one sentence alone in its file: nothing to join it to
        longer = sum(len(document) > 1 for document in encoded)
        count += longer or (not drop and len(encoded) > 1)
    options = CorpusConfig(
        files=(str(folder),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(folder / "corpus"),
        documents="file" if by_file else "blank",
        sentences="line",
        single_sentence="drop" if drop else "join",
        heldout=0,
        shard_tokens=7,
    )
    if count < 2:
        with pytest.raises(InputError, match=r"no text|has [01] document"):
            build_corpus(options)
        return
    build_corpus(options)
    found = all_documents(folder / "corpus")
    assert [s for d in found["train"] for s in d] == [s for d in expected for s in d]
    assert all(len(document) >= 2 for document in found["train"])
    assert len(found["train"]) == count
    assert found["heldout"] == []
    assert verify_store(folder / "corpus") == []


def test_lines_are_split_into_sentences(config: Config, tiny_tokenizer: Tokenizer) -> None:
    options = config("The king sold. A sailor lost.\nMy aunt found!\n\nThe bread. The clock.\n")
    build_corpus(replace(options, heldout=0))
    sentences = [
        ["The king sold.", "A sailor lost.", "My aunt found!"],
        ["The bread.", "The clock."],
    ]
    expected = [tiny_tokenizer.encode_plain(document) for document in sentences]
    assert all_documents(options.out)["train"] == expected


@pytest.mark.parametrize(
    ("asked", "worth", "used"), [(-1, 10**6, 1), (-1, 1, -1), (2, 10**6, 2), (1, 1, 1)]
)
def test_little_text_takes_one_process(
    asked: int, worth: int, used: int, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def in_one(*args: Any, workers: int, **options: Any) -> Any:
        seen.append(workers)
        return in_processes(*args, workers=1, **options)

    in_processes = build.in_processes
    monkeypatch.setattr(build, "in_processes", in_one)
    monkeypatch.setattr(build, "_WORTH_PROCESSES", worth)
    build_corpus(config(b"One here. Two.\n\nThree. Four.\n", workers=asked))
    assert seen == [used]


def test_any_number_of_workers_and_any_batches_give_the_same_bytes(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = config(heldout=0.2, shard_tokens=700)
    build_corpus(options)
    expected = contents(options.out)
    fingerprint = TokenStore.open(options.out).fingerprint
    assert len(expected) > 5
    monkeypatch.setattr(sources, "UNIT_BYTES", 300)
    for workers in (1, 3):
        build_corpus(replace(options, workers=workers))
        assert contents(options.out) == expected
        assert TokenStore.open(options.out).fingerprint == fingerprint


def test_the_report_counts_what_is_there(config: Config) -> None:
    text = "a b\nc ξ\n\nheading\n\nd e f\n\u200b\ng\n"
    options = config(text, heldout=0, sentences="line")
    report = build_corpus(options)
    store = TokenStore.open(options.out)
    assert report["train"]["documents"] == store.documents == 2
    assert report["train"]["sentences"] == store.sentences == 5
    assert report["train"]["tokens"] == store.tokens == 15
    assert report["unknown_rate"] == pytest.approx(1 / 15)
    assert report["special_tokens"] == 0
    assert report["single_sentence_documents"] == {"joined": 1, "dropped": 0}
    assert report["single_sentence_note"] is None
    assert report["empty_sentences_dropped"] == 1
    assert report["heldout"]["documents"] == 0
    assert "heldout is 0" in report["heldout_note"]
    quantiles = report["train"]["sentence_tokens"]
    assert (quantiles["min"], quantiles["p50"], quantiles["max"]) == (1, 2, 7)
    assert report["train"]["document_tokens"]["max"] == 11
    assert report["text_mb"] > 0
    assert report["mb_per_second"] > 0


def test_counts_are_those_of_all_units_shards_and_splits(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"a b\nc ξ [SEP]\n\nd e f\n\u200b\ng {'ξ ' * n}\n\n" for n in range(12))
    options = config(text, heldout=0.4, sentences="line", shard_tokens=20)
    whole = build_corpus(options)
    monkeypatch.setattr(sources, "UNIT_BYTES", 30)
    again = build_corpus(options)
    assert again["empty_sentences_dropped"] == whole["empty_sentences_dropped"] == 12
    megabytes = whole["text_mb"]
    assert 1e6 * megabytes == pytest.approx(round(1e6 * megabytes), abs=1e-6), "of 10**6 bytes"
    tokens = unknown = 0
    for split in SPLITS:
        store = TokenStore.open(options.out, split)
        ids = store.tokens_between(0, store.tokens)
        tokens += len(ids)
        unknown += int((ids == store.tokenizer.unk_id).sum())
        assert again[split]["tokens"] == len(ids) > 0
    assert again["unknown_rate"] == whole["unknown_rate"] == pytest.approx(unknown / tokens)
    assert again["special_tokens"] == whole["special_tokens"] == 12


def test_the_language_is_that_of_the_options(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, split = set(), encode.split_paragraphs

    def watched(*text: Any, **options: Any) -> Any:
        seen.add(options["language"])
        return split(*text, **options)

    monkeypatch.setattr(encode, "split_paragraphs", watched)
    build_corpus(config(language="de"))
    assert seen == {"de"}


def test_documents_under_one_heading_are_held_out_each_by_itself(config: Config) -> None:
    text = "\n\n".join(f"Contents.\n\nThe king {n} sold. A boat!" for n in range(60))
    report = build_corpus(config(text, heldout=0.5))
    assert 15 < report["heldout"]["documents"] < 45


def test_progress_goes_up_to_the_size_on_disk(
    config: Config, tiny_text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "UNIT_BYTES", 300)
    packed = tmp_path / "packed.txt.xz"
    packed.write_bytes(lzma.compress(tiny_text_file.read_bytes()))
    seen: list[tuple[int, int]] = []
    build_corpus(
        config(files=(str(tiny_text_file), str(packed))),
        progress=lambda done, total: seen.append((done, total)),
    )
    total = tiny_text_file.stat().st_size + packed.stat().st_size
    assert {of for _, of in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == total


# --------------------------------------------------------------------- documents of one sentence


def joined(sentences: list[int], files: list[int], how: str) -> tuple[list[Any], int, int]:
    """Spans, and how many documents were joined and dropped."""
    documents = [
        (file, SourceRange(number, number + 1, count, 9, 9))
        for number, (file, count) in enumerate(zip(files, sentences, strict=True))
    ]
    ranges = list(join_single_sentences(documents, join=how == "join"))
    longer = [item for item in ranges if item.sentences > 1]
    spans = [(item.start, item.stop) for item in longer]
    return spans, sum(item.single for item in longer), len(ranges) - len(longer)


@pytest.mark.parametrize(
    ("sentences", "files", "how", "expected"),
    [
        ([1, 3, 2], [0, 0, 0], "join", ([(0, 2), (2, 3)], 1, 0)),
        ([1, 1, 3, 2], [0, 0, 0, 0], "join", ([(0, 3), (3, 4)], 2, 0)),
        ([3, 1], [0, 0], "join", ([(0, 2)], 1, 0)),
        ([3, 2, 1, 1], [0, 0, 0, 0], "join", ([(0, 1), (1, 4)], 2, 0)),
        ([2, 1, 1, 3], [0, 0, 1, 1], "join", ([(0, 2), (2, 4)], 2, 0)),
        ([2, 1, 3], [0, 1, 2], "join", ([(0, 1), (2, 3)], 0, 1)),
        ([1, 1], [0, 0], "join", ([(0, 2)], 2, 0)),
        ([1, 3, 1, 2], [0, 0, 0, 1], "drop", ([(1, 2), (3, 4)], 0, 2)),
        ([], [], "join", ([], 0, 0)),
    ],
)
def test_documents_of_one_sentence(
    sentences: list[int], files: list[int], how: str, expected: object
) -> None:
    assert joined(sentences, files, how) == expected


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=20),
    st.sampled_from(["join", "drop"]),
)
def test_joining_never_leaves_one_sentence_or_crosses_files(
    rows: list[tuple[int, int]], how: str
) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    files, sentences = (np.array([row[i] for row in rows], int) for i in range(2))
    spans, together, dropped = joined(sentences.tolist(), files.tolist(), how)
    used = [d for span in spans for d in range(*span)]
    assert used == sorted(set(used))
    assert len(rows) - len(used) == dropped
    assert together + dropped == (sentences == 1).sum()
    for span in spans:
        assert sentences[slice(*span)].sum() >= 2
        assert len(set(files[slice(*span)].tolist())) == 1


# ---------------------------------------------------------------------------------------- held out

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=60)


@given(hashes, st.floats(0, 1, exclude_max=True))
def test_heldout_keeps_its_promises(values: list[int], share: float) -> None:
    array = np.array(values, np.uint64)
    chosen = array < np.uint64(heldout_below(array, share))
    assert (~chosen).sum() >= 2
    if share == 0:
        assert not chosen.any()
        return
    # Copies stay together, and the order of documents does not matter.
    assert set(array[chosen].tolist()).isdisjoint(array[~chosen].tolist())
    order = np.argsort(-np.arange(array.size))
    assert heldout_below(array[order], share) == heldout_below(array, share)
    if array.size >= 20 and len(set(values)) == array.size:
        assert chosen.sum() >= 2
        assert array[chosen].max() < array[~chosen].min()


def test_heldout_share_is_met() -> None:
    array = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    for share in (0.01, 0.3):
        deviation = (share * (1 - share) / array.size) ** 0.5
        assert abs((array < np.uint64(heldout_below(array, share))).mean() - share) < 4 * deviation


def test_heldout_does_not_depend_on_the_order_or_names_of_files(
    config: Config, tiny_documents: list[list[str]], tmp_path: Path
) -> None:
    build_corpus(config(heldout=0.2))
    expected = sorted(all_documents(config().out)["heldout"])
    for number, document in enumerate(reversed(tiny_documents)):
        (tmp_path / f"{number:02}.txt").write_text("\n".join(document))
    options = config(
        files=(str(tmp_path / "*.txt"),), documents="file", heldout=0.2, out=str(tmp_path / "other")
    )
    build_corpus(options)
    assert sorted(all_documents(options.out)["heldout"]) == expected


def test_a_small_share_of_enough_documents_holds_out_two(config: Config) -> None:
    report = build_corpus(config(heldout=1e-9))
    assert report["heldout"]["documents"] == 2
    assert report["heldout_note"] is None


def test_too_few_documents_to_hold_out_are_noted(config: Config) -> None:
    report = build_corpus(
        config("the bread.\nlost.\n\na boat.\nsold.\n\nan apple.\nfound.\n", heldout=0.9)
    )
    assert report["train"]["documents"] == 2
    assert report["heldout"]["documents"] <= 1
    assert "cannot be evaluated on" in report["heldout_note"]
    assert TokenStore.open(config().out, "heldout").documents <= 1


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"a. b.\n\nc. d\xff.\n", 3, "byte 0xff is not UTF-8"),
        (b"a. b.\n\nc.\0 d.\n", 3, "NUL character"),
        (b"a. b.\n" + b"x" * 1_100_000 + b"\n", 2, "longer than 1 MiB"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_refused_with_file_and_line(
    text: bytes, line: int, message: str, workers: int, config: Config
) -> None:
    options = config(text, max_line_mib=1.0, workers=workers)
    with pytest.raises(InputError, match=message) as caught:
        build_corpus(options)
    assert str(caught.value.place) == f"{options.files[0]}:{line}"
    assert not Path(options.out).exists()


def test_a_truncated_archive_is_refused(
    config: Config, tiny_text_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.txt.xz"
    path.write_bytes(lzma.compress(tiny_text_file.read_bytes())[:-30])
    with pytest.raises(InputError, match=r"t\.txt\.xz: the compressed file is truncated"):
        build_corpus(config(files=(str(path),)))


@pytest.mark.parametrize("text", ["", "\n \n\n", "\u200b\n\n\u200b\n"])
def test_no_text(text: str, config: Config) -> None:
    with pytest.raises(InputError, match="no text"):
        build_corpus(config(text))


def test_an_empty_file_among_others_is_no_error(
    config: Config, tiny_text_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    report = build_corpus(config(files=(str(tmp_path / "empty.txt"), str(tiny_text_file))))
    assert report["files"] == 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("One two. Three four.\n", {}, "has 1 document "),
        ("a\nb\n\nc\nd\n", {"documents": "file"}, "has 1 document "),
        ("a\n\nb\nc\n", {}, "1 joined to another, 0 dropped"),
        ("a.\n\nb.\n\nc.\n", {"single_sentence": "drop"}, "has 0 documents .* 3 dropped"),
        ("a.\n", {}, "has 0 documents .* 1 dropped"),
    ],
)
def test_one_document(text: str, options: dict[str, Any], message: str, config: Config) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_corpus(config(text, **options))
    assert "needs 2" in str(caught.value)


def test_a_file_name_that_is_not_utf_8_is_reported(config: Config, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/old\xb0\xa1"
    os.mkdir(folder)  # noqa: PTH102
    with open(folder + b"/\xb3.txt", "wb") as file:  # noqa: PTH123
        file.write(b"One. Two.\n\nThr\xffee. Four.\n")
    options = config(files=(os.fsdecode(folder),), broken="replace", heldout=0)
    report = build_corpus(options)
    assert [[line, what] for _, line, what in report["broken"]["first"]] == [
        [3, "1 replaced by U+FFFD"]
    ]


def test_a_folder_whose_name_is_not_utf_8(config: Config, tmp_path: Path) -> None:
    build_corpus(plain := config())
    build_corpus(odd := config(out=str(tmp_path / os.fsdecode(b"donn\xe9es"))))
    assert all_documents(plain.out) == all_documents(odd.out)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"heldout": 1.0},
        {"heldout": -0.1},
        {"shard_tokens": 0},
        {"max_line_mib": -1.0},
        {"out": ""},
        {"language": "EN"},
    ],
)
def test_options_out_of_range(options: dict[str, Any], config: Config) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        build_corpus(config(**options))


def test_a_tokenizer_that_is_not_there(config: Config, tmp_path: Path) -> None:
    with pytest.raises(BothwaysError, match="nowhere"):
        build_corpus(config(tokenizer=str(tmp_path / "nowhere")))


# ---------------------------------------------------------------------------------- nothing is lost


def test_a_corpus_is_replaced_and_its_old_shards_go(config: Config) -> None:
    build_corpus(config(shard_tokens=300))
    assert len(list(Path(config().out).glob("train-*.arrow"))) > 3
    # The corpus's own copy of the tokenizer serves too.
    build_corpus(config(tokenizer=config().out, heldout=0))
    assert [path.name for path in Path(config().out).glob("*.arrow")] == ["train-00000.arrow"]
    assert verify_store(config().out) == []


@pytest.mark.parametrize("damage", ["corpus.json", "train-00000.arrow"])
def test_a_damaged_corpus_can_be_built_again(damage: str, config: Config) -> None:
    build_corpus(config())
    (Path(config().out) / damage).unlink()
    build_corpus(config())
    assert verify_store(config().out) == []


@pytest.mark.parametrize("name", ["notes.txt", "vocab.txt", "checkpoints/x"])
def test_other_folders_are_never_replaced(name: str, config: Config) -> None:
    path = Path(config().out) / name
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(ConfigError, match=name.split("/")[0]):
        build_corpus(config())
    assert path.read_text() == "precious"


def test_a_corpus_with_a_users_file_in_it_is_not_replaced(config: Config) -> None:
    build_corpus(config())
    (Path(config().out) / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        build_corpus(config())
    assert (Path(config().out) / "notes.txt").read_text() == "precious"


def test_a_file_in_the_place_of_the_folder_is_kept(config: Config) -> None:
    Path(config().out).write_text("precious")
    with pytest.raises(ConfigError, match="a file of this name exists"):
        build_corpus(config())
    assert Path(config().out).read_text() == "precious"


@pytest.mark.parametrize("moment", ["spool", "shard", "manifest", "flush"])
def test_a_full_disk_leaves_the_old_corpus(
    moment: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = config(shard_tokens=500)
    build_corpus(options)
    before = contents(options.out)
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: object, **__: object) -> None:
        raise full

    if moment == "spool":
        monkeypatch.setattr("bothways.corpus.build_log.BuildLog.append", fail)
    elif moment == "shard":
        monkeypatch.setattr("pyarrow.ipc.new_file", fail)
    elif moment == "manifest":
        monkeypatch.setattr("bothways.corpus.store.write_json", fail)
    else:
        monkeypatch.setattr("bothways.io.files.sync_files", fail)
    with pytest.raises(DiskError, match="No space left"):
        build_corpus(replace(options, shard_tokens=900))
    assert contents(options.out) == before
    assert verify_store(options.out) == []
    # What was done stays for the next time, and nothing else.
    names = {path.name for path in Path(options.out).parent.iterdir()}
    assert names == {"corpus", ".units-corpus"}


def test_bad_text_leaves_the_old_corpus(config: Config) -> None:
    build_corpus(config())
    before = contents(config().out)
    with pytest.raises(InputError):
        build_corpus(config(b"\xff"))
    assert contents(config().out) == before


# -------------------------------------------------------------------------------------- real text


def test_real_articles(config: Config, shared_data: Callable[[str], Path]) -> None:
    path = shared_data("text_en/wikipedia-leads.txt.xz")
    articles = lzma.decompress(path.read_bytes()).decode().split("\n\n")[:2000]
    report = build_corpus(config("\n\n".join(articles), heldout=0.05))
    documents = report["train"]["documents"] + report["heldout"]["documents"]
    assert documents == 2000 - report["single_sentence_documents"]["joined"]
    assert 0.03 < report["heldout"]["documents"] / documents < 0.07
    assert verify_store(config().out) == []


lines = st.lists(st.sampled_from(["", " ", "A boat. B!", "the king", "x" * 40]), max_size=12)


@settings(max_examples=10, phases=(Phase.explicit, Phase.generate))
@given(
    files=st.lists(lines.map("\n".join), min_size=2, max_size=3),
    size=st.integers(1, 60),
    by_file=st.booleans(),
)
def test_where_units_end_changes_nothing(
    files: list[str],
    size: int,
    by_file: bool,
    tiny_tokenizer_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("units")
    for number, text in enumerate(
        [*files, "The king. A boat!\n\nMy aunt. The clock!", "The king. A boat!"]
    ):
        (folder / f"{number}.txt").write_text(text)
    options = CorpusConfig(
        files=(str(folder),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(folder / "corpus"),
        documents="file" if by_file else "blank",
    )
    build_corpus(options)
    expected = contents(options.out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "UNIT_BYTES", size)
        build_corpus(options)
    assert contents(options.out) == expected
