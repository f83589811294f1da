"""What stands beside the text of lines: times, numbers, names, marks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bothways.io.oddities.alike import ALIKE, FEW, MANY, MOST, NEARLY_ALL, SOME, of_first, shown
from bothways.io.text_columns import TEXT_NAMES

# What lines begin with. The expressions mean the same to sed -E.
_TIME = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?"
_DATE = r"[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}"
_CHAT_TIMES, _LOG_TIMES = "dates and times, as in a chat,", "dates and times, as in a log,"
_BEGINNINGS = (
    ("times and names, as in a chat,", rf"^\[?{_TIME}\]? *<[^>]+> *"),
    ("names and times, as in a chat,", rf"^\[[^]]+\] \[[^]]*{_TIME}[^]]*\] *"),
    (
        _CHAT_TIMES,
        rf"^[^0-9a-zA-Z]{{0,2}}{_DATE},? {_TIME}( ?[aApP]\.?[mM]\.?)?\]?( -)? [^:]{{1,40}}: ",
    ),
    ("times", r"^\[[0-9]+:[0-9:., >-]+\] *"),
    (_LOG_TIMES, rf"^\[?{_DATE}[T ,]+{_TIME}[^ ]* *"),
    (_LOG_TIMES, rf"^[A-Z][a-z]{{2}} +[0-9]+ {_TIME} "),
    (
        "addresses and times, as in a log,",
        r"^[^ ]+ [^ ]+ [^ ]+ \[[0-9]+/[A-Z][a-z]+/[0-9]+:[^]]*\] *",
    ),
    (
        "dates, times and names, as in a chat,",
        rf"^[0-9]{{4}}년 [0-9]{{1,2}}월 [0-9]{{1,2}}일 [^,]{{0,12}}{_TIME}, [^:]{{1,40}} ?: ?",
    ),
    ("times and names, as in a chat,", rf"^{_TIME}\t[^\t]+\t"),
    ("levels and times, as in a log,", rf"^\[?[A-Z]{{4,8}}\]?:? +\[?{_DATE}[T ,]+{_TIME}[^ ]* *"),
    ("times", rf"^\(?{_TIME}\)?( -)? "),
    ("ids", r"^[0-9A-Za-z.]*[0-9][0-9A-Za-z.]*([-_][0-9A-Za-z.]*[0-9][0-9A-Za-z.]*)+[ \t]+"),
    ("labels", r"^(__label__[^ ]+ +)+"),
)
# Lines that are nothing but when, and by whom, what follows was said.
_NAMED_HEAD = rf"^[^:]{{1,40}}  +\(?{_TIME}\)?$"
_DAY = rf"({_DATE}|[0-9]{{1,2}}-[A-Z][a-z]{{2}}-[0-9]{{2,4}})"
_HEAD = rf"^.{{0,40}}{_DAY}[T ,]+{_TIME}( ?[AP]M)?\]?.{{0,30}}$"


@dataclass(frozen=True)
class _Sign:
    """Something beside the text that an expression tells by itself.

    Attributes:
        name: what it is about.
        pattern: searched in each line.
        share: of the lines, at least, that must have it.
        said: behind their number; ``{}`` is an example.
        command: takes it out.
        part: without which no line has it; found fast.
        least: lines that must have it.
    """

    name: str
    pattern: re.Pattern[str]
    share: float
    said: str
    command: str
    part: str = ""
    least: int = FEW

    def note(self, lines: Sequence[str]) -> str:
        """What is to be said of lines; empty if too few have it."""
        # A search goes on behind the beginning of a line even where it can match there alone.
        find = self.pattern.match if self.pattern.pattern.startswith("^") else self.pattern.search
        found = [match[0] for line in lines if self.part in line and (match := find(line))]
        if len(found) < max(self.least, self.share * len(lines)):
            return ""
        said = self.said.replace("{}", shown(found[0].strip(" ")))
        return f"{of_first(len(found), lines)} {said}: {self.command}"


def _pieces(mark: str, pattern: str, share: float, command: str) -> _Sign:
    said = (
        f"are split into pieces or words with {mark.strip()}, as tokenizers write them, and the "
        "marks are text here; join them"
    )
    return _Sign("pieces", re.compile(pattern), share, said, command, mark)


_OUT = "text here; take them out"
_SIGNS = (
    *(
        _Sign(
            "times" if "times" in what else what,
            re.compile(begin),
            MANY,
            f"begin with {what} such as {{}}, which are {_OUT}",
            f"sed -E 's#{begin}##' OLD > NEW",
        )
        for what, begin in _BEGINNINGS
    ),
    _Sign(
        "times",
        re.compile(rf"^{_TIME}\Z"),
        0.25,
        f"are times, which are {_OUT}",
        f"sed -E '/^{_TIME}\\r?$/d' OLD > NEW",
    ),
    _Sign(
        "times",
        re.compile(_HEAD),
        0.25,
        f"are dates and times such as {{}}, which are {_OUT}",
        f"sed -E '/{_HEAD[:-1]}\\r?$/d' OLD > NEW",
    ),
    _Sign(
        "licence",
        re.compile(r"^\*\*\* ?(?:START|END) OF TH(?:E|IS) PROJECT GUTENBERG"),
        0,
        "say where a text of Project Gutenberg begins and ends, and what stands before and behind, "
        f"such as its licence, is {_OUT}",
        "awk '/^\\*\\*\\* ?START OF/ {b = 1; next} /^\\*\\*\\* ?END OF/ {b = 0} b' OLD > NEW",
        "PROJECT GUTENBERG",
        least=1,
    ),
    _Sign(
        "readings",
        re.compile(r"[《［](?:(?<=[\u3005\u4e00-\u9fff]《)[ぁ-んァ-ヶー]+》|＃)"),
        SOME,
        f"hold readings or notes as Aozora Bunko writes them, such as {{}}, which are {_OUT}",
        "python -c 'import re, sys; sys.stdout.writelines(re.sub("
        '"《[ぁ-んァ-ヶー]+》|［＃[^］]*］|｜", "", s) for s in sys.stdin)\' < OLD > NEW',
    ),
    _Sign(
        "lines of tags",
        re.compile(  # not names in brackets, such as those of companies
            r"^(?!</?s>)(?:</?[A-Za-z][\w-]*>\Z|</[A-Za-z]|<[A-Za-z][\w-]* [\w-]+="
            r"|<[a-z]+>.*</[a-z]+>\Z)"
        ),
        0.005,
        f"are tags or begin with one, such as {{}}, which are {_OUT}",
        "sed -E 's/^(<[^<>]*> *)+//; s/<\\/[A-Za-z]+> *$//' OLD > NEW",
        "<",
        least=3,
    ),
    _Sign(
        "marks of PDF",
        re.compile(r"\(cid:\d+\)"),
        0.01,
        "hold (cid:...), which a program put for letters of a PDF that it could not tell; take the "
        "text out with another one, or these",
        "sed -E 's/\\(cid:[0-9]+\\)//g' OLD > NEW",
        "(cid:",
        least=3,
    ),
    _Sign(
        "roff",
        re.compile(r"^\.[A-Z][A-Za-z]?(?: |\Z)|\\f[BIRP]"),
        2 * SOME,
        f"hold commands of roff, such as {{}}, which are {_OUT}",
        "pandoc -f man -t plain --wrap none OLD -o NEW",
    ),
    _Sign(
        "Org",
        re.compile(r"^(?:#\+[A-Za-z_]+|:[A-Z]+:\Z)"),
        SOME,
        f"hold marks of Org, such as {{}}, which are {_OUT}",
        "pandoc -f org -t plain --wrap none OLD -o NEW",
    ),
    _Sign(
        "joined words",
        re.compile(r"^[^(){}=;]*[^\W\d_]_[^\W\d_][^(){}=;]*$"),
        MANY,
        "hold words that are joined by _, as programs that find words write them, which is text "
        "here; write spaces",
        "tr '_' ' ' < OLD > NEW",
        "_",
    ),
    _Sign(
        "no spaces",
        re.compile(r"^[!-~\u00c0-\u024f]{30,}$"),
        MANY,
        "are 30 characters or longer without a space, such as {}: addresses, codes, or text whose "
        "spaces were lost; take it from where it came from, or leave these out",
        "grep -vE '^[^ ]{30,}$' OLD > NEW",
    ),
    _Sign(
        "times",
        re.compile(_NAMED_HEAD),
        0.25,
        f"are names and times such as {{}}, which are {_OUT}",
        f"sed -E '/{_NAMED_HEAD[:-1]}\\r?$/d' OLD > NEW",
    ),
    _Sign(
        "names",
        re.compile(r"^<(?!/|(?:[bips]|h\d|li|br|div|span)>)[^<>/= ]+> +(?=\S)"),
        MANY,
        f"begin with names such as {{}}, as in a chat, which are {_OUT}",
        "sed -E 's/^<[^<>]+> +//' OLD > NEW",
    ),
    _Sign(
        "hyphens inside lines",
        re.compile(
            r"[a-zà-ÿ]{2}[-\u00ad] "
            r"(?!(?:and|or|to|und|oder|bis|et|ou|y|o|e|en|of|och|eller) )[a-zà-ÿ]{2}"
        ),
        0.25,
        "have a hyphen and a space inside, such as {}, as words have that a line broke; join them",
        "sed -E 's/([a-z])- ([a-z])/\\1\\2/g' OLD > NEW",
        "- ",
    ),
    _Sign(
        "quotes",
        re.compile("^>"),
        2 * SOME,
        "are quoted with '>', as in mails, so that text may stand in it twice; take them out",
        "grep -v '^>' OLD > NEW",
    ),
    _Sign(
        "TeX",
        re.compile(
            r"\\(?:begin|end|(?:sub)*section|chapter|paragraph|cite[a-z]*|ref|label|emph|text[a-z]{2}"
            r"|item|documentclass|usepackage|footnote|frac)\b[*\[{ ]?"
        ),
        SOME,
        f"hold commands of TeX, such as {{}}, which are {_OUT}",
        "pandoc -f latex -t plain --wrap none OLD -o NEW",
        "\\",
    ),
    _pieces("@@", r"\S@@(?: |\Z)", 0.2, "sed -E 's/@@( |$)//g' OLD > NEW"),
    _pieces("##", r"\S ##[^\s#]", 0.2, "sed 's/ ##//g' OLD > NEW"),
    _pieces("\u2581", "(?:\\A|\\s)\u2581\\w", 0.5, "sed 's/ //g; s/\u2581/ /g; s/^ //' OLD > NEW"),
    _pieces("\u0120", "(?:\\s\u0120\\w.*){2}", 0.5, "sed 's/ //g; s/\u0120/ /g; s/^ //' OLD > NEW"),
    _pieces(" +", r"\S \+[\uac00-\ud7ff]", MANY, "sed 's/ +//g' OLD > NEW"),
    _pieces(" @", r"\S @[-,.]@ \S", 0.02, "sed -E 's/ @([-,.])@ /\\1/g' OLD > NEW"),
    _Sign(
        "headings",
        re.compile(r"^(?:= )+\S.*?(?: =)+\Z"),
        0.01,
        f"are headings between equals signs, such as {{}}, which are {_OUT}",
        "sed -E '/^ *(= )+.*( =)+ *\\r?$/d' OLD > NEW",
        "=",
        least=3,
    ),
)
"""Each is said once; of those of one name the first."""


# With a chapter before it, as verses have one; a number alone is part of a sentence if that goes on
# in small letters.
_NUMBER = re.compile(r"\s*(?:[\[(]|\d+[:.])?(\d+)(?:[].:)]\s*|\t| {2,}|(?<=\d) (?![a-z]))(?=\S)")


def _numbers(lines: Sequence[str]) -> str:
    found = [match for line in lines if (match := _NUMBER.match(line))]
    numbers = [int(match[1]) for match in found]
    steps = sum(b - a == 1 or b == 1 < a for a, b in pairwise(numbers))
    if len(found) < max(2 * FEW, NEARLY_ALL * len(lines)) or steps < 0.9 * (len(numbers) - 1):
        return ""
    return (
        f"{of_first(len(found), lines)} begin with their numbers, such as {shown(found[0][0])}, "
        "which are text here; take them out: "
        "sed -E 's/^[ \\t]*([[(]|[0-9]+[:.])?[0-9]+[].:)]?[ \\t]*//' OLD > NEW"
    )


_SPEAKER = re.compile(r"([^\W\d_][\w .'’()-]{0,30}?) ?: +(?=\S)")
_NAMED = 12


def _speakers(lines: Sequence[str]) -> str:
    names = Counter(match[1] for line in lines if (match := _SPEAKER.match(line)))
    total = names.total()
    often = [name for name, count in names.most_common() if count >= 3]
    if len(often) < 2:  # a word as it comes
        return ""
    if total < max(2 * FEW, MANY * len(lines)) or sum(names[n] for n in often) < 0.9 * total:
        return ""
    said = (
        f"{of_first(total, lines)} begin with the name of a speaker, such as {shown(often[0])}, "
        "which is text here"
    )
    if len(often) > _NAMED:
        return said
    either = "|".join(map(_for_sed, often))
    quoted = either.replace("'", "'\\''")
    return f"{said}; take them out: sed -E 's#^({quoted}) ?: +##' OLD > NEW"


def _for_sed(text: str) -> str:
    return re.sub(r"([][().*+?{}^$|\\#])", r"\\\1", text)


_MBOX = re.compile(r"From \S+ .*\d\d:\d\d")
_HEADER = re.compile(
    r"(?:From|To|Cc|Bcc|Subject|Date|Sent|Reply-To|In-Reply-To|References|Message-I[Dd]|Newsgroups"
    r"|Organization|Received|MIME-Version|Content-[A-Za-z-]+|X-[A-Za-z-]+|Lines|Path|Sender"
    r"|NNTP-Posting-Host): "
)


def _mails(lines: Sequence[str]) -> str:
    headers = sum(_HEADER.match(line) is not None for line in lines)
    if headers < 3:
        return ""
    said = f"{of_first(headers, lines)} look like headers of mails, which are text here; take them"
    if any(_MBOX.match(line) for line in lines):
        return f"{said} out: awk '/^From / {{h = 1}} !h; /^\\r?$/ {{h = 0}}' OLD > NEW"
    if all(_HEADER.match(line) for line in lines[:2]) and headers < 40:
        return f"{said} out, to the first blank line: awk 'b; /^\\r?$/ {{b = 1}}' OLD > NEW"
    if headers >= max(FEW, SOME * len(lines)):
        return f"{said} out: grep -vE '^(From|To|Cc|Subject|Date|Sent): ' OLD > NEW"
    return ""


_MARKDOWN = (  # and a part of each that is found fast
    ("#", re.compile(r"#{1,6} +\S")),
    ("](", re.compile(r"!?\[[^\]]*\]\([^)\s]+\)")),
    ("```", re.compile(r"```")),
    ("**", re.compile(r"\*\*[^\s*][^*]*\*\*")),
    ("---", re.compile(r"\|?(?: ?:?-{3,}:? ?\|)+")),
)


def _markdown(lines: Sequence[str]) -> str:
    (_, heading), *inside = _MARKDOWN
    kinds = [[line for line in lines if heading.match(line)]]
    kinds += [[line for line in lines if s in line and kind.search(line)] for s, kind in inside]
    found = {line for kind in kinds for line in kind}
    several = sum(len(kind) > 1 for kind in kinds) > 1
    if not several or len(found) < max(FEW, SOME * len(lines)):
        return ""
    return (
        f"{of_first(len(found), lines)} hold marks of Markdown, such as "
        f"{shown(next(line for kind in kinds for line in kind))}, which are text here; take them "
        "out: pandoc -f markdown -t plain --wrap none OLD -o NEW"
    )


_TAGGED_WORD = re.compile(r"\S+([_/|])(?:[A-Za-z]{1,6}\$?(?:-[A-Za-z]{1,4})?|[^\w\s]{1,3})\Z")


def _tags(lines: Sequence[str]) -> str:
    marks: Counter[str] = Counter()
    example = ""
    for line in lines:
        spaces = line.count(" ")
        if max(map(line.count, "_/|")) < 0.5 * spaces:
            continue
        words = line.split()
        found = [match for word in words if (match := _TAGGED_WORD.match(word))]
        if len(words) > 2 and len(found) >= MOST * len(words):
            marks[found[0][1]] += 1
            example = example or found[0][0]
    if marks.total() < max(FEW, MANY * len(lines)):
        return ""
    mark = marks.most_common(1)[0][0]
    return (
        f"{of_first(marks.total(), lines)} have a tag behind each word, such as "
        f"{shown(example)}, which is text here; take them out: "
        f"sed -E 's#([^ ])[{mark}][^ {mark}]+( |$)#\\1\\2#g' OLD > NEW"
    )


_STOP = re.compile(r"(\S?)([ ]?)[,.](?= |\Z)")
_STOPS = 20


def _spaces(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if text.count(" ,") + text.count(" .") < 0.5 * (text.count(",") + text.count(". ")):
        return ""
    found = [match[2] for line in lines for match in _STOP.finditer(line) if match[1] or match[2]]
    apart = sum(map(bool, found))
    if apart < max(_STOPS, MOST * len(found)):
        return ""
    return (
        f"{apart:,} of {len(found):,} commas and full stops at its beginning have a space before "
        "them, as words that were told apart by a tokenizer; to write them as other text has them: "
        "sed -E 's/ ([.,])/\\1/g' OLD > NEW"
    )


# Letters of scripts that put no spaces between words, and how many spaces a letter tell that
# something divided them.
_UNDIVIDED = (
    ("\u3041-\u30ff\u3400-\u9fff", 0.2),
    ("\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff", 0.1),
)
_DIVIDED = tuple(
    (re.compile(f"[{letters}]"), re.compile(f"(?<=[{letters}]) +(?=[{letters}])"), share)
    for letters, share in _UNDIVIDED
)


def _divided(lines: Sequence[str]) -> str:
    for letter, gap, share in _DIVIDED:
        if not letter.search("".join(lines[:FEW])):
            continue
        divided = sum(
            len(gap.findall(line)) > share * len(letter.findall(line)) > 0 for line in lines
        )
        if divided >= max(FEW, MANY * len(lines)):
            return (
                f"{of_first(divided, lines)} have spaces between the words of a language that is "
                "written without, as a segmenter leaves them; text to be read later needs them, "
                "too, or take them out here: python -c 'import re, sys; sys.stdout.writelines("
                're.sub(r"(?<=[^ -~]) +| +(?=[^ -~])", "", s) for s in sys.stdin)\' '
                "< OLD > NEW"
            )
    return ""


def _bars(lines: Sequence[str]) -> str:
    for sign in "|_":
        divided = sum(
            line.count(sign) >= 3 and line.count(sign) > 3 * line.count(" ") for line in lines
        )
        if divided >= max(FEW, MOST * len(lines)):
            return (
                f"{of_first(divided, lines)} have {sign!r} between their words in place of "
                f"spaces, which is text here; write spaces: tr '{sign}' ' ' < OLD > NEW"
            )
    return ""


def _letters(lines: Sequence[str]) -> str:
    apart = 0
    for line in lines:
        if line.count(" ") < 0.3 * len(line):
            continue
        words = line.split()
        single = sum(len(word) == 1 and word < "\u2e80" for word in words)
        apart += len(words) >= 8 and single >= MOST * len(words)
    if apart < max(FEW, MANY * len(lines)):
        return ""
    return (
        f"{of_first(apart, lines)} have a space behind each letter, so that each is a word; where "
        "words have more of them between, this joins the letters: "
        "sed -E 's/(.) /\\1/g' OLD > NEW"
    )


_MARKS = re.compile(
    r"</?s>|<(?:pad|bos|eos|cls|sep)>|\[(?:CLS|SEP|PAD|BOS|EOS)\]|<\|(?:endoftext|im_start|im_end|begin_of_text"
    r"|end_of_text|startoftext|user|assistant|system)\|>"
)


def _marks(lines: Sequence[str]) -> str:
    found: Counter[str] = Counter(mark for line in lines for mark in set(_MARKS.findall(line)))
    if not found or max(found.values()) < max(3, 0.01 * len(lines)):
        return ""
    marks = [mark for mark, _ in found.most_common()]
    either = "|".join(map(_for_sed, marks))
    return (
        f"{of_first(max(found.values()), lines)} hold {', '.join(marks)}, as if it were prepared "
        "for a model before; it is prepared here, so take these out (where one alone on a line "
        f"divides documents, a blank line is left): sed -E 's#{either}##g' OLD > NEW"
    )


_SIDES = " ||| "


def _sides(lines: Sequence[str]) -> str:
    tabs = [line.count("\t") for line in lines]
    if len(lines) >= FEW and sum(_SIDES in line for line in lines) >= 0.9 * len(lines):
        return (
            "its lines hold several texts with ||| between them, as translations have, and each "
            "line is one text here; take one of them: awk -F ' [|][|][|] ' '{print $1}' OLD > NEW"
        )
    if len(lines) >= FEW and tabs[0] and sum(tab == tabs[0] for tab in tabs) >= ALIKE * len(tabs):
        return (
            f"its lines hold {tabs[0] + 1} texts with tabs between them, and each line is one text "
            "here; take one of them: cut -f 1 OLD > NEW"
        )
    return ""


def _front_matter(lines: Sequence[str]) -> str:
    end = next((n for n, line in enumerate(lines[1:40], 1) if line == "---"), 0)
    keys = [line for line in lines[1:end] if re.match(r"[\w-]+:(?: |\Z)", line)]
    if lines[0] != "---" or not keys:
        return ""
    return (
        f"it begins with {end - 1} lines of settings (YAML front matter) between lines of ---, "
        "which are text here; take them out: sed '1,/^---\\r*$/d' OLD > NEW"
    )


def _dividers(lines: Sequence[str]) -> str:
    alone = Counter(line for line in lines if len(line) < 100 and not re.search(r"\w", line))
    if not alone:
        return ""
    line, count = alone.most_common(1)[0]
    if count < max(FEW, 0.01 * len(lines)) or len(line) < 2:
        return ""
    return (
        f"{of_first(count, lines)} are {shown(line)}, which is text here; if it stands between "
        f"documents, make it blank: sed -E 's#^{_for_sed(line)}\\r?$##' OLD > NEW"
    )


def _name(lines: Sequence[str]) -> str:
    if len(lines) < 2 or lines[0].strip(' "').casefold() not in TEXT_NAMES:
        return ""
    return (
        f"its first line, {shown(lines[0])}, may be the name of a column, which is text here; if "
        "it is, take it out: sed 1d OLD > NEW"
    )


_ONLY_NUMBERS = re.compile(r"[\d\s,;.\[\]-]*\d[\d\s,;.\[\]-]*")


def _only_numbers(lines: Sequence[str]) -> str:
    found = sum(_ONLY_NUMBERS.fullmatch(line) is not None for line in lines)
    if found < max(2 * FEW, 0.9 * len(lines)):
        return ""
    return (
        f"{of_first(found, lines)} are nothing but numbers, such as ids of tokens; text is needed "
        "here, so take the file that they were made from"
    )


_OTHERS: dict[str, Callable[[Sequence[str]], str]] = {
    "a name": _name,
    "speakers": _speakers,
    "mails": _mails,
    "Markdown": _markdown,
    "tags": _tags,
    "spaces": _spaces,
    "divided words": _divided,
    "bars": _bars,
    "letters": _letters,
    "special tokens": _marks,
    "several texts": _sides,
    "front matter": _front_matter,
    "dividers": _dividers,
    "only numbers": _only_numbers,
}


def beside_text(lines: Sequence[str]) -> dict[str, str]:
    """What stands beside the text of lines, as sentences, by what they are about."""
    found = {"numbers": said} if (said := _numbers(lines)) else {}
    for sign in _SIGNS:
        if sign.name not in found and (said := sign.note(lines)):
            found[sign.name] = said
    if "numbers" in found:  # of verses, not times
        found.pop("times", None)
    return found | {name: said for name, note in _OTHERS.items() if (said := note(lines))}
