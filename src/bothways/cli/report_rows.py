"""What the rows of the reports mean that `bothways vocab` and `bothways corpus` print.

They are the keys of vocabulary-report.json and of corpus.json, those of a group behind its name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

VOCABULARY = {
    "vocabulary folder": "where it was written",
    "vocabulary pieces": "how many it has, with the special ones",
    "vocabulary fewer because": "why these are fewer than --size",
    "vocabulary algorithm": "how pieces are learned (--algorithm)",
    "vocabulary score": "by what the next pair to join is chosen (--score)",
    "vocabulary case": "uncased: text is lower-cased first (--lowercase)",
    "vocabulary normalization": "how text is cleaned first (--normalization)",
    "vocabulary normalization asked for": "auto: it was chosen by case and letters of the text",
    "vocabulary start a word": "pieces that words begin with; the others (##ing) continue one",
    "vocabulary single syllables": "pieces that are one Hangul syllable",
    "vocabulary segmenter": "the function that divides words first (--segmenter)",
    "vocabulary longest pieces": "a look at what was learned",
    "vocabulary fingerprint": "the same for the same pieces and rules; corpora and models have it",
    "alphabet letters": "letters in the text",
    "alphabet hangul and kana": "their share of the letters",
    "alphabet with vowel marks": "the share of letters of scripts whose vowels are marks (Indian, "
    "Thai ...)",
    "alphabet ideographs": "the share of Chinese characters",
    "alphabet kept": "different characters that are pieces",
    "alphabet dropped": "different characters, the rarest, that are not (--alphabet); words with "
    "one of them are unknown",
    "alphabet dropped share": "their share of the text's characters",
    "alphabet most frequent dropped": "the most frequent of them, with counts",
    "learned from distinct words": "different words in the text",
    "learned from words": "words in the text, each as often as it occurs",
    "learned from pieces": "pieces that these words are split into",
    "learned from pieces a word": "their ratio: the closer to 1, the better the pieces fit",
    "learned from whole": "share of the words that are one piece",
    "learned from unknown": "share of the words with a part that no piece covers",
    "learned from unknown words": "the most frequent of them, with counts",
    "learned from files left out": "files in the folders that hold no text",
    "learned from broken lines": "lines that could not be read as they are (--broken)",
    "heldout ...": "the same of the text that --heldout names",
}
CORPUS = {
    "files": "files read",
    "text mb": "megabytes of text in them",
    "continued units": "parts taken over from a build that was interrupted",
    "train documents": "documents to train on, after joining and dropping (below)",
    "train sentences": "their sentences",
    "train tokens": "their tokens: pieces of the vocabulary",
    "train sentence tokens": "lengths of sentences in tokens: the shortest, the one that 5 % are "
    "not above (p5), the middle (p50), the longest ...",
    "train document tokens": "the same of documents",
    "heldout ...": "the same of the documents held out to measure on (--heldout)",
    "heldout note": "why these cannot be measured on",
    "unknown rate": "share of the tokens that are unknown: no piece covers them",
    "special tokens": "times that the text itself has special words such as that of the mask",
    "single sentence documents joined": "documents of one sentence, joined to the one after "
    "them (--single_sentence)",
    "single sentence documents dropped": "those that were left out",
    "single sentence note": "what to do if most documents are such",
    "short documents dropped": "documents below --min_sentences, --min_tokens or --min_characters",
    "empty sentences dropped": "sentences without a token, such as invisible characters alone",
    "scripts": "shares of the letters by writing system",
    "seconds": "the time it took",
    "mb per second": "megabytes of text a second",
    "repeated documents": "documents whose text occurred before, of all; removed or kept "
    "(--duplicates)",
    "repeated paragraphs": "the same of paragraphs",
    "most repeated ...": "the paragraphs that occur most often, and how they begin",
    "layout ...": "what was noticed of how files are laid out, such as lines cut at a width; "
    "of what stands beside the text, such as times or numbers; of odd characters",
    "broken ...": "lines that could not be read as they are, and the first of them (--broken)",
}


def explained(rows: Mapping[str, str]) -> str:
    """The rows as lines for a help page."""
    width = max(map(len, rows))
    lines = ["rows of the report:"]
    for name, text in rows.items():
        first, *others = textwrap.wrap(text, 84 - width)
        lines += [f"  {name:<{width}}  {first}", *(" " * (width + 4) + line for line in others)]
    return "\n".join(lines)
