"""Texts and labelled files that the golden items are made of. Each character counts: a change here
changes digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ODD = {
    "plain": "The baker sold a small boat, didn't she? The bakers' boats.",
    "accents": "Café naïve Ångström Œuvre ﬁsh İstanbul ıgdır STRAẞE Straße",
    "decomposed": "Cafe\u0301 \u1109\u1165\u110b\u116e\u11af\u110b\u1173\u11ab n\u0303andu\u0301",
    "korean": "서울은 넓다. 할머니가 빵을 팔았다! 뷁",
    "emoji": "a boat 👩‍👩‍👧 and 🇰🇷👍🏽 🙂sold",
    "zero width": "zero\u200bwidth \u200djoin\u2060er so\u00adft \ufeffmark",
    "ideographs": "中文字 boat東京タワー ガギグ ﾊﾟﾝ カ\u3099",
    "controls": "tab\tline\nbreak\r\nbell\x07 null\x00 sep\u2028next\u3000wide\u00a0hard",
    "punctuation": "don't—stop... (now)! $5,000.50 #tag @x ~a^b `c` «d» ¿e?",
    "long words": f"{'a' * 99} {'b' * 100} {'c' * 101} {'boat' * 30}",
    "specials": "[CLS] sold [MASK] the [SEP] [UNK] [PAD] [mask] [ MASK ]x[MASK]y",
    "vowel signs": "नमस्ते दुनिया สวัสดีชาวโลก বাংলা שָׁלוֹם مَرْحَبًا",
    "unknown": "ꙮ ⅷ ½ x² \U0001d538 \U000e0041",
    "blanks": " \t \u00a0 ",
    "empty": "",
}

_WHO = "The baker|A sailor|My aunt|The old judge|Our teacher|The red fox|A quiet boy|The king"
_DID = "sold|painted|lost|carried|found|repaired|described|wanted"
_WHAT = "a small boat|the bread|two letters|an apple|the garden|a long story|his hat|the clock"
_WHEN = "yesterday|in the morning|after the storm|on Monday|at night|before supper"
_KOREAN = "할머니가 빵을|아이가 편지를|선생님이 시계를|왕이 사과를|여우가 모자를"
_KOREAN_DID = "팔았다|찾았다|잃었다|그렸다|고쳤다|원했다"


def sentence(n: int, s: int) -> str:
    """A sentence of plain English; the two numbers decide which."""
    who, did, what, when = (words.split("|") for words in (_WHO, _DID, _WHAT, _WHEN))
    return f"{who[n % 8]} {did[(n // 8 + s) % 8]} {what[(n // 3) % 8]} {when[(n + s) % 6]}."


def english() -> str:
    """60 documents of 1 to 9 sentences, some of them long, with blank lines between them."""
    documents = []
    for d in range(60):
        lines = [sentence(31 * d + 7 * s, s) for s in range(1 + d * 5 % 9)]
        if d % 7 == 3:
            lines.append(" and ".join(sentence(d + k, k)[:-1] for k in range(4)) + ".")
        documents.append("\n".join([f"Story {d} begins with café no. {d * d}.", *lines]))
    return "\n\n".join(documents) + "\n"


def korean() -> str:
    """40 documents in Korean, with some Japanese and English words in them."""
    things, did = _KOREAN.split("|"), _KOREAN_DID.split("|")
    documents = []
    for d in range(40):
        lines = [
            f"{things[(d + s) % 5]} {did[(d * 3 + s) % 6]}. 서울에서 boat {d}번"
            for s in range(2 + d % 4)
        ]
        documents.append("\n".join([*lines, f"東京 タワー ガラス {did[d % 6]}!"]))
    return "\n\n".join(documents) + "\n"


def write_labelled_files(folder: Path) -> None:
    """Small labelled files of every format and kind of task."""
    folder.mkdir()

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8", newline="")

    label = ("good", "bad", "neither")
    texts = [sentence(n, n % 3) + (" " + sentence(n + 1, 0)) * (n % 4) for n in range(36)]
    texts[5], texts[6] = 'He said "no" and left.', ODD["accents"] + ODD["korean"]
    rows = [f"{text}\t{label[n % 3]}" for n, text in enumerate(texts)]
    write("single.tsv", "\n".join(["sentence\tlabel", *rows, "\t" + label[0]]) + "\n")
    quoted = [text.replace('"', '""') for text in texts]
    rows = [f'{n % 2},"{quoted[n]}, twice",{sentence(n, 2)}' for n in range(8)]
    write("pairs.csv", "\r\n".join(["Quality,#1 String,#2 String", *rows]) + "\r\n")
    items: list[dict[str, Any]] = [
        {"one": texts[n], "two": sentence(n, 1), "score": n * 0.25 - 1, "more": {"score": str(n)}}
        for n in range(12)
    ]
    write("scores.jsonl", "\n".join(json.dumps(item, ensure_ascii=False) for item in items))
    write("scores.json", json.dumps(items, indent=1))
    write("tags.txt", _tags())
    write("questions.json", json.dumps(_questions(), ensure_ascii=False))
    rows = [
        f"{sentence(n, 0)}\tShe\t{sentence(n, 1)}\t{texts[n]}\t{ODD['accents']}\t{n % 3}"
        for n in range(6)
    ]
    write("choices.tsv", "\n".join(["sent1\tsent2\tfirst\tsecond\tthird\tlabel", *rows]) + "\n")
    items = [
        {"context": texts[n], "endings": texts[n + 1 : n + 3 + n % 3], "answer": "ABCD"[n % 2]}
        for n in range(6)
    ]
    write("choices.jsonl", "\n".join(json.dumps(item) for item in items) + "\n")


def _tags() -> str:
    """Documents of sentences of very different lengths, IOB1, with words no piece is known of."""
    lines = []
    for d in range(3):
        lines += ["-DOCSTART- -X- O O", ""]
        for s in range(4):
            words = " ".join(sentence(d + s + k, k) for k in range(1 + 4 * (s == 2))).split()
            words += [["Café-Straße", "ꙮ", "boats" * 9, "서울은"][s]]
            for n, word in enumerate(words):
                entity = n % 5 in (1, 2)
                adjacent = n % 10 == 2
                kind = "LOC" if n % 10 > 4 else "PER"
                lines.append(f"{word} X Y {('B-' if adjacent else 'I-') + kind if entity else 'O'}")
            lines.append("")
    return "\n".join(lines) + "\n"


def _questions() -> dict[str, Any]:
    """SQuAD 2.0: passages of one and of many windows, questions without an answer, a long one,
    answers that touch words without being words, one that is not where its start says."""
    articles = []
    for a in range(3):
        paragraphs = []
        for p in range(2):
            context = (
                " ".join(sentence(5 * a + k, p) for k in range(1 + 9 * p)) + " Café 서울은 end"
            )
            asked = []
            for q, answer in enumerate(("boat", "the", "Café", "서울", "o")):
                start = context.find(answer)
                item = {"id": f"{a}-{p}-{q}", "question": f"What is number {q} of {sentence(q, a)}"}
                found = [{"text": answer, "answer_start": start}] if start >= 0 else []
                if q == 1:
                    item["question"] = " ".join([item["question"]] * 4)
                    found = [{"text": answer, "answer_start": start + 1}]
                asked.append({**item, "answers": found, "is_impossible": not found})
            paragraphs.append({"context": context, "qas": asked})
        articles.append({"title": f"Article {a}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": articles}
