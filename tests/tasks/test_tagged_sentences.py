"""Reading CoNLL files: what is a sentence, a document, a word, and what is wrong with a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bothways.errors import InputError
from bothways.tasks.options import TaggingOptions
from bothways.tasks.sentences import Sentences, read_sentences

SIMPLE = TaggingOptions()


def write(folder: Path, content: str | bytes, name: str = "data.conll") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(
    folder: Path, content: str | bytes, options: TaggingOptions = SIMPLE, *, labelled: bool = True
) -> Sentences:
    return read_sentences(write(folder, content), options, labelled=labelled)


def test_sentences_documents_and_columns(tmp_path: Path) -> None:
    content = (
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\n"
        "German  JJ\tI-NP I-MISC\n\n-DOCSTART- -X- -X- O\nPeter NNP I-NP I-PER"
    )
    found = read(tmp_path, content)
    assert found.words == [["EU", "rejects"], ["German"], ["Peter"]]
    assert found.tags == [["I-ORG", "O"], ["I-MISC"], ["I-PER"]]
    assert found.lines == [[3, 4], [7], [10]]
    assert found.documents == [1, 1, 2]
    assert found.has_documents
    assert (found.scheme, found.separator, found.broken) == ("iob1", " ", 0)
    other = read(tmp_path, content, TaggingOptions(word=1, tag=2))
    assert (other.words[0], other.tags) == (["NNP", "VBZ"], [["I-NP", "I-VP"], ["I-NP"], ["I-NP"]])


def test_tabs_comments_and_characters_as_words(tmp_path: Path) -> None:
    content = "## a comment\twith a tab\n경\tB-OG\n찰\tI-OG\n \tO\n#\tO\n\t\n또\tO\r\n"
    found = read(tmp_path, content, TaggingOptions(comment="##"))
    assert found.words == [["경", "찰", " ", "#"], ["또"]]
    assert (found.separator, found.scheme) == ("\t", "iob2")
    assert not found.has_documents
    # Without a comment's mark, a word may begin with anything.
    assert read(tmp_path, "#tag O\n@me O").words == [["#tag", "@me"]]
    # White space that is neither a space nor a tab is a word like any other.
    assert read(tmp_path, "\u00a0\tO\n").words == [["\u00a0"]]


def test_quotation_marks_of_a_csv_writer(tmp_path: Path) -> None:
    found = read(tmp_path, '""""\tO\nMary\tB-PER\n"say ""no"""\tO\n')
    assert found.words == [['"', "Mary", 'say "no"']]
    assert read(tmp_path, '"\tO\nMary\tB-PER\n"\tO\n').words == [['"', "Mary", '"']]
    assert read(tmp_path, '"" O\n').words == [['""']]


def test_what_breaks_the_scheme_is_named_or_repaired(tmp_path: Path) -> None:
    content = "a B-X\nb I-X\n\nc B-X\nd I-Y\ne O\n\nf B-Y\n"
    with pytest.raises(InputError, match=r"data\.conll:5: the tag 'I-Y' after 'B-X' breaks .*IOB2"):
        read(tmp_path, content)
    found = read(tmp_path, content, TaggingOptions(broken="repair"))
    assert (found.broken, found.scheme) == (1, "iob2")
    with pytest.raises(InputError, match=r":1: the tag 'I-X' at the start .*as requested"):
        read(tmp_path, "a I-X\nb O\n", TaggingOptions(scheme="iob2"))
    with pytest.raises(InputError, match=r":2: the tag 'I-X' after 'S-X' breaks the scheme BIOES"):
        read(tmp_path, "a S-X\nb I-X\n")
    assert read(tmp_path, "a NN\nb DT\n").scheme == "none"


def test_prefixes_of_other_schemes(tmp_path: Path) -> None:
    found = read(tmp_path, "a B-X\nb I-X\nc L-X\nd U-Y\ne O\n")
    assert found.tags == [["B-X", "I-X", "E-X", "S-Y", "O"]]
    assert found.scheme == "bioes"
    assert read(tmp_path, "a B-X\nb M-X\nc E-X\n").tags == [["B-X", "I-X", "E-X"]]
    for broken in ("refuse", "repair"):  # read as outside, the entity would be lost
        options = TaggingOptions(broken=broken)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r":2: the tag 'C-X' has no prefix"):
            read(tmp_path, "a B-X\nb C-X\n", options)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: .*no column 5 for the tag.*tagging_tag"):
        read(tmp_path, "a O\n", TaggingOptions(tag=5))
    with pytest.raises(InputError, match="no column 2 for the word"):
        read(tmp_path, "a O\n", TaggingOptions(word=2))


def test_without_labels_tags_are_kept_to_be_shown_only(tmp_path: Path) -> None:
    found = read(tmp_path, "a I-X\nb B-Y\n", labelled=False)
    assert (found.tags, found.scheme, found.unchecked_tags) == (None, None, [["I-X", "B-Y"]])
    assert read(tmp_path, "a\nb\n", labelled=False).unchecked_tags is None


def test_running_text_is_not_taken_for_columns(tmp_path: Path) -> None:
    message = "found running text|expected 4 columns"
    for content in ("Mary Shelley lived in London .\n", "Mary Shelley lived .\n\nIn London .\n"):
        with pytest.raises(InputError, match=message):
            read(tmp_path, content, labelled=False)
    for content in ("Mary Shelley\n", "She wrote novels\n\nHe wrote poems\n"):
        with pytest.raises(InputError, match=message):
            read(tmp_path, content, labelled=False)
    for content in ("London B-LOC\n\nYes O\n", "London NNP\n\nYes UH\n"):
        assert read(tmp_path, content, labelled=False).words == [["London"], ["Yes"]]


# Sentences as the sets are published (the first lacks its first -DOCSTART- line here).
REAL = [
    ("ner/conll2003/eng.train", SIMPLE, 14_041, "iob1"),
    ("ner/conll2003/eng.testa", SIMPLE, 3_250, "iob1"),
    ("ner/conll2003/eng.testb", SIMPLE, 3_453, "iob1"),
    ("ner/wnut17/wnut17train.conll", SIMPLE, 3_394, "iob2"),
    ("ner/wnut17/emerging.test.annotated", SIMPLE, 1_287, "iob2"),
    ("ko/klue/klue-ner-v1.1_dev.tsv", TaggingOptions(comment="##", spaces=False), 5_000, "iob2"),
]


@pytest.mark.parametrize(("name", "options", "sentences", "scheme"), REAL)
def test_real_files(
    name: str,
    options: TaggingOptions,
    sentences: int,
    scheme: str,
    shared_data: Callable[[str], Path],
) -> None:
    found = read_sentences(shared_data(name), options, labelled=True)
    assert (len(found), found.scheme, found.broken) == (sentences, scheme, 0)
