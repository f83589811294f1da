"""Options as dataclasses: their fields, recipes in YAML, and the command line."""
