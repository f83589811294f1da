"""BERT, end to end: raw text in, a fine-tuned, reloadable model out.

From text files to a pre-trained model::

    import bothways as bw

    bw.build_vocabulary(bw.VocabularyConfig(files=("texts",), size=16_384, out="vocabulary"))
    bw.build_corpus(bw.CorpusConfig(files=("texts",), tokenizer="vocabulary", out="corpus"))
    folders = {"corpus": "corpus", "run": "runs/tiny"}
    run = bw.pretrain(bw.load_recipe(bw.PretrainConfig, "tiny", folders))
    model = bw.load(run.model)
    print(model.fill_mask("Paris is the [MASK] of France.")[0][0].text)

The public names are imported on first use, so that ``import bothways`` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.api import load as load
    from bothways.config import CorpusConfig as CorpusConfig
    from bothways.config import FinetuneConfig as FinetuneConfig
    from bothways.config import PretrainConfig as PretrainConfig
    from bothways.config import SearchOptions as SearchOptions
    from bothways.config import TaskOptions as TaskOptions
    from bothways.config import VocabularyConfig as VocabularyConfig
    from bothways.corpus.build import build_corpus as build_corpus
    from bothways.corpus.store import TokenStore as TokenStore
    from bothways.doctor import diagnose as diagnose
    from bothways.errors import BothwaysError as BothwaysError
    from bothways.finetuning.finetune import finetune as finetune
    from bothways.options import load_recipe as load_recipe
    from bothways.pretraining.pretrain import pretrain as pretrain
    from bothways.tasks.catalogue import task_recipe as task_recipe
    from bothways.tokenization.build import build_vocabulary as build_vocabulary
    from bothways.tokenization.learning import learn_vocabulary as learn_vocabulary
    from bothways.tokenization.tokenizer import Tokenizer as Tokenizer

# The module of each public name, below ``bothways``.
_MODULES = {
    "CorpusConfig": "config",
    "FinetuneConfig": "config",
    "PretrainConfig": "config",
    "SearchOptions": "config",
    "TaskOptions": "config",
    "VocabularyConfig": "config",
    "build_corpus": "corpus.build",
    "TokenStore": "corpus.store",
    "build_vocabulary": "tokenization.build",
    "diagnose": "doctor",
    "BothwaysError": "errors",
    "load_recipe": "options",
    "pretrain": "pretraining.pretrain",
    "task_recipe": "tasks.catalogue",
    "finetune": "finetuning.finetune",
    "learn_vocabulary": "tokenization.learning",
    "Tokenizer": "tokenization.tokenizer",
    "load": "api",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    return getattr(import_module(f"bothways.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
