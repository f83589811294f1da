"""BERT, end to end: raw text in, a fine-tuned, reloadable model out.

The public names, loaded on first use so that ``import bothways`` stays fast::

    import bothways as bw

    tokenizer = bw.learn_vocabulary(lines, size=16_384)
    report = bw.build_corpus(bw.CorpusConfig(files=("texts",), tokenizer="vocab", out="corpus"))
    run = bw.pretrain(bw.PretrainConfig(corpus="corpus", run="runs/mini", ...))
    bw.load(run.model).fill_mask("Paris is the [MASK] of France.")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.config import CorpusConfig as CorpusConfig
    from bothways.config import FinetuneConfig as FinetuneConfig
    from bothways.config import PretrainConfig as PretrainConfig
    from bothways.config import SearchOptions as SearchOptions
    from bothways.config import VocabularyConfig as VocabularyConfig
    from bothways.corpus.build import build_corpus as build_corpus
    from bothways.corpus.store import TokenStore as TokenStore
    from bothways.doctor import diagnose as diagnose
    from bothways.errors import BothwaysError as BothwaysError
    from bothways.options import load_recipe as load_recipe
    from bothways.pretraining.run import pretrain as pretrain
    from bothways.tasks.catalogue import task as task
    from bothways.tasks.finetune import finetune as finetune
    from bothways.tokenization.learning import learn_vocabulary as learn_vocabulary
    from bothways.tokenization.tokenizer import Tokenizer as Tokenizer
    from bothways.tokenization.vocabulary import learn_from_files as learn_from_files
    from bothways.use import load as load

_HOMES = {
    "CorpusConfig": "config",
    "FinetuneConfig": "config",
    "PretrainConfig": "config",
    "SearchOptions": "config",
    "VocabularyConfig": "config",
    "build_corpus": "corpus.build",
    "TokenStore": "corpus.store",
    "learn_from_files": "tokenization.vocabulary",
    "diagnose": "doctor",
    "BothwaysError": "errors",
    "load_recipe": "options",
    "pretrain": "pretraining.run",
    "task": "tasks.catalogue",
    "finetune": "tasks.finetune",
    "learn_vocabulary": "tokenization.learning",
    "Tokenizer": "tokenization.tokenizer",
    "load": "use",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    return getattr(import_module(f"bothways.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
