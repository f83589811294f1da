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

from bothways.errors import explain_missing

if TYPE_CHECKING:
    from bothways.api.doctor import diagnose as diagnose
    from bothways.api.model import load as load
    from bothways.config.parsing import load_recipe as load_recipe
    from bothways.corpus.build import build_corpus as build_corpus
    from bothways.corpus.options import CorpusConfig as CorpusConfig
    from bothways.corpus.store import TokenStore as TokenStore
    from bothways.errors import BothwaysError as BothwaysError
    from bothways.exporting.export import export as export
    from bothways.finetuning.finetune import finetune as finetune
    from bothways.finetuning.options import FinetuneConfig as FinetuneConfig
    from bothways.finetuning.options import SearchOptions as SearchOptions
    from bothways.pretraining.options import PretrainConfig as PretrainConfig
    from bothways.pretraining.pretrain import pretrain as pretrain
    from bothways.tasks.catalogue import task_recipe as task_recipe
    from bothways.tasks.options import TaskOptions as TaskOptions
    from bothways.tokenization.build import build_vocabulary as build_vocabulary
    from bothways.tokenization.learning import learn_vocabulary as learn_vocabulary
    from bothways.tokenization.options import VocabularyConfig as VocabularyConfig
    from bothways.tokenization.tokenizer import Tokenizer as Tokenizer

# The module of each public name, below ``bothways``.
_MODULES = {
    "CorpusConfig": "corpus.options",
    "FinetuneConfig": "finetuning.options",
    "PretrainConfig": "pretraining.options",
    "SearchOptions": "finetuning.options",
    "TaskOptions": "tasks.options",
    "VocabularyConfig": "tokenization.options",
    "build_corpus": "corpus.build",
    "TokenStore": "corpus.store",
    "build_vocabulary": "tokenization.build",
    "diagnose": "api.doctor",
    "BothwaysError": "errors",
    "load_recipe": "config.parsing",
    "pretrain": "pretraining.pretrain",
    "task_recipe": "tasks.catalogue",
    "finetune": "finetuning.finetune",
    "learn_vocabulary": "tokenization.learning",
    "Tokenizer": "tokenization.tokenizer",
    "export": "exporting.export",
    "load": "api.model",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    with explain_missing(f"bothways.{name}"):
        return getattr(import_module(f"bothways.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
