"""Files that are larger than memory: predicted and embedded window by window, written in parts.

A window is some thousand rows (:func:`bothways.tasks.readers.row_windows`), a part what is written
of it (:mod:`bothways.io.parts`). Windows are computed here, the next one read and tokenized
meanwhile, or in other processes, which are sent texts and send back parts; this process alone reads
and writes files. After a kill the file is read again from its beginning, and the parts that are
there are not computed again.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from bothways.errors import RunError
from bothways.io.folder_files import count_lines
from bothways.io.hub import model_folder
from bothways.io.parallel import in_processes
from bothways.io.parts import Content, Parts
from bothways.io.terminal import ShowProgress, print_note, progress_of
from bothways.io.text import COMPRESSED
from bothways.io.written import ARROW, arrow_table, breaks_in, table_text
from bothways.runtime.batching import ahead
from bothways.runtime.embeddings import embed_texts, vectors_content, vectors_head
from bothways.runtime.engine import EngineOptions
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import outputs_of
from bothways.runtime.texts import FileTexts
from bothways.tasks.readers import Texts
from bothways.tasks.task import EncodedFile, number_columns, submission_rows
from bothways.tasks.texts import TextTask
from bothways.tasks.windows import Reading
from bothways.tokenization.normalization import count_decomposed

About = dict[str, Any]
"""What is known of a part: ``rows``, ``line`` (the last one) and counts."""


@dataclass(frozen=True)
class Job(ABC):
    """What is done with each window. It is sent to other processes.

    Attributes:
        folders: of the model, or the models of an ensemble.
        options: how it is computed.
        suffix: of the file that is written.
    """

    folders: tuple[str, ...]
    options: EngineOptions
    suffix: str

    @abstractmethod
    def digest(self, window: Any) -> str:
        """Of all of a window that its part is made from."""

    @abstractmethod
    def prepare(self, loaded: LoadedModel, window: Any) -> Any:
        """What can be done in a thread, while another window is computed."""

    @abstractmethod
    def compute(self, loaded: LoadedModel, prepared: Any) -> tuple[Content, About]:
        """A window's part."""

    @abstractmethod
    def head(self, first: About, counts: Mapping[str, int]) -> bytes:
        """What stands before all parts, by what is known of the first and of all."""


@dataclass(frozen=True)
class Labelling(Job):
    """Predictions for the rows of a table.

    Attributes:
        task: its labels and columns decided.
        length: the limit in tokens.
        keep: names of columns that are carried over.
        submission: only index and prediction.
    """

    task: TextTask
    length: int
    keep: tuple[str, ...] = ()
    submission: bool = False

    def digest(self, window: Texts) -> str:
        """Of texts, further columns and row numbers."""
        b = window.b if window.b is not None else []
        kept = [json.dumps(row) for row in window.kept]
        return _digest(window.a, b, kept, [str(number) for number in window.numbers])

    def prepare(self, loaded: LoadedModel, window: Texts) -> EncodedFile[Texts]:
        """Encoded."""
        return self.task.for_measuring().encode(loaded.tokenizer, window, length=self.length)

    def table(
        self,
        loaded: LoadedModel,
        file: EncodedFile[Texts],
        progress: ShowProgress | None = None,
    ) -> list[list[Any]]:
        """The predictions for a window under a header, with the numbers of its rows and further
        columns."""
        outputs = outputs_of(loaded, self.task, file.examples, progress=progress)
        table = self.task.table(file, self.task.decode(file, outputs))
        for number, row in zip(file.rows.numbers, table[1:], strict=True):
            row[0] = str(number)
        if self.keep:
            kept = [[*self.keep], *file.rows.kept]
            table = [[row[0], *own, *row[1:]] for row, own in zip(table, kept, strict=True)]
        return submission_rows(table) if self.submission else table

    def breaks(self, rows: Texts) -> int:
        """In how many of the values that are carried over tabs and line breaks become spaces."""
        return breaks_in(self.suffix, chain.from_iterable(rows.kept))

    def numbers(self, header: Sequence[str]) -> set[str]:
        """The columns whose values are numbers."""
        return (
            number_columns(header, scores=self.task.loss == "score")
            if not self.submission
            else set()
        )

    def compute(self, loaded: LoadedModel, prepared: EncodedFile[Texts]) -> tuple[Content, About]:
        """Rows of the table, without its header."""
        header, *rows = self.table(loaded, prepared)
        numbers = self.numbers(header)
        contents = self.task.contents(prepared.rows)
        reading = Reading.of(loaded.tokenizer, prepared.examples, prepared.rows.empty, contents)
        about = {"line": prepared.rows.lines[-1], "rows": len(rows), "header": header}
        about |= {**asdict(reading), "breaks": self.breaks(prepared.rows)}
        if self.suffix in ARROW:
            return arrow_table([header, *rows], numbers), about
        text = table_text(self.suffix, [header, *rows], numbers)
        return text.removeprefix(self._head(header)).encode(), about

    def head(self, first: About, counts: Mapping[str, int]) -> bytes:  # noqa: ARG002
        """The header."""
        return self._head(first["header"]).encode()

    def _head(self, header: list[str]) -> str:
        return "" if self.suffix in ARROW else table_text(self.suffix, [header])


@dataclass(frozen=True)
class Embedding(Job):
    """Vectors of texts.

    Attributes:
        how: the arguments of :func:`bothways.runtime.embeddings.embed_texts`.
    """

    how: dict[str, Any]

    def digest(self, window: FileTexts) -> str:
        """Of texts and further columns."""
        return _digest(window.texts, [json.dumps(values) for values in window.kept.values()])

    def prepare(self, loaded: LoadedModel, window: FileTexts) -> FileTexts:  # noqa: ARG002
        """Nothing: parts of a window are tokenized ahead."""
        return window

    def compute(self, loaded: LoadedModel, prepared: FileTexts) -> tuple[Content, About]:
        """Rows of vectors."""
        found = embed_texts(loaded, prepared.texts, **self.how)
        if found.pooled is not None:
            vectors, size = found.pooled.shape
        else:
            vectors = sum(len(text.tokens) for text in found.tokens)
            size = found.tokens[0].vectors.shape[1]
        about = {"line": prepared.last, "rows": len(prepared.texts), "size": size}
        about |= {"vectors": vectors, "cut": found.cut, "long": found.long}
        about["decomposed"] = count_decomposed(prepared.texts, loaded.tokenizer.normalize)
        return vectors_content(self.suffix, prepared.texts, found, prepared.kept), about

    def head(self, first: About, counts: Mapping[str, int]) -> bytes:
        """That of an array."""
        return vectors_head(self.suffix, counts["vectors"], first["size"])


def write_in_parts(
    job: Job,
    loaded: LoadedModel,
    windows: Iterator[Any],
    path: Path,
    out: Path,
    what: str,
    *,
    workers: int = 1,
    cluster: str | None = None,
) -> tuple[About, Counter[str]]:
    """Compute the windows of a file and write what is made of them.

    Args:
        job: what is made.
        loaded: the model.
        windows: of the file.
        path: the file, for how far it is.
        out: the file to write.
        what: is done, for how far it is.
        workers, cluster: as for :func:`bothways.io.parallel.in_processes`.

    Returns:
        What is known of the first part, and the sums over all.

    Raises:
        RunError: another process writes the same file, or a worker was lost.
        DiskError: a part could not be written.
        BothwaysError: what reading and computing raise.
    """
    total = _rows_of(path)
    known: dict[int, About] = {}

    def todo(parts: Parts) -> Iterator[tuple[Job, int, str, Any]]:
        for number, window in enumerate(windows):
            digest = job.digest(window)
            if (about := parts.known(number, digest)) is not None:
                known[number] = about
            else:
                yield job, number, digest, window

    with Parts(out, _asked(job, loaded)) as parts, progress_of(what) as show:
        if parts.resumed:
            print_note(f"{out}: continued from the parts in {out.name}.parts")
        for number, digest, content, about in _results(job, loaded, todo(parts), workers, cluster):
            parts.add(number, digest, content, about)
            known[number] = about
            show(about["line"], total)
        counts: Counter[str] = Counter()
        for about in known.values():
            counts.update({name: n for name, n in about.items() if isinstance(n, int)})
        parts.join(len(known), job.head(known[0], counts))
        return known[0], counts


Result = tuple[int, str, Content, About]


def _results(
    job: Job,
    loaded: LoadedModel,
    todo: Iterator[tuple[Job, int, str, Any]],
    workers: int,
    cluster: str | None,
) -> Iterator[Result]:
    if workers != 1 or cluster:
        with in_processes(_work, todo, workers=workers, cluster=cluster, lost=RunError) as results:
            yield from results
        return

    def prepare(one: tuple[Job, int, str, Any]) -> tuple[int, str, Any]:
        _, number, digest, window = one
        return number, digest, job.prepare(loaded, window)

    with closing(ahead(todo, prepare)) as prepared:  # type: ignore[type-var]
        for number, digest, own in prepared:
            yield (number, digest, *job.compute(loaded, own))


def _work(job: Job, number: int, digest: str, window: Any) -> Result:
    """In another process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are those of all processes
    loaded = _opened(job.folders, job.options)
    with loaded.engine.working():
        return (number, digest, *job.compute(loaded, job.prepare(loaded, window)))


@lru_cache(maxsize=1)
def _opened(folders: tuple[str, ...], options: EngineOptions) -> LoadedModel:
    return load_ensemble(folders, options)


def _rows_of(path: Path) -> int:
    """The rows or lines of a file; 0 if that takes more than reading it through."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    return count_lines(path) if path.is_file() and path.suffix not in COMPRESSED else 0


def _asked(job: Job, loaded: LoadedModel) -> dict[str, Any]:
    """What all parts depend on: the model's files by size and time, what is done, and the engine
    that does it here, where none was named."""
    files = []
    for name in job.folders:
        folder = model_folder(name)
        folder = folder if folder.exists() else folder.parent  # of a checkpoint, by its name
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if file.is_file():
                stat = file.stat()
                files.append([str(file), stat.st_size, stat.st_mtime_ns])
    parts = {name: value for name, value in vars(job).items() if name not in ("options", "task")}
    task = repr(job.task.options) if isinstance(job, Labelling) else ""
    options = [loaded.engine.name, loaded.engine.precision, job.options.device]
    return {
        "bothways": version("bothways"),
        **parts,
        "task": task,
        "engine": options,
        "files": files,
    }


def _digest(*columns: Sequence[str]) -> str:
    found = blake2b(digest_size=16)
    for column in columns:
        found.update(b"%d\n" % len(column))
        for text in column:
            data = text.encode("utf-8", "surrogatepass")
            found.update(b"%d\n" % len(data) + data)
    return found.hexdigest()
