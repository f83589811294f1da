"""Scripts by which a shell completes verbs, options and their values, written by shtab.

They hold all words, so that a shell need not start Python for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bothways.cli.verbs import VERBS, Verb
from bothways.config.parsing import UsageError, shown

SHELLS = {
    "bash": 'eval "$(bothways completion bash)"     (in ~/.bashrc)',
    "zsh": 'eval "$(bothways completion zsh)"     (in ~/.zshrc, after compinit)',
    "fish": "bothways completion fish > ~/.config/fish/completions/bothways.fish",
}
"""The shells, and how each takes its script."""


def script(words: Sequence[str]) -> str:
    """The script for a shell.

    Args:
        words: those after ``completion``: the shell.

    Raises:
        UsageError: no shell, or one that is not known.
    """
    if len(words) != 1 or words[0] not in SHELLS:
        how = "\n".join(f"  {line}" for line in SHELLS.values())
        raise UsageError(f"bothways completion needs one shell: {', '.join(SHELLS)}.\n{how}")
    import shtab

    program = argparse.ArgumentParser("bothways")
    verbs = program.add_subparsers()
    for name, verb in VERBS.items():
        parser = verbs.add_parser(name, help=_plain(verb.summary))
        if isinstance(verb, Verb):
            _add_options(parser, verb)
            continue
        _add_options(parser, next(iter(verb.actions.values())))
        actions = parser.add_subparsers()
        for action, inner in verb.actions.items():
            _add_options(actions.add_parser(action, help=_plain(inner.summary)), inner)
    # shtab leaves out what has no help.
    verbs.add_parser("help", help="help of a verb").add_argument("verb", choices=[*VERBS])
    shells = verbs.add_parser("completion", help="a script for a shell")
    shells.add_argument("shell", choices=[*SHELLS])
    return str(shtab.complete(program, words[0]))


def _add_options(parser: argparse.ArgumentParser, verb: Verb) -> None:
    """The options of a verb, and the recipes that go by name."""
    line = verb.words("")
    for option in line.listed():
        if option.name in verb.positional:
            continue
        choices = ("true", "false") if option.kind.inner is bool else option.kind.choices
        parser.add_argument(
            shown(option.name),
            nargs="*" if option.kind.is_list else None,
            choices=choices or None,
            help=_plain(option.text.partition(". ")[0]),
        )
    if recipes := verb.recipes():
        parser.add_argument("recipe", nargs="?", choices=[*recipes])


def _plain(text: str) -> str:
    """A text that argparse formats as it is, on one line."""
    return " ".join(text.split()).replace("%", "%%")
