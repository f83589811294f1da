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
from bothways.config.features import LAYER_CHOICES, FeaturesConfig, LayerChoice
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
from bothways.config.planning import PlanConfig
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
from bothways.config.reproduction import ReproduceConfig
from bothways.config.spans import SpanOptions
from bothways.config.tagging import Scheme, TaggingOptions
from bothways.config.training import OptimizerOptions
from bothways.config.vocabulary import ExtendConfig, LearningOptions, VocabularyConfig

__all__ = [
    "LAYER_CHOICES",
    "SEARCHED",
    "SIZES",
    "CheckpointOptions",
    "ClockOptions",
    "CorpusConfig",
    "EvaluateOptions",
    "ExtendConfig",
    "FeaturesConfig",
    "FinetuneConfig",
    "GlueConfig",
    "LayerChoice",
    "LearningOptions",
    "MaskKind",
    "MaskOptions",
    "ModelConfig",
    "OptimizerOptions",
    "PairKind",
    "PairOptions",
    "Phase",
    "PlanConfig",
    "PretrainConfig",
    "Reference",
    "ReproduceConfig",
    "Restart",
    "Scheme",
    "SearchOptions",
    "ShowConfig",
    "SizeOptions",
    "SpanOptions",
    "TaggingOptions",
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
