"""The options of every verb, each defined once.

``*Config``, a frozen dataclass, holds the options of a verb; ``*Options`` is a group of options
inside one. A field's docstring is its help on the command line, its default is the documented
default, and its type is checked by the parser. Fields are of three kinds:

* recipe (the default): defines what the result means. Must match to resume a run folder.
* numerics (:func:`numerics`): may change rounding but not meaning. Recorded; a change is logged.
* free (:func:`free`): locations, logging and parallelism.

Of the fields of a group that are marked as :func:`bothways.config.fields.alternative` at most one
is given.

YAML files and the command line are read in :mod:`bothways.options`. This package does not import
torch, so that ``bothways --help`` stays fast.
"""

from __future__ import annotations

from bothways.config.benchmark import BenchTrainConfig
from bothways.config.compute import DeviceName, Precision
from bothways.config.corpus import CorpusConfig
from bothways.config.demo import DemoConfig
from bothways.config.features import LAYER_CHOICES, FeaturesConfig, LayerChoice
from bothways.config.fields import (
    digest,
    fingerprint,
    free,
    from_dict,
    numerics,
    recipe_fields,
    require,
    require_choice,
    to_dict,
    to_dict_value,
)
from bothways.config.finetuning import (
    NARROW,
    OPTIONS_OF_KINDS,
    SEARCHED,
    FinetuneConfig,
    GlueConfig,
    GridOptions,
    PublishedOptions,
    Reference,
    RunSeeds,
    SearchOptions,
    TaskOptions,
    WindowOptions,
)
from bothways.config.folders import ConvertConfig, DoctorConfig
from bothways.config.inference import (
    AnswerConfig,
    ChooseConfig,
    EmbedConfig,
    EvaluateConfig,
    FillMaskConfig,
    NextSentenceConfig,
    PredictConfig,
    ScoreConfig,
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
from bothways.config.tasks import SplitConfig, TasksConfig
from bothways.config.training import OptimizerOptions
from bothways.config.vocabulary import ExtendConfig, LearningOptions, VocabularyConfig

__all__ = [
    "LAYER_CHOICES",
    "NARROW",
    "OPTIONS_OF_KINDS",
    "SEARCHED",
    "SIZES",
    "AnswerConfig",
    "BenchTrainConfig",
    "CheckpointOptions",
    "ChooseConfig",
    "ClockOptions",
    "ConvertConfig",
    "CorpusConfig",
    "DemoConfig",
    "DeviceName",
    "DoctorConfig",
    "EmbedConfig",
    "EvaluateConfig",
    "EvaluateOptions",
    "ExtendConfig",
    "FeaturesConfig",
    "FillMaskConfig",
    "FinetuneConfig",
    "GlueConfig",
    "GridOptions",
    "LayerChoice",
    "LearningOptions",
    "MaskKind",
    "MaskOptions",
    "ModelConfig",
    "NextSentenceConfig",
    "OptimizerOptions",
    "PairKind",
    "PairOptions",
    "Phase",
    "PlanConfig",
    "Precision",
    "PredictConfig",
    "PretrainConfig",
    "PublishedOptions",
    "Reference",
    "ReproduceConfig",
    "RunSeeds",
    "Scheme",
    "ScoreConfig",
    "SearchOptions",
    "ShowConfig",
    "SizeOptions",
    "SpanOptions",
    "SplitConfig",
    "TaggingOptions",
    "TaskOptions",
    "TasksConfig",
    "VocabularyConfig",
    "WindowOptions",
    "digest",
    "fingerprint",
    "free",
    "from_dict",
    "numerics",
    "recipe_fields",
    "require",
    "require_choice",
    "to_dict",
    "to_dict_value",
]
