"""Spaces without width (U+200B) between words, as Khmer, Lao, Thai and Burmese are typed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bothways.corpus.cached_encoder import pack, unpack
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.tokenizer import Tokenizer

WORDS = {
    "Khmer": "ខ្ញុំ ទៅ ផ្សារ ជា មួយ មិត្ត របស់ គាត់ ហើយ ទិញ ផ្លែឈើ សៀវភៅ",
    "Lao": "ຂ້ອຍ ໄປ ຕະຫຼາດ ກັບ ໝູ່ ຂອງ ລາວ ແລະ ຊື້ ໝາກໄມ້",
    "Thai": "ฉัน ไป ตลาด กับ เพื่อน ของ เขา และ ซื้อ ผลไม้",
    "Burmese": "ကျွန်တော် ဈေး ကို သွား ပြီး သူငယ်ချင်း နဲ့ အသီး ဝယ် တယ်",
}


def lines(script: str, joiner: str) -> list[str]:
    choose = random.Random(1)
    words = WORDS[script].split()
    return [" ".join(joiner.join(choose.choices(words, k=40)) for _ in range(4)) for _ in range(20)]


@pytest.mark.parametrize("script", WORDS)
def test_they_separate_words(script: str, tmp_path: Path) -> None:
    """A clause became one word of hundreds of characters, which is [UNK]."""
    spaced = learn_vocabulary(lines(script, "\u200b"), size=300)
    plain = learn_vocabulary(lines(script, " "), size=300)
    assert (spaced.normalization, plain.normalization) == ("spaced", "composed")
    assert spaced.pieces == plain.pieces
    words = WORDS[script].split()[:3]
    ids = spaced.encode_plain(["\u200b".join(words), " ".join(words)])
    assert ids[0] == ids[1] == plain.encode_plain([" ".join(words)])[0]
    assert spaced.unk_id not in ids[0]
    encoding = spaced.encode("\u200b".join(words))
    (part,) = encoding.parts
    text = "\u200b".join(words)
    assert "".join(text[a:b] for a, b in encoding.offsets[part]).replace("\u200b", "") == "".join(
        words
    )
    # The same from a folder, from its vocab.txt alone, and where chunks are cached.
    spaced.save(tmp_path / "all")
    again = Tokenizer.from_folder(str(tmp_path / "all"))
    assert (again.normalization, again.encode_plain([text])[0]) == ("spaced", ids[0])
    (tmp_path / "all" / "tokenizer.json").unlink()
    assert Tokenizer.from_folder(str(tmp_path / "all")).encode_plain([text])[0] == ids[0]
    cached, _ = unpack(pack(spaced)).encode([text, text])
    assert cached.tolist() == [*ids[0], *ids[0]]


def test_other_text_with_a_few_keeps_its_preset() -> None:
    english = learn_vocabulary(["the cat sat on the\u200b mat " * 20], size=60)
    assert english.normalization == "bert"
    thai = learn_vocabulary([*lines("Thai", " ") * 20, "ก\u200bข"], size=300)
    assert thai.normalization == "composed"
