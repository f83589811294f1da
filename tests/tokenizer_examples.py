"""Small tokenizers of every kind, as folders of transformers, trained on a few lines."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

KOREAN = "안녕하세요. 고양이가 매트에 앉았다! 우리는 한국어를 배웁니다."
LINES = [
    "The cat sat on the mat, and the dog (a brown one) didn't mind; they're friends of mine.",
    "Café naïve résumé, ÀÉÎÕÜ ß İstanbul ŉ ﬁ 東京タワー 2024-01-02 #hash 9,99 and 12,000 people",
    "hello world e\u0301 a\u0308\u0323 ΑΣ ς 😀👩‍👩‍👧 مرحبا שלום नमस्ते ไทย ``quoted'' \"text\"",
    KOREAN,
    unicodedata.normalize("NFD", KOREAN),
    *(f"He counted {n} houses, {n * 7},{n} trees and no. {n % 5} again." for n in range(60)),
]
ANGLED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def roberta_files(folder: Path, *, mask_takes_space: bool = True) -> Path:
    """vocab.json and merges.txt, and settings as the released folders have them."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=600, special_tokens=ANGLED, show_progress=False)
    trained.save_model(str(folder))
    write_json(folder / "config.json", {"model_type": "roberta"})
    settings: dict[str, Any] = {"tokenizer_class": "RobertaTokenizer"}
    if mask_takes_space:
        settings["mask_token"] = {"__type": "AddedToken", "normalized": True, **MASK}
    write_json(folder / "tokenizer_config.json", settings)
    return folder


def modernbert_file(folder: Path) -> Path:
    """A tokenizer.json: byte-level pairs with BERT's special pieces, composed text."""
    folder.mkdir(parents=True, exist_ok=True)
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(p, lstrip=p == "[MASK]", normalized=False) for p in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(LINES, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=[(p, library.token_to_id(p)) for p in ("[CLS]", "[SEP]")],
    )
    library.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": "modernbert"})
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    )
    return folder


def sentencepiece_files(folder: Path, kind: str, **settings: Any) -> Path:
    """spiece.model as ALBERT's, or sentencepiece.bpe.model as XLM-R's."""
    package = pytest.importorskip("sentencepiece")
    folder.mkdir(parents=True, exist_ok=True)
    name, ids = "sentencepiece.bpe", {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    if kind == "albert":
        name, ids = "spiece", {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        ids["control_symbols"] = ["[CLS]", "[SEP]", "[MASK]"]  # type: ignore[assignment]
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_prefix=str(folder / name),
        vocab_size=400,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **{**ids, **settings},
    )
    (folder / f"{name}.vocab").unlink()
    write_json(folder / "config.json", {"model_type": kind})
    mask = "[MASK]" if kind == "albert" else "<mask>"
    write_json(
        folder / "tokenizer_config.json",
        {"mask_token": {"__type": "AddedToken", "normalized": False, **MASK, "content": mask}},
    )
    return folder


def klue_files(folder: Path) -> Path:
    """WordPiece under a RoBERTa config, with BERT's special pieces at other ids, as KLUE's."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    letters = sorted({letter for line in LINES for letter in line if not letter.isspace()})
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "cat", "the", "##ing"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    write_json(folder / "config.json", {"model_type": "roberta"})
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False},
    )
    return folder


MAKERS = {
    "roberta": roberta_files,
    "modernbert": modernbert_file,
    "albert": lambda folder: sentencepiece_files(folder, "albert"),
    "xlm-roberta": lambda folder: sentencepiece_files(folder, "xlm-roberta"),
    "klue": klue_files,
}
