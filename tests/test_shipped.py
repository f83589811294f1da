"""The model that comes with the package: found by name, sound, and the default where it serves."""

from __future__ import annotations

import io
import os
import tomllib
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

import bothways
from bothways import cli
from bothways.api.doctor import diagnose
from bothways.api.model import load
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import TokenStore
from bothways.errors import ModelError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, GlueConfig
from bothways.model.engine import network_of
from bothways.runtime.folder import load_model
from bothways.runtime.stored import WEIGHTS
from bothways.shipped import DEFAULT, SHIPPED, model_folder
from bothways.tokenization.tokenizer import Tokenizer
from finetuning_examples import word_config, word_files

# Where fine-tuning cannot reach it is no encoder to ship; in bf16 it fits a repository.
LARGEST_MB = 20
CARD = ("Licence", "perplexity", "next sentence", "steps", "SST-2", "Limits", "BERT-Mini")
TEXT = "The old house stood on a hill above the [MASK] and looked down on the sea."


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, where no file has the model's name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_sound_and_has_a_card(name: str) -> None:
    folder = model_folder(name)
    assert folder.parent.name == "shipped"
    assert diagnose(name) == []
    loaded = load_model(name)
    assert not loaded.unused
    assert not loaded.fresh
    assert {p.dtype for p in network_of(loaded).parameters()} == {torch.float32}
    assert network_of(loaded).masked_lm is not None
    assert network_of(loaded).next_sentence is not None
    assert loaded.config.dropout == loaded.config.attention_dropout == 0.1
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n"), "a card begins with its facts as YAML"
    missing = [word for word in CARD if word not in card]
    assert not missing
    assert f"{loaded.about['steps']:,} steps" in card
    assert sum(file.stat().st_size for file in folder.iterdir()) < LARGEST_MB * 1e6


def test_a_folder_here_comes_before_the_shipped_model_of_its_name(elsewhere: Path) -> None:
    shipped = model_folder(DEFAULT)
    assert shipped.is_absolute()
    (elsewhere / DEFAULT).mkdir()
    assert model_folder(DEFAULT) == shipped, "an empty folder, such as a run's, is no model"
    (elsewhere / DEFAULT / "vocab.txt").write_text("[PAD]\n")
    assert model_folder(DEFAULT) == Path(DEFAULT)
    assert model_folder(f"./{DEFAULT}/model") == Path(DEFAULT, "model")
    assert model_folder("mini-xx") == Path("mini-xx")
    (elsewhere / DEFAULT / "vocab.txt").rename(elsewhere / DEFAULT / "run.json")
    assert diagnose(DEFAULT), "the run folder here is looked at, which is damaged"
    (elsewhere / DEFAULT / "run.json").unlink()
    assert model_folder(f"./{DEFAULT}") == model_folder(Path(DEFAULT)) == Path(DEFAULT)
    with pytest.raises(ModelError, match="does not exist"):
        load(f"./{DEFAULT}")


@pytest.mark.usefixtures("elsewhere")
def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(ModelError, match=f"available by name: {DEFAULT}"):
        load("mini-eng")


def test_it_computes_what_transformers_computes() -> None:
    transformers = pytest.importorskip("transformers")
    folder = model_folder(DEFAULT)
    theirs = transformers.BertForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(DEFAULT)
    batch = tokenizer(TEXT, "It was dark.", return_tensors="pt")
    assert batch["input_ids"][0].tolist() == ours.tokenizer.encode(TEXT, "It was dark.").ids
    with torch.no_grad():
        found = theirs(**batch)
    mask = batch["input_ids"][0].tolist().index(ours.tokenizer.mask_id)
    theirs_at = found.prediction_logits[0, mask].softmax(-1)
    (pieces,) = load(DEFAULT).fill_mask(TEXT, top=5)
    alone = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        theirs_at = theirs(**alone).prediction_logits[0, mask].softmax(-1)
    for piece, (value, number) in zip(pieces, zip(*theirs_at.topk(5), strict=True), strict=True):
        assert tokenizer.convert_ids_to_tokens(int(number)) == piece.piece
        assert piece.probability == pytest.approx(float(value), abs=1e-5)
    follows = float(found.seq_relationship_logits.softmax(-1)[0, 0])
    assert ours.next_sentence(TEXT, "It was dark.") == pytest.approx(follows, abs=1e-5)


@pytest.mark.usefixtures("elsewhere")
def test_fill_mask_needs_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for words in (["fill-mask", TEXT], ["fill-mask", DEFAULT, TEXT], ["fill-mask", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
        assert cli.main(words) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1
    assert "house stood on a hill" in shown[0]


def test_it_is_the_default_encoder() -> None:
    assert FinetuneConfig().model == FeaturesConfig().model == DEFAULT
    assert GlueConfig(data="d", run="r").model == DEFAULT


def test_fine_tuning_starts_from_it_by_name(elsewhere: Path) -> None:
    config = word_config(Path(DEFAULT), word_files(elsewhere), elsewhere / "run")
    result = finetune(config)
    (seed,) = result.seeds
    assert load_model(seed.model).about["source"] == DEFAULT
    assert load(seed.model).predict(["a word"])


def test_its_vocabulary_serves_a_corpus_and_it_can_be_gone_on_from(elsewhere: Path) -> None:
    text = elsewhere / "text.txt"
    text.write_text("\n\n".join(f"It was {n}.\nThen came another day." for n in range(60)))
    corpus = CorpusConfig(files=(str(text),), tokenizer=DEFAULT, out="corpus", heldout=0.2)
    build_corpus(corpus)
    assert (
        TokenStore.open("corpus").tokenizer.fingerprint
        == Tokenizer.from_folder(DEFAULT).fingerprint
    )
    short = "[{length: 16, share: 1.0, batch: 4, micro_batch: 4}]"
    line = f"pretrain --corpus corpus --run run --start {DEFAULT} --steps 2 --phases".split()
    assert cli.main([*line, short, "--set", "evaluate_sequences=4"]) == 0
    words = elsewhere / "words.txt"
    words.write_text("ebitda\n")
    line = f"vocab extend --source {DEFAULT} --words words.txt --out larger".split()
    assert cli.main(line) == 0
    assert load("larger").network.config.vocab_size == load(DEFAULT).network.config.vocab_size + 1
    assert diagnose("run/model") == []


def test_shipped_models_are_packaged() -> None:
    root, package = Path(__file__).parents[1], Path(bothways.__file__).parent
    built = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {p for pattern in built["package-data"]["bothways"] for p in package.glob(pattern)}
    assert package / "py.typed" in packed
    for name in SHIPPED:
        assert {*model_folder(name).rglob("*")} <= packed
        assert model_folder(name) / WEIGHTS in packed
