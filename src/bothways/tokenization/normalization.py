"""What happens to text before WordPiece: cleaning, case, accents, and where words end.

The rules are those of the original BERT (``BasicTokenizer``): control characters are dropped, every
kind of white space becomes a space, CJK ideographs stand alone, punctuation is split off; the
uncased models also lower-case and strip accents.
"""

from __future__ import annotations

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer


def normalizer(
    *, lowercase: bool, strip_accents: bool | None = None, split_cjk: bool = True
) -> BertNormalizer:
    """BERT's text cleaning; ``strip_accents=None`` means: as ``lowercase``."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_cjk,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )


def word_splitter() -> BertPreTokenizer:
    """Splits cleaned text at white space and around every punctuation mark."""
    return BertPreTokenizer()
