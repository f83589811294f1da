"""Every option of every verb, each written once.

A recipe is a frozen dataclass; a field's docstring is its help on the command line, its default is
the documented default, and its type is checked by the parser. Fields are of three kinds:

* recipe (the default): what the result means. Must match to continue a run folder.
* numerics (:func:`numerics`): may change bits but not meaning. Recorded; a change is logged.
* free (:func:`free`): where things are and how often one hears of them.

YAML files and command-line overrides are read in :mod:`bothways.options`. This module imports no
torch, so that ``bothways --help`` stays fast.
"""

from __future__ import annotations

from bothways.config.corpus import CorpusConfig
from bothways.config.fields import (
    digest,
    fingerprint,
    free,
    from_dict,
    numerics,
    recipe_fields,
    require,
    to_dict,
    to_dict_value,
)
from bothways.config.finetuning import (
    SEARCHED,
    FinetuneConfig,
    GlueConfig,
    Reference,
    Restart,
    SearchOptions,
    TaskOptions,
    WindowOptions,
)
from bothways.config.model import SIZES, ModelConfig, SizeOptions
from bothways.config.pretraining import (
    CheckpointOptions,
    ClockOptions,
    EvaluateOptions,
    MaskKind,
    MaskOptions,
    PairKind,
    PairOptions,
    Phase,
    PretrainConfig,
    ShowConfig,
)
from bothways.config.training import OptimizerOptions
from bothways.config.vocabulary import ExtendConfig, LearningOptions, VocabularyConfig

__all__ = [
    "SEARCHED",
    "SIZES",
    "CheckpointOptions",
    "ClockOptions",
    "CorpusConfig",
    "EvaluateOptions",
    "ExtendConfig",
    "FinetuneConfig",
    "GlueConfig",
    "LearningOptions",
    "MaskKind",
    "MaskOptions",
    "ModelConfig",
    "OptimizerOptions",
    "PairKind",
    "PairOptions",
    "Phase",
    "PretrainConfig",
    "Reference",
    "Restart",
    "SearchOptions",
    "ShowConfig",
    "SizeOptions",
    "TaskOptions",
    "VocabularyConfig",
    "WindowOptions",
    "digest",
    "fingerprint",
    "free",
    "from_dict",
    "numerics",
    "recipe_fields",
    "require",
    "to_dict",
    "to_dict_value",
]
