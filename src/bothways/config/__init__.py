"""Options as dataclasses: their fields, recipes in YAML, and the command line.

``*Config``, a frozen dataclass, holds the options of a verb; ``*Options`` is a group of options
inside one. Each stands in the ``options`` module of the stage that it is of. A field's docstring is
its help on the command line, its default is the documented default, and its type is checked by the
parser. Fields are of three kinds:

* recipe (the default): defines what the result means. Must match to resume a run folder.
* numerics (:func:`bothways.config.fields.numerics`): may change rounding but not meaning. Recorded;
  a change is logged.
* free (:func:`bothways.config.fields.free`): locations, logging and parallelism.

A value that follows from other options is unset in a config and filled in by
:meth:`bothways.config.fields.Options.resolved`.

Of the fields of a group that are marked as :func:`bothways.config.fields.alternative` at most one
is given.
"""
