"""Learning a Unigram vocabulary with the package sentencepiece (Kudo 2018), in ALBERT's form.

The result is a spiece.model that is read like any other: text has its accents stripped and is
lower-cased, or not, before SentencePiece sees it, which then applies its own NFKC. The number of
threads is a constant, because the sums of EM, and so the pieces, depend on it.
"""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import normalizers

from bothways.errors import ConfigError, explain_missing
from bothways.io.files import write_bytes, write_json
from bothways.tokenization.options import LearningOptions
from bothways.tokenization.pieces import META_SPACE
from bothways.tokenization.reading import SETTINGS_FILE, cleaning
from bothways.tokenization.tokenizer import Tokenizer
from bothways.tokenization.tokenizer_classes import ALBERT

NORMALIZATION = "nmt_nfkc"
"""SentencePiece's name for its NFKC, which also makes all white space the same."""
_THREADS = 4
_LONGEST_LINE = 2**30  # bytes; by default longer ones than 4,192 are left out in silence


def learn_unigram(lines: Iterable[str], options: LearningOptions) -> Tokenizer:
    """Learn a vocabulary; the same lines in the same order give the same bytes on any machine.

    Args:
        lines: the text; it is held in memory.
        options: ``size``, ``coverage``, ``byte_fallback``, ``lowercase`` and ``unused``.

    Raises:
        ConfigError: the size is more than the text gives, or less than its characters need; or
            the package sentencepiece is missing.
    """
    with explain_missing("the algorithm unigram"):
        import sentencepiece
    model = io.BytesIO()
    roles = ALBERT.roles
    controls = [roles.cls, roles.sep, roles.mask, *(f"[unused{i}]" for i in range(options.unused))]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_cleaned(lines, lowercase=options.lowercase),
            model_writer=model,
            model_type="unigram",
            vocab_size=options.size,
            character_coverage=options.coverage,
            byte_fallback=options.byte_fallback,
            normalization_rule_name=NORMALIZATION,
            num_threads=_THREADS,
            max_sentence_length=_LONGEST_LINE,
            pad_id=0,
            pad_piece=roles.pad,
            unk_id=1,
            unk_piece=roles.unk,
            bos_id=-1,
            eos_id=-1,
            control_symbols=controls,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"size {options.size:,} cannot be learned from this text by sentencepiece: {error}"
        ) from error
    with tempfile.TemporaryDirectory(prefix="bothways-unigram-") as name:
        folder = Path(name)
        write_bytes(folder / ALBERT.files[0], model.getvalue())
        settings = {
            "do_lower_case": options.lowercase,
            "keep_accents": not options.lowercase,
            "normalization": "composed",
        }
        write_json(folder / SETTINGS_FILE, settings)
        return Tokenizer.from_folder(folder)


def _cleaned(lines: Iterable[str], *, lowercase: bool) -> Iterator[str]:
    clean = normalizers.Sequence(cleaning(keep_accents=not lowercase, lowercase=lowercase))
    return filter(str.strip, map(clean.normalize_str, lines))


def uncovered(tokenizer: Tokenizer, words: dict[str, int]) -> dict[str, int]:
    """The characters of a text that have no piece, most frequent first, with counts.

    Args:
        tokenizer: a Unigram one.
        words: of the text, with counts, normalised.
    """
    known = {character for piece in tokenizer.pieces for character in piece} | {META_SPACE}
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in {*word} - known:
            counts[character] += count * word.count(character)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
