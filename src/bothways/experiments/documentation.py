"""English prose that every machine with bothways has, and labelled data made from it without human
judgement: the documentation inside Python packages.

Docstrings of modules, classes and functions (and texts that some packages attach by calls such as
``add_docstr(torch.abs, "...")``) are read from the source files with :mod:`ast`. No package is
imported, so reading is quick and has no side effects. Everything but prose is removed: code
examples, parameter types, tables, formulas, markup. Only the first occurrence of a sentence is
kept. The order of packages, files and definitions is fixed, so the same installed versions always
give the same documents.

The tasks are:

* Which package: the package that a sentence describes. Sentences that name any of the packages, or
  the one kind of object that reveals a package (tensor, ndarray, axes), are left out, and the
  classes are of equal size.
* Follows: whether the second sentence comes right after the first in the same docstring, or is from
  another docstring of the same package. Both labels draw their sentences from the same sources, so
  neither sentence alone reveals the answer.
* Capitals: the words of a sentence are lower-cased, and the tags mark those that had a capital
  letter, as names have.

There is no leakage between the data sets: :func:`split_documents` sets whole functions and classes
aside, and removes from the pre-training text every sentence that shares a run of eight words with
them. The training and dev examples of the tasks come from different definitions among those set
aside, and no dev example shares a run of eight words with a training example. So the encoder has
seen neither training nor dev sentences before fine-tuning.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import itertools
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import sentencex

from bothways.errors import InputError, Place
from bothways.io.files import new_folder, write_text
from bothways.io.processes import exit_with
from bothways.randomness import Purpose, uniform

STDLIB = "python"
"""The name under which the standard library is harvested."""

DEFAULT = (
    STDLIB, "numpy", "scipy", "sklearn", "matplotlib", "torch", "pyarrow", "tensorboard", "rich",
    "joblib", "safetensors", "tokenizers", "yaml",
)  # fmt: skip
"""The standard library and what bothways itself depends on."""

# Tests, vendored packages, and data files in Python syntax.
_SKIPPED_FOLDERS = frozenset(
    (
        "test tests testing idle_test idlelib lib2to3 turtledemo site-packages dist-packages "
        "__pycache__ _bundled _vendor vendor vendored externals extern third_party "
        "array_api_compat array_api_extra"
    ).split()
)


@dataclass(frozen=True)
class Document:
    """The prose of one docstring.

    ``paragraphs`` are sequences of sentences that are adjacent in the source; where a sentence was
    left out, a new paragraph starts.
    """

    package: str
    module: str
    """Dotted name of its source file."""
    name: str
    """Dotted name of the object it describes, such as ``numpy.linalg.svd``."""
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def definition(self) -> str:
        """The top-level function or class it belongs to (a method's class), or its module."""
        if not self.name.startswith(self.module + "."):
            return self.name
        return f"{self.module}.{self.name.removeprefix(self.module + '.').partition('.')[0]}"

    @property
    def sentences(self) -> list[str]:
        """All sentences in order."""
        return [sentence for paragraph in self.paragraphs for sentence in paragraph]


def harvest(
    *, packages: Sequence[str] = DEFAULT, max_mb: float = 16.0, workers: int = 1
) -> list[Document]:
    """Read the documentation of installed packages.

    Args:
        packages: names of top-level packages, or ``"python"`` for the standard library.
        max_mb: limit for the sentences, in megabytes (10**6 characters). Above it, documents are
            left out evenly, by a hash of their names.
        workers: number of processes for parsing. The result does not depend on it.

    Returns:
        Documents in the order of packages, files, definitions; no sentence occurs twice.

    Raises:
        InputError: a package is not installed as source files, or no documentation was found.
    """
    sources = [source for package in packages for source in _sources(package)]
    read: Iterable[list[Document]] = map(_read, sources)
    if workers > 1:
        # Not forked: a fork of a process in which torch has started threads can hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=exit_with, initargs=(os.getpid(),)
        ) as pool:
            read = list(pool.map(_read, sources, chunksize=32))
    seen: set[str] = set()

    def is_new(sentence: str) -> bool:
        key = " ".join(words_of(sentence))  # without case and punctuation
        new = key not in seen
        seen.add(key)
        return new

    documents = only_sentences(itertools.chain.from_iterable(read), is_new)
    if not documents:
        raise InputError(
            f"no documentation was found in {', '.join(packages)}: the source files have no "
            "docstrings. Use a Python whose standard library is installed as .py files."
        )
    return _at_most(documents, max_mb * 1e6)


def write_corpus(documents: Iterable[Document], path: Path) -> None:
    """Write documents as a text file: one sentence per line, a blank line between documents.

    Consecutive documents of one sentence from the same module are joined. Such a document alone has
    no next sentence, and being short would reveal that its neighbour is a random one.

    Raises:
        DiskError: the file could not be written.
    """
    blocks: list[list[str]] = []
    open_module = None  # the module whose one-sentence documents the last block is collecting
    for document in documents:
        sentences = document.sentences
        single = len(sentences) == 1
        if single and open_module == document.module:
            blocks[-1] += sentences
        else:
            blocks.append(sentences)
        open_module = document.module if single else None
    write_text(path, "\n\n".join("\n".join(block) for block in blocks) + "\n")


def _at_most(documents: list[Document], characters: float) -> list[Document]:
    sizes = np.array([sum(map(len, document.sentences)) for document in documents])
    if sizes.sum() <= characters:
        return documents
    order = np.argsort([name_draw(0, document.name) for document in documents], kind="stable")
    kept = order[np.cumsum(sizes[order]) <= characters]
    return [documents[i] for i in np.sort(kept)]


def name_draw(seed: int, name: str, *counters: int) -> float:
    """A pseudo-random number in [0, 1) that depends on the seed and name."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return float(uniform(seed, Purpose.DEMO, *counters, np.uint64(key)))


def only_sentences(documents: Iterable[Document], keep: Callable[[str], bool]) -> list[Document]:
    """Remove sentences, and documents that become empty.

    ``keep`` is called once per sentence, in order. A removed sentence ends its paragraph.
    """
    kept = ((document, _kept(document.paragraphs, keep)) for document in documents)
    return [replace(d, paragraphs=tuple(map(tuple, left))) for d, left in kept if left]


def _kept(paragraphs: Iterable[Iterable[str]], keep: Callable[[str], bool]) -> list[list[str]]:
    groups = (group for paragraph in paragraphs for group in itertools.groupby(paragraph, keep))
    return [list(sentences) for kept, sentences in groups if kept]


def words_of(sentence: str) -> list[str]:
    """The lower-cased words and numbers of a sentence, which are compared to find repeats."""
    return re.findall(r"[^\W_]+", sentence.lower())


# ------------------------------------------------------------------------------- source files


def _sources(package: str) -> Iterator[tuple[str, str, Path]]:
    """The package, module and path of its source files, in order of their paths."""
    folder = _folder(package)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if not _SKIPPED_FOLDERS.intersection(parts[:-1]) and not parts[-1].startswith("test_"):
            yield package, ".".join((package, *(p for p in parts if p != "__init__"))), path


def _read(source: tuple[str, str, Path]) -> list[Document]:
    """The documents of one source file; none if it cannot be parsed."""
    package, module, path = source
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the sources
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return []  # templates, or sources for another version of Python
    # The language reference shown by help() is a dictionary, not docstrings.
    topics = _topics(tree, module) if path.stem == "topics" else []
    return [
        Document(package, module, name, tuple(map(tuple, paragraphs)))
        for name, docstring in (*topics, *_documented(tree, module))
        if (paragraphs := clean(docstring))
    ]


def _folder(package: str) -> Path:
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    try:
        # For a top-level name this only locates the folder, without importing anything.
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ValueError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"package {package!r}: not installed as a folder of source files; install it or leave "
            "it out of the packages to harvest."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """(name, text) of a definition's docstring, then of everything documented inside it."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield name, docstring
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for field in ("body", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _documented(child, f"{name}.{child.name}")
            elif isinstance(child, (ast.Expr, ast.Assign)):
                if isinstance(child.value, ast.Call):
                    yield from _added(child.value)
            else:
                yield from _documented(child, name)


def _added(call: ast.Call) -> Iterator[tuple[str, str]]:
    """The text of a call such as ``add_newdoc("numpy", "array", "...")``."""
    function = ast.unparse(call.func).rpartition(".")[2]
    if "add" not in function or "doc" not in function or len(call.args) < 2:
        return
    *targets, text = call.args
    # The text may be formatted or concatenated from pieces; the pieces are prose all the same.
    pieces = [
        part.value
        for part in ast.walk(text)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    if pieces:
        names = (ast.unparse(target).strip("'\"") for target in targets)
        yield ".".join(names), "\n".join(inspect.cleandoc(piece) for piece in pieces)


def _topics(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """(name, text) of the entries of dictionaries that contain texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield f"{name}.{key.value!s}", str(value.value)


# -------------------------------------------------------------------------------------- prose


def clean(docstring: str) -> list[list[str]]:
    """The English prose of a docstring (reST, NumPy or Google style) as paragraphs of sentences.

    A sentence that is not prose is left out and ends its paragraph.
    """
    lines = _without_blocks(inspect.cleandoc(docstring).splitlines())
    return _kept(map(_sentences, _paragraphs(_without_examples(lines))), is_prose)


def _sentences(text: str) -> Iterator[str]:
    # Dots in dotted names would be mistaken for the ends of sentences.
    text = re.sub(r"(?<=\w)\.(?=\w)", _INNER_DOT, _without_markup(text))
    for sentence in sentencex.segment("en", text):
        sentence = sentence.replace(_INNER_DOT, ".").strip()
        # Summary lines and the ends of lists often lack a full stop.
        yield sentence + "." if sentence[-1:].isalnum() else sentence


_INNER_DOT = "\ufdd0"  # a code point that no text contains


_KEPT_DIRECTIVE = re.compile(
    r"\.\. *(?:note|warning|important|tip|hint|caution|attention|admonition) *::(.*)", re.IGNORECASE
)
_DIRECTIVE = re.compile(r"\.\. *(?:\||_|\[|[\w:-]+ *::)|\.\.$")
_UNDERLINE = re.compile(r"([-=~^*#+\"'`.])\1{2,}$")
_DROPPED_SECTION = re.compile(r"(?:see also|references?|footnotes|authors?)\W*$", re.IGNORECASE)
_TABLE = re.compile(r"[+|]|.*\S {3,}\S|[=-]{3,} ")
_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
# "x : ndarray, shape (n,)" is a name with its type. After "x (Tensor): the input", ":param x: the
# input" and "x -- the input", prose follows.
_TYPE = re.compile(r"[\w*.`]+(?:, ?[\w*.`]+)* :(?: |$)")
_FIELD = re.compile(
    r":\w+[^:]*: *"  # :param x:
    r"|[*`]*\w+[*`]*(?:, [*`]*\w+[*`]*)*(?: *\((?:[^()]|\([^()]*\))*\))? ?: +"  # x (Tensor):
    r"|[*`]*\w+[*`]*(?:, \w+)* --? +"  # x --
)


def _without_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Blank the lines of code blocks, tables of links and other directives."""
    block_indent = None  # deeper lines belong to the block
    fenced = False
    for line in lines:
        text, indent = line.strip(), _indent(line)
        if block_indent is not None and text and indent <= block_indent:
            block_indent = None
        if text.startswith("```"):
            fenced = not fenced
            yield ""
        elif fenced or block_indent is not None:
            yield ""
        elif note := _KEPT_DIRECTIVE.match(text):
            yield ""
            yield " " * indent + note[1].strip()
        elif _DIRECTIVE.match(text):
            block_indent = indent
            yield ""
        elif text.endswith("::"):
            block_indent = indent
            yield line.rstrip()[:-1]
        else:
            yield line


def _without_examples(lines: Iterable[str]) -> Iterator[str]:
    """Blank doctests (up to a blank line), headings, and sections that are lists of names."""
    lines = list(lines)
    doctest = dropped = False
    for number, line in enumerate(lines):
        text = line.strip()
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        doctest = bool(text) and (doctest or text.startswith((">>>", "In [")))
        heading = bool(text) and bool(_UNDERLINE.match(following))
        if heading:
            dropped = bool(_DROPPED_SECTION.match(text))
        table = _TABLE.match(text) or _UNDERLINE.match(text)
        yield "" if doctest or heading or dropped or table else line


def _paragraphs(lines: Iterable[str]) -> list[str]:
    """Join wrapped lines.

    A blank line, a list item, a parameter and a change of indentation start a new paragraph.
    """
    lines = [*lines, ""]
    paragraphs: list[list[str]] = [[]]
    previous = 0
    item = False  # indented lines after the first line of an item belong to its paragraph
    for line, following in itertools.pairwise(lines):
        text, indent = line.strip(), _indent(line)
        start = _BULLET.match(text) or _FIELD.match(text)
        hangs = item and len(paragraphs[-1]) == 1 and indent > previous
        if not text or _TYPE.match(text):
            paragraphs.append([])
            item = False
            continue
        if start:
            text, item = text[start.end() :], True
            paragraphs.append([text[:1].upper() + text[1:]])
        elif paragraphs[-1] and (indent == previous or hangs):
            paragraphs[-1].append(text)
        elif _indent(following) > indent and not text.endswith((".", ",")):
            paragraphs.append([])  # a term above its description
        else:
            paragraphs.append([text])
            item = False
        previous = indent
    return [" ".join(paragraph) for paragraph in paragraphs if paragraph]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_MARKUP = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r":[\w:+-]+:`[^`<]*?([^`<]+?) *<[^`>]*>`", r"\1"),  # :func:`svd <numpy.linalg.svd>`
        (r":[\w:+-]+:(?=`)", ""),  # :func:
        (r"`([^`<]+?)\s*<[^`>]*>`_{0,2}", r"\1"),  # `text <address>`_
        (r"``([^`]*)``", r"\1"),
        (r"`~(?:[\w.]*\.)?([^`]*)`", r"\1"),  # `~numpy.linalg.svd` is shown as svd
        (r"`\.?([^`]*)`_{0,2}", r"\1"),
        (r"\s*\[(?:\d+|\w+\d{2,4}\w?|#\w*)\]_?(?!\w)", ""),  # [1]_
        (r"(?<!\w)(\*{1,2})(\w[^*]*?)\1(?!\w)", r"\2"),
        (r"\s+", " "),
    )
)


def _without_markup(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text


_COMMON = frozenset(
    (
        "the a an of to in is are be been was were and or not if that this these those it its for "
        "with by on as at from which when where will can may must should would has have had do "
        "does than then only no any all each some more other same both into but so such also "
        "there one you we they their our your what how because between about after before over "
        "under while"
    ).split()
)
_PLAIN_WORD = re.compile(
    r"[(\"'“‘]*(?:(?:[A-Z]?[a-z]+|[A-Z]+)(?:[-'’/](?:[A-Z]?[a-z]+|[A-Z]))*|\d[\d.,]*)"
    r"[)\"'”’.,;:!?]*$"
)
_NOT_PROSE = re.compile(r"[\\{}<>|$^~@`]|\*\*|://|www\.|[Cc]opyright|[Ll]icen[cs]e|WARRANT")
_SHORTEST, _LONGEST = 5, 60  # words
_PLAIN_SHARE, _COMMON_SHARE = 0.8, 0.15  # of the words


def is_prose(sentence: str) -> bool:
    """Whether a string looks like one complete English sentence with few identifiers."""
    if not re.match(r"[A-Z]", sentence) or not re.search(r"[.!?:][)\"'”’]*$", sentence):
        return False
    words = sentence.split()
    if not _SHORTEST <= len(words) <= _LONGEST or _NOT_PROSE.search(sentence):
        return False
    if sentence.count("(") != sentence.count(")") or sentence.endswith(("i.e.", "e.g.", "cf.")):
        return False
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    common = sum(word.strip("().,;:!?\"'").lower() in _COMMON for word in words)
    return plain >= _PLAIN_SHARE * len(words) and common >= _COMMON_SHARE * len(words)


# --------------------------------------------------------------------------------
# Labelled data.

PACKAGES = (STDLIB, "numpy", "scipy", "sklearn", "matplotlib", "torch")
"""The labels of the package task: packages with enough text."""

RUN = 8
"""Two sentences that share this many consecutive words count as near-duplicates."""

_MIN_EXAMPLES = 10  # per label and file; fewer are not enough to measure anything
_MIN_WORDS = 8  # in a sentence of the package task; shorter ones have too little content
_GIVEAWAYS = re.compile(
    r"python|numpy|scipy|sk-?learn|scikit|matplotlib|pyplot|torch|tensor|"
    r"\b(?:np|sp|mpl|plt|ndarrays?|axes)\b",
    re.IGNORECASE,
)

# First counters of the draws below, so that no two draws use the same numbers.
_SET_ASIDE, _FOR_DEV, _ORDER, _LABEL = range(1, 5)

Row = tuple[str, ...]


def split_documents(
    documents: Sequence[Document], *, seed: int, share: float = 0.15
) -> tuple[list[Document], list[Document]]:
    """Set whole functions and classes aside for the labelled tasks, by a hash of their names.

    Args:
        documents: returned by :func:`harvest`.
        seed: of the hash.
        share: of the definitions, in (0, 1).

    Returns:
        The documents to pre-train on, without sentences that share :data:`RUN` consecutive words
        with those set aside (or are equal); and the documents set aside.
    """
    labelled: list[Document] = []
    rest: list[Document] = []
    for document in documents:
        draw = name_draw(seed, document.definition, _SET_ASIDE)
        (labelled if draw < share else rest).append(document)
    known = _all_runs(sentence for document in labelled for sentence in document.sentences)
    return only_sentences(rest, lambda s: known.isdisjoint(_runs(s))), labelled


def package_task(
    documents: Sequence[Document],
    folder: Path,
    *,
    seed: int,
    train: int = 800,
    dev: int = 800,
    packages: Sequence[str] = PACKAGES,
) -> None:
    """Write ``train.tsv`` and ``dev.tsv``: which package does this sentence describe?

    The columns are ``sentence`` and ``label`` (a package's name). No function or class
    is in both files.

    Args:
        documents: those set aside by :func:`split_documents`.
        folder: created if necessary.
        seed: for all random choices.
        train: number of examples in the training file, over all labels; fewer if there are not
            enough. Each label has the same number.
        dev: the same for the dev file.
        packages: the labels.

    Raises:
        InputError: fewer than ten examples of a label.
        DiskError: a file could not be written.
    """
    examples = [
        (document.definition, (sentence, document.package))
        for document in documents
        if document.package in packages
        for sentence in document.sentences
        if len(sentence.split()) >= _MIN_WORDS and not _GIVEAWAYS.search(sentence)
    ]
    _write_task(examples, folder, ("sentence", "label"), tuple(packages), seed, (train, dev))


def follows_task(
    documents: Sequence[Document], folder: Path, *, seed: int, train: int = 800, dev: int = 800
) -> None:
    """Write ``train.tsv`` and ``dev.tsv``: does the second sentence come right after the first?

    The columns are ``first``, ``second`` and ``label``: ``follows``, or ``other`` where the second
    sentence is the second of another pair, from another docstring of the same package.

    Args, Raises: as for :func:`package_task`.
    """
    groups: dict[tuple[str, bool], list[tuple[Document, str, str]]] = defaultdict(list)
    for document in documents:
        for_dev = _is_for_dev(document.definition, seed, train, dev)
        for paragraph in document.paragraphs:
            # Every second pair, so that no sentence is in two of them.
            for first, second in list(itertools.pairwise(paragraph))[::2]:
                groups[document.package, for_dev].append((document, first, second))
    examples = []
    for pairs in groups.values():
        pairs.sort(key=lambda pair: name_draw(seed, pair[1], _LABEL))
        half = len(pairs) // 2
        examples += [(d.definition, (one, two, "follows")) for d, one, two in pairs[:half]]
        # The seconds of the others move on by one pair: each is still used once.
        moved = pairs[half + 1 :] + pairs[half : half + 1]
        examples += [
            (document.definition, (first, second, "other"))
            for (document, first, _), (source, _, second) in zip(pairs[half:], moved, strict=True)
            if document.name != source.name
        ]
    columns = ("first", "second", "label")
    _write_task(examples, folder, columns, ("follows", "other"), seed, (train, dev))


def _write_task(
    examples: Sequence[tuple[str, Row]],
    folder: Path,
    columns: Row,
    labels: Row,
    seed: int,
    sizes: tuple[int, int],
) -> None:
    """Choose the examples and write both files.

    ``examples`` are (definition, row); the last column of a row is its label.
    """
    train_size, dev_size = sizes
    halves: tuple[list[Row], list[Row]] = ([], [])
    for definition, row in examples:
        halves[_is_for_dev(definition, seed, train_size, dev_size)].append(row)
    for half in halves:
        half.sort(key=lambda row: name_draw(seed, "\t".join(row), _ORDER))
    train = _balanced(halves[0], labels, train_size, folder / "train.tsv")
    known = _all_runs(text for row in train for text in row[:-1])
    fresh = [row for row in halves[1] if all(known.isdisjoint(_runs(t)) for t in row[:-1])]
    dev = _balanced(fresh, labels, dev_size, folder / "dev.tsv")
    for name, rows in (("train.tsv", train), ("dev.tsv", dev)):
        write_text(folder / name, "".join("\t".join(row) + "\n" for row in (columns, *rows)))


def _balanced(rows: Sequence[Row], labels: Row, size: int, path: Path) -> list[Row]:
    """The first rows of each label, the same number of each, in their original order."""
    of_label = {label: [row for row in rows if row[-1] == label] for label in labels}
    scarce = min(labels, key=lambda label: len(of_label[label]))
    each = min(size // len(labels), len(of_label[scarce]))
    if each < _MIN_EXAMPLES:
        raise InputError(
            f"{len(of_label[scarce])} examples of label {scarce!r} for {size} rows in total; each "
            f"of the {len(labels)} labels needs {_MIN_EXAMPLES}. Set more documents aside (share), "
            "harvest more packages, or request more rows.",
            place=Place(path),
        )
    chosen = {row for label in labels for row in of_label[label][:each]}
    return [row for row in rows if row in chosen]


def _is_for_dev(definition: str, seed: int, train: int, dev: int) -> bool:
    """Whether a definition's sentences go to the dev file, in proportion to the sizes."""
    return name_draw(seed, definition, _FOR_DEV) * (train + dev) >= train


def _all_runs(sentences: Iterable[str]) -> set[tuple[str, ...]]:
    return {run for sentence in sentences for run in _runs(sentence)}


def _runs(sentence: str) -> Iterator[tuple[str, ...]]:
    """All runs of :data:`RUN` consecutive words; a shorter sentence is one run."""
    words = words_of(sentence)
    for start in range(max(1, len(words) - RUN + 1)):
        yield tuple(words[start : start + RUN])


# --------------------------------------------------------------------------------
# The text and tasks of the scales of `bothways reproduce` that make their own.

TEXT = "text.txt"
_WORD = re.compile(r"\w+|[^\w\s]")
_DEV_SHARE = 1 / 3


@dataclass(frozen=True)
class TextOptions:
    """The packages to read, and how much to make."""

    packages: tuple[str, ...] = (STDLIB, "numpy")
    max_mb: float = 1.0
    examples: int = 200
    seed: int = 0


def make_text(options: TextOptions, folder: Path) -> dict[str, int]:
    """Write ``text.txt`` and a folder for each task; all or nothing.

    Returns:
        The number of documents to pre-train on, and of those set aside for the tasks.

    Raises:
        InputError: the packages hold too little prose.
        DiskError: a file could not be written.
    """
    documents = harvest(packages=options.packages, max_mb=options.max_mb)
    for_pretraining, for_tasks = split_documents(documents, seed=options.seed)
    sizes = {"seed": options.seed, "train": options.examples, "dev": options.examples}
    with new_folder(folder) as partial:
        write_corpus(for_pretraining, partial / TEXT)
        follows_task(for_tasks, partial / "follows", **sizes)
        package_task(for_tasks, partial / "package", **sizes, packages=options.packages)
        _capitals_task(for_tasks, partial / "capitals", options)
    return {"documents": len(for_pretraining), "set_aside": len(for_tasks)}


def _capitals_task(documents: Sequence[Document], folder: Path, options: TextOptions) -> None:
    """``train.conll``, ``dev.conll`` and ``test.conll``; no definition is in two of them."""
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for document in documents:
        draw = name_draw(options.seed, document.definition, 0)
        split = "train" if draw >= 2 * _DEV_SHARE else "dev" if draw >= _DEV_SHARE else "test"
        tagged = map(_tagged, document.sentences)
        splits[split] += [sentence for sentence in tagged if "\tB-" in sentence]
    for split, sentences in splits.items():
        write_text(folder / f"{split}.conll", "\n\n".join(sentences[: options.examples]) + "\n")


def _tagged(sentence: str) -> str:
    """One line per word, with its tag; the first word's capital is not informative, so ignored."""
    lines, inside = [], False
    for number, word in enumerate(_WORD.findall(sentence)):
        capital = number > 0 and word != word.lower()
        lines.append(f"{word.lower()}\t{('I-CAP' if inside else 'B-CAP') if capital else 'O'}")
        inside = capital
    return "\n".join(lines)
