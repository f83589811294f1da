"""What a verb says when it has ended: a sample of what was made, and the command that comes next,
with the paths that were used."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError
from bothways.io.terminal import visible

if TYPE_CHECKING:
    from bothways.corpus.options import CorpusConfig
    from bothways.finetuning.options import FinetuneConfig
    from bothways.finetuning.results import FinetuneResult
    from bothways.pretraining.options import PretrainConfig
    from bothways.pretraining.pretrain import PretrainResult
    from bothways.tasks.options import SplitConfig
    from bothways.tokenization.options import VocabularyConfig
    from bothways.tokenization.tokenizer import Tokenizer

_SAMPLES, _TRIED, _SHORTEST, _LONGEST, _WIDTH = 3, 50, 6, 24, 70
# What a command may lack: a file of the reader's own.
_LABELLED = ("--train", "train.csv", "--text", "text", "--label", "label", "--dev", "0.1")


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def say_next(*commands: Sequence[str | Path]) -> None:
    """Print commands that can be copied, to stderr as notes are."""
    lines = [shlex.join(["bothways", *map(str, words)]) for words in commands]
    sys.stdout.flush()
    print("\nnext:", *map(visible, lines), sep="\n  ", file=sys.stderr)


def after_vocabulary(config: VocabularyConfig) -> None:
    """The corpus comes next; and how texts are split now."""
    corpus = ["corpus", "--files", *config.files, "--tokenizer", config.out, "--out", "corpus"]
    say_next(["tokenize", config.out, "a sentence of yours"], corpus)


def after_corpus(config: CorpusConfig) -> None:
    """Pre-training comes next."""
    say_next(
        ["corpus", "show", config.out],
        ["plan", "mini", "--corpus", config.out],
        ["pretrain", "--corpus", config.out, "--minutes", "10"],
    )


def after_split(config: SplitConfig) -> None:
    """Fine-tuning comes next."""
    suffix = Path(config.file).suffix
    files = [Path(config.out) / f"{part}{suffix}" for part in ("train", "dev")]
    if all(path.exists() for path in files):  # a list becomes lines, in another format
        say_next(["finetune", "--train", files[0], "--dev", files[1]])


def after_folder(config: Any) -> None:
    """What a folder that was written can do."""
    say_next(["info", config.out])


def after_plan(words: Sequence[str]) -> None:
    """The run that was planned: the same words."""
    from bothways.experiments.options import PlanConfig  # slow import
    from bothways.pretraining.options import PretrainConfig

    own = {*PlanConfig.__dataclass_fields__} - {*PretrainConfig.__dataclass_fields__}
    if any(word.startswith(tuple(f"--{name}" for name in own)) for word in words):
        return  # a run has no such option
    if any(word == "--corpus" or word.startswith("--corpus=") for word in words):
        say_next(["pretrain", *words])


def after_pretraining(config: PretrainConfig, result: PretrainResult) -> None:
    """Fillings of hidden words, and fine-tuning; of several processes, the first says it."""
    if not is_first_process():
        return
    commands: list[list[str | Path]] = []
    if not (config.masking.left_to_right or config.objectives.replaced):
        try:
            texts = list(_hidden_words(config.corpus))
            _print_fillings(result.model, texts)
            commands += [["fill-mask", result.model, text] for text, _ in texts[:1]]
        except BothwaysError as error:
            print(f"\nno sample of fillings: {visible(str(error))}")
    say_next(*commands, ["finetune", *_LABELLED, "--model", result.model])


def _hidden_words(corpus: str) -> Iterator[tuple[str, str]]:
    """Some sentences of a corpus, held-out ones if there are any, each with a word hidden that is
    one piece: the text and the word."""
    from bothways.corpus.store import TokenStore

    for split in ("heldout", "train"):
        store = TokenStore.open(corpus, split)
        bounds = store.sentence_bounds
        lengths = bounds[1:] - bounds[:-1]
        fitting = ((lengths >= _SHORTEST) & (lengths <= _LONGEST)).nonzero()[0]
        found: dict[str, str] = {}
        for part in range(_SAMPLES):  # of the beginning, the middle and the end
            for place in fitting[part * len(fitting) // _SAMPLES :][:_TRIED].tolist():
                ids = store.tokens_between(int(bounds[place]), int(bounds[place + 1])).tolist()
                hidden = _hide(ids, store.tokenizer)
                if hidden and hidden[0] not in found:
                    found[hidden[0]] = hidden[1]
                    break
        if found:
            yield from found.items()
            return


def _hide(ids: list[int], tokenizer: Tokenizer) -> tuple[str, str] | None:
    """A sentence with its longest word of one piece hidden; None if it has none."""
    whole = [
        place
        for place in range(1, len(ids) - 1)
        if tokenizer.starts_word[ids[place]]
        and tokenizer.starts_word[ids[place + 1]]
        and tokenizer.text_of(ids[place]).isalpha()
    ]
    if not whole or tokenizer.mask_id is None:
        return None
    place = max(whole, key=lambda p: len(tokenizer.text_of(ids[p])))
    before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1 :])
    return f"{before} {tokenizer.roles.mask} {after}", tokenizer.text_of(ids[place])


def _print_fillings(model: Path, texts: Sequence[tuple[str, str]]) -> None:
    from bothways.api.model import load

    opened = load(model)
    print("\nwords that the model puts in for hidden ones:" * bool(texts))
    for text, word in texts:
        (fillings,) = opened.fill_mask(text, top=4)
        shown = ", ".join(f"{f.piece} {f.probability:.0%}" for f in fillings)
        print(visible(f"  {text}\n      {shown} (it was: {word})"))


def after_finetuning(config: FinetuneConfig, result: FinetuneResult) -> None:
    """The surest mistakes on dev, and how the model is used."""
    from bothways.finetuning.report import read_dev_report

    report = read_dev_report(result.best.folder)
    errors: list[Mapping[str, Any]] = report["errors"][:_SAMPLES]
    if errors:
        print(f"\nof the {report['errors_total']:,} mistakes of {result.best.name} on dev:")
    for error in errors:
        texts = " | ".join(_short(text) for _, text in error["texts"])
        print(
            visible(
                f"  {texts}\n      {_short(error['predicted'])}; right: {_short(error['gold'])}"
            )
        )
    model, kind = result.best.model, config.task.kind
    own = "a text of yours"
    commands: dict[str, list[str | Path]] = {
        "tagging": ["tag", model, own],
        "spans": ["answer", model, "--question", "a question?", "--context", own],
        "choice": ["choose", model, own, "one end", "another end"],
    }
    second = ["--text_b", "its second text"] if config.task.text_b else []
    print(f"\nreport: {result.run / 'report.html'}")
    say_next(commands.get(kind, ["predict", model, own, *second]), ["info", result.run])


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
