"""What columns of words are called and what tags look like; and files with words in columns or
lines that have none of the forms that are read: each is named, with what to do, before its columns
are taken for what they are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bothways.errors import InputError, Place

# Names of columns, in small letters alone.
WORD_NAMES = ("word", "words", "token", "tokens", "form", "wordform", "text")
TAG_NAMES = (
    *("tag", "tags", "nertag", "nertags", "ner", "label", "labels", "iob", "bio", "iobtag"),
    *("entity", "entitytag", "netag", "pos", "postag", "upos"),
)
SENTENCE_NAMES = (
    *("sentence", "sentenceid", "sentenceidx", "sentid", "sentencenumber", "sentenceno"),
    *("sentnum", "sentno", "sent", "sentenceindex", "sid"),
)
NUMBER_NAMES = (
    *("tokenid", "tokenidx", "tokenindex", "tokenno", "tokennumber", "wordid", "wordidx", "wordno"),
    *("wordindex", "wordnumber", "idx", "index"),
)
COUNT_NAMES = ("id", "no", "num", "number", "position")
START_NAMES = (
    "start",
    "begin",
    "startoffset",
    "startchar",
    "offsetstart",
    "startpos",
    "startindex",
    "beginoffset",
)
END_NAMES = ("end", "stop", "endoffset", "endchar", "offsetend", "endpos", "endindex")
DOCUMENT_NAMES = (
    *("doc", "docid", "document", "documentid", "documentno", "docno", "file", "fileid"),
    *("filename", "article", "articleid"),
)


def columns_of(header: Sequence[str], names: Sequence[str]) -> list[int]:
    """The columns that have one of these names, however it is written, in the names' order."""
    plain = [re.sub("[^a-z]", "", name.lower()) for name in header]
    return [n for name in names for n, own in enumerate(plain) if own == name]


def column_of(header: Sequence[str], names: Sequence[str]) -> int | None:
    """The column that has the first of these names that there is."""
    return next(iter(columns_of(header, names)), None)


def names_columns(header: Sequence[str]) -> bool:
    """Whether a line names columns of words and of tags."""
    words, tags = column_of(header, WORD_NAMES), column_of(header, TAG_NAMES)
    return words is not None and tags is not None


LOOKED_AT = 500  # lines
TAG = re.compile("O|[BIESLUMW][-_].+")
"""A tag of a scheme."""
_AFTER_MARK = re.compile(r"\S+?([/|_])(?:O|[BIESLUMW][-_][^\s/|]+|[A-Z]+\$?)")
_STOPS_TAGGED = re.compile(r"(\S{1,5}?)([/|_])(?:[^\w\s]{1,3}|-[LR]RB-|[A-Z]+\$?)")
_MARKS = {"/": "a slash", "|": "a bar", "_": "an underscore"}
_NOTATION = re.compile(r"""\s*(?:\[\s*[\[{(]|\{\s*["'])""")
_QUOTED = re.compile('"[^"]*"|"""+')
_HTML = "a|abbr|b|big|br|code|div|em|font|h[1-6]|i|li|p|q|s|small|span|strong|su[bp]|t[dhrt]|u|ul"
_MARKED = re.compile(
    rf"(?i:<(?!(?:{_HTML})>)(\w+)>[^<>]*</\1>)"
    r"|\[[^\][]+\]\([^()\s]+\)|\[[^\][]+ [A-Z]{2,}\]|\[[A-Z]{2,} [^\][]+\]|\([A-Z]{2,} [^()]+\)"
)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][a-z]{2,8})?:(?=\S)")
_I2B2 = re.compile(r'c=".*" \d+:\d+ \d+:\d+\|\|t="\w+"')


def refuse_numbers_of_sentences(path: Path, table: Sequence[Sequence[str]], separator: str) -> None:
    """Refuse rows that begin with the number of a sentence, and then have a word and its tag.

    Args:
        path: the file.
        table: its first rows.
        separator: between columns.

    Raises:
        InputError: with the command that names the columns, so that it is read.
    """
    numbers = [row[0] for row in table]
    if (
        len(table) < 2
        or not all(len(row) == len(table[0]) > 2 and row[0].isdecimal() for row in table)
        or all(row[1].isdecimal() for row in table)
        or all(a != b for a, b in pairwise(numbers))
    ):
        return
    mark = separator.replace(" ", "\t").replace("\t", "\\t")
    others = [f"column{n}" for n in range(2, len(table[0]) - 1)]
    names = mark.join(["sentence_id", "word", *others, "tag"])
    copied = "tr -s ' ' '\\t' < OLD" if separator == " " else "cat OLD"
    new = "NEW.csv" if separator == "," else "NEW.tsv"
    raise InputError(
        "its first column seems to have numbers of sentences, and the words stand in the next; "
        f"name the columns: (printf '{names}\\n'; {copied}) > {new}.",
        place=Place(path, 1),
    )


def _mark_before_tags(words: Sequence[str]) -> str:
    """What stands between each word and its tag, where these are written together; empty if they
    are not."""
    found = [_AFTER_MARK.fullmatch(word) for word in words]
    marks = {one[1] for one in found if one}
    if len(marks) != 1 or 2 * sum(map(bool, found)) < len(found):
        return ""
    mark = marks.pop()
    others = (word for word, one in zip(words, found, strict=True) if not one)
    return mark if all((m := _STOPS_TAGGED.fullmatch(w)) and m[2] == mark for w in others) else ""


def refuse_other_forms(path: Path, lines: Sequence[str], *, labelled: bool) -> None:
    """Refuse a file that has another form.

    Args:
        path: the file.
        lines: of it.
        labelled: tags are needed.

    Raises:
        InputError: its form, and what to do.
    """
    begun = [line for line in lines[:LOOKED_AT] if line.strip()]
    first = begun[0] if begun else ""
    if first.startswith("#FORMAT=WebAnno TSV"):
        raise InputError(
            "it is the TSV of INCEpTION and WebAnno, whose layers are not read; export the "
            "documents as CoNLL 2002, with one layer of entities.",
            place=Place(path, 1),
        )
    if first.startswith("#begin document"):
        raise InputError(
            "it is CoNLL-2012, whose entities in brackets over several lines are not read. Its "
            "parts of speech are: --task.tagging.word 3 --task.tagging.tag 4 "
            "--task.tagging.comment '#'.",
            place=Place(path, 1),
        )
    if _NOTATION.match(first) and re.search("[:,]", first):
        raise InputError(
            "this is JSON, or what Python prints; name a file with JSON .json or .jsonl, and write "
            "Python's lists with json.dump.",
            place=Place(path, 1),
        )
    written = [word for line in begun for word in line.split()]
    if len(written) > 2 and "\t" not in first and all(map(_QUOTED.fullmatch, written)):
        raise InputError(
            f"each column stands in quotation marks, such as {written[0]}; remove them: "
            "tr -d '\"' < OLD > NEW.",
            place=Place(path, 1),
        )
    languages = {match[0] if (match := _LANGUAGE.match(line)) else "" for line in begun}
    if len(begun) > 2 and len(languages) == 1 and (language := languages.pop()):
        raise InputError(
            f"each of its words has {language!r} before it, as in WikiANN's files; take it out: "
            f"sed 's/^{language}//' OLD > NEW.",
            place=Place(path, 1),
        )
    mark = _mark_before_tags(written) if len(written) > 1 else ""
    if mark and (labelled or mark != "_"):  # words may have capitals behind one, too
        several = len({word.count(mark) for word in written}) == 1 < written[0].count(mark)
        cut = f"s,{mark},\\t,g" if several else f"s,{mark}\\([^{mark}]*\\)$,\\t\\1,"
        by_line = any(len(line.split()) > 1 for line in begun)
        apart = "sed -e 's/  */\\n/g' -e 's/$/\\n/' OLD | sed" if by_line else "sed"
        raise InputError(
            f"its words have their tags after {_MARKS[mark]}, such as {written[0]!r}; put them "
            f"into columns, a word a line: {apart} '{cut}'{'' if by_line else ' OLD'} > NEW"
            f"{' (for sentences in lines)' if by_line else ''}.",
            place=Place(path),
        )
    if _I2B2.match(first):
        raise InputError(
            "these are the concepts of i2b2, whose text is in another file; write its words, each "
            "in a line with its tag (B-PER, I-PER, O).",
            place=Place(path, 1),
        )
    if labelled and not any(TAG.fullmatch(line.split()[-1]) for line in begun):
        for number, line in enumerate(lines[:LOOKED_AT], start=1):
            if marked := _MARKED.search(line):
                raise InputError(
                    f"its words carry tags of their own, such as {marked[0][:40]!r}; write a word "
                    "and its tag (B-PER, I-PER, O) in each line, or texts with spans in JSON.",
                    place=Place(path, number),
                )
