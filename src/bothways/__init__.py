"""BERT, end to end: raw text in, a fine-tuned, reloadable model out.

From text files to a pre-trained model::

    import bothways as bw

    tokenizer = bw.learn_vocabulary("texts", size=16_384)
    corpus = bw.build_corpus("texts", tokenizer)
    run = bw.pretrain(corpus, "tiny", minutes=5)
    model = bw.load(run.model)
    print(model.fill_mask("Paris is the [MASK] of France.")[0][0].text)

Labelled data come from files or from memory (a data frame, lists)::

    result = bw.finetune(run, train=frame, dev=dev_frame, text="review", label="stars", epochs=3)
    result.model.predict(["A fine story."])

The public names are imported on first use, so that ``import bothways`` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bothways.errors import explain_missing, nearest

if TYPE_CHECKING:
    from bothways.api.calls import build_corpus as build_corpus
    from bothways.api.calls import build_vocabulary as build_vocabulary
    from bothways.api.calls import convert as convert
    from bothways.api.calls import export as export
    from bothways.api.calls import extend_vocabulary as extend_vocabulary
    from bothways.api.calls import finetune as finetune
    from bothways.api.calls import learn_vocabulary as learn_vocabulary
    from bothways.api.calls import list_recipes as list_recipes
    from bothways.api.calls import list_tasks as list_tasks
    from bothways.api.calls import pretrain as pretrain
    from bothways.api.calls import score as score
    from bothways.api.corpus import Corpus as Corpus
    from bothways.api.doctor import diagnose as diagnose
    from bothways.api.info import info as info
    from bothways.api.lesson import new_model as new_model
    from bothways.api.lesson import pretraining_step as pretraining_step
    from bothways.api.model import Model as Model
    from bothways.api.model import load as load
    from bothways.config.parsing import load_recipe as load_recipe
    from bothways.corpus.options import CorpusConfig as CorpusConfig
    from bothways.errors import BothwaysError as BothwaysError
    from bothways.experiments.calls import demo as demo
    from bothways.experiments.calls import plan as plan
    from bothways.experiments.calls import reproduce as reproduce
    from bothways.finetuning.options import FinetuneConfig as FinetuneConfig
    from bothways.finetuning.options import SearchOptions as SearchOptions
    from bothways.pretraining.options import PretrainConfig as PretrainConfig
    from bothways.serving.calls import serve as serve
    from bothways.tasks.catalogue import task_recipe as task_recipe
    from bothways.tasks.options import TaskOptions as TaskOptions
    from bothways.tokenization.options import VocabularyConfig as VocabularyConfig
    from bothways.tokenization.tokenizer import Tokenizer as Tokenizer

# The module of each public name, below ``bothways``.
_MODULES = {
    "BothwaysError": "errors",
    "CorpusConfig": "corpus.options",
    "FinetuneConfig": "finetuning.options",
    "PretrainConfig": "pretraining.options",
    "SearchOptions": "finetuning.options",
    "TaskOptions": "tasks.options",
    "VocabularyConfig": "tokenization.options",
    "Corpus": "api.corpus",
    "Model": "api.model",
    "Tokenizer": "tokenization.tokenizer",
    "build_corpus": "api.calls",
    "build_vocabulary": "api.calls",
    "convert": "api.calls",
    "demo": "experiments.calls",
    "diagnose": "api.doctor",
    "export": "api.calls",
    "extend_vocabulary": "api.calls",
    "finetune": "api.calls",
    "info": "api.info",
    "learn_vocabulary": "api.calls",
    "load": "api.model",
    "load_recipe": "config.parsing",
    "new_model": "api.lesson",
    "plan": "experiments.calls",
    "pretrain": "api.calls",
    "pretraining_step": "api.lesson",
    "list_recipes": "api.calls",
    "reproduce": "experiments.calls",
    "score": "api.calls",
    "serve": "serving.calls",
    "task_recipe": "tasks.catalogue",
    "list_tasks": "api.calls",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "sklearn":  # a module, whose classes need scikit-learn
        with explain_missing("bothways.sklearn"):
            return import_module("bothways.api.sklearn")
    if name not in _MODULES:
        raise _unknown(name)
    with explain_missing(f"bothways.{name}"):
        return getattr(import_module(f"bothways.{_MODULES[name]}"), name)


_OF_MODELS = (
    *("predict", "predict_proba", "tag", "answer", "choose", "rank", "fill_mask", "next_sentence"),
    *("embed", "embed_tokens", "inspect", "attribute", "evaluate", "save"),
)


def _unknown(name: str) -> AttributeError:
    """The error for a name that is none, with where a verb's function is, or the nearest name."""
    problem = f"module 'bothways' has no attribute {name!r}"
    if name in _OF_MODELS:
        problem += f"; it is a method of a model: bothways.load(folder).{name}(...)"
    elif name == "tokenize":
        problem += "; a model's or vocabulary's tokenizer does it: tokenizer.tokenize(text)"
    elif name == "show":
        problem += "; it is a method of a corpus: bothways.Corpus(folder).show()"
    elif not name.startswith("_") and (close := nearest(name, __all__)):
        problem += f"; did you mean {close!r}?"
    return AttributeError(problem)


def __dir__() -> list[str]:
    return sorted([*__all__, "sklearn"])
