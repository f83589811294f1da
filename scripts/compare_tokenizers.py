"""Compare our tokenizers with transformers' fast classes, and with sentencepiece, on real text.

    python scripts/compare_tokenizers.py FOLDER FILE ... [--strings 100000] [--made KIND]

FOLDER has the files of a tokenizer, as transformers reads them. FILEs are text, plain or compressed
(.xz); their lines are the strings, every other one paired with the next. Ids, segments, offsets and
words are compared with AutoTokenizer's, and with a tokenizer.json also those of transformers'
PreTrainedTokenizerFast, which uses the file as it is. Ids of a .model file are compared with the
sentencepiece package's, for strings without special pieces.

With ``--made`` (roberta, modernbert, albert, xlm-roberta), FOLDER is made first, by learning a
vocabulary of 30,000 pieces from the strings.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from bothways.tokenization.tokenizer import Tokenizer

ANGLED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False}
MASK |= {"normalized": False, "single_word": False}
SIZE = 30_000
BATCH = 2000
SHOWN = 5


def main() -> None:
    """Print how many strings differ, and the first of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--made", choices=MAKERS)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    texts = sample(given.files, given.strings)
    if given.made:
        given.folder.mkdir(parents=True, exist_ok=True)
        MAKERS[given.made](given.folder, texts)
    ours = Tokenizer.from_folder(given.folder)
    print(
        f"{given.folder.name}: {ours.kind}, {ours.vocab_size:,} pieces, {len(texts):,} strings, "
        f"{sum(map(len, texts)):,} characters"
    )
    theirs = transformers.AutoTokenizer.from_pretrained(given.folder)
    report(f"AutoTokenizer ({type(theirs).__name__})", differences(ours, theirs, texts))
    file = given.folder / "tokenizer.json"
    if file.is_file():
        plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
        report("PreTrainedTokenizerFast on the file", differences(ours, plain, texts))
    for path in given.folder.glob("*.model"):
        report("sentencepiece (ids)", sentencepiece_differences(ours, path, texts))


def sample(files: Sequence[Path], count: int) -> list[str]:
    """Lines of all files, drawn with a fixed seed, and a few changed ones."""
    lines = [line for file in files for line in read(file)]
    rng = random.Random(0)
    chosen = rng.sample(lines, min(count, len(lines)))
    for number in range(0, len(chosen), 50):  # what files seldom have
        chosen[number] = f" {chosen[number]}  <mask>-[MASK]\t{chosen[number][:20]}\u200b\u3000 "
    return chosen


def read(file: Path) -> Iterator[str]:
    """The lines of a file that are not blank, at most 2,000 characters of each."""
    opened = lzma.open if file.suffix == ".xz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line := line.rstrip("\n")[:2000]:
                yield line


def differences(ours: Tokenizer, theirs: Any, texts: Sequence[str]) -> list[str]:
    """The strings whose ids, segments, offsets or words differ, with what does."""
    found = []
    for start in range(0, len(texts), BATCH):
        batch = [*texts[start : start + BATCH]]
        half = len(batch) // 2
        for a, b in ((batch[:half], batch[half : 2 * half]), (batch[half:], None)):
            expected = theirs(a, b, return_offsets_mapping=True, return_token_type_ids=True)
            for number, encoding in enumerate(ours.encode_batch(a, b)):
                same = {
                    "ids": encoding.ids == expected["input_ids"][number],
                    "segments": encoding.segments == expected["token_type_ids"][number],
                    "offsets": encoding.offsets == expected["offset_mapping"][number],
                    "words": encoding.words == expected.word_ids(number),
                }
                if not all(same.values()):
                    what = ", ".join(name for name, equal in same.items() if not equal)
                    pair = (a[number], "" if b is None else b[number])
                    found.append(f"{what}: {pair!r}")
    return found


def sentencepiece_differences(ours: Tokenizer, path: Path, texts: Sequence[str]) -> list[str]:
    """The strings for which the sentencepiece package gives other pieces."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    prepare = albert_text if path.name == "spiece.model" else str
    special = {*ours.roles.pieces, "[MASK]", "<mask>"}
    found = []
    for text in texts:
        if any(piece in text for piece in special):
            continue
        expected = model.encode(prepare(text))
        names = [ours.roles.unk if i == model.unk_id() else model.id_to_piece(i) for i in expected]
        pieces = [ours.piece(i) for i in ours.encode_plain([text])[0]]
        if names != pieces:
            at = next((i for i, (x, y) in enumerate(zip(names, pieces)) if x != y), 0)  # noqa: B905
            found.append(f"{pieces[at : at + 6]}, theirs {names[at : at + 6]}: {text!r}")
    return found


def albert_text(text: str) -> str:
    """What Google's code for ALBERT does with a text before SentencePiece sees it."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    rules = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    return str(normalizers.Sequence(rules).normalize_str(text))


def report(name: str, found: Sequence[str]) -> None:
    """Print one comparison."""
    numbers = sum(bool(re.search(r"\d,", line)) for line in found)
    print(f"  {name}: {len(found):,} differ, {numbers:,} of them with a number before a comma")
    found = [line for line in found if not re.search(r"\d,", line)]
    for line in found[:SHOWN]:
        print(f"    {line[:300]}")


def make_roberta(folder: Path, texts: Sequence[str]) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=SIZE, special_tokens=ANGLED, show_progress=False)
    trained.save_model(str(folder))
    describe(folder, "roberta", {"tokenizer_class": "RobertaTokenizer", "mask_token": MASK})


def make_modernbert(folder: Path, texts: Sequence[str]) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    names = {role: f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    trainer = BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[
            AddedToken(piece, lstrip=role == "mask", normalized=False)
            for role, piece in names.items()
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(names[role], library.token_to_id(names[role])) for role in ("cls", "sep")],
    )
    library.save(str(folder / "tokenizer.json"))
    settings = {f"{role}_token": piece for role, piece in names.items()}
    describe(folder, "modernbert", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})


def make_sentencepiece(folder: Path, kind: str, texts: Sequence[str]) -> None:
    import sentencepiece

    name, ids = "sentencepiece.bpe", {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    controls: list[str] = []
    if kind == "albert":
        name, ids = "spiece", {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        controls = ["[CLS]", "[SEP]", "[MASK]"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / name),
        vocab_size=SIZE,
        hard_vocab_limit=False,
        control_symbols=controls,
        num_threads=1,
        minloglevel=2,
        **ids,
    )
    describe(folder, kind, {"mask_token": {**MASK, "content": "[MASK]"} if controls else MASK})


def describe(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


MAKERS: dict[str, Callable[[Path, Sequence[str]], None]] = {
    "roberta": make_roberta,
    "modernbert": make_modernbert,
    "albert": lambda folder, texts: make_sentencepiece(folder, "albert", texts),
    "xlm-roberta": lambda folder, texts: make_sentencepiece(folder, "xlm-roberta", texts),
}


if __name__ == "__main__":
    main()
