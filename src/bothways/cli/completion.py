"""Scripts by which a shell completes verbs, options and their values.

They hold all words, so that a shell need not start Python for each.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from bothways.cli.verbs import VERBS, Verb
from bothways.config.fields import FieldType, Option, options_of
from bothways.config.parsing import UsageError

SHELLS = {
    "bash": 'eval "$(bothways completion bash)"     (in ~/.bashrc)',
    "zsh": 'eval "$(bothways completion zsh)"     (in ~/.zshrc, after compinit)',
    "fish": "bothways completion fish > ~/.config/fish/completions/bothways.fish",
}
"""The shells, and how each takes its script."""
_WORDS = ("help", "completion", "version")


def script(words: Sequence[str]) -> str:
    """The script for a shell.

    Args:
        words: those after ``completion``: the shell.

    Raises:
        UsageError: no shell, or one that is not known.
    """
    if len(words) != 1 or words[0] not in SHELLS:
        given = f"; got {' '.join(words)}" if words and words[0] not in ("-h", "--help") else ""
        how = "\n".join(f"  {line}" for line in SHELLS.values())
        raise UsageError(f"bothways completion needs a shell: {', '.join(SHELLS)}{given}.\n{how}")
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[words[0]]()


def _verbs() -> Iterator[tuple[str, str, Verb]]:
    """Each verb as its word, the word of its action (empty: none is given), and what it is."""
    for name, verb in VERBS.items():
        if isinstance(verb, Verb):
            yield name, "", verb
            continue
        first = next(iter(verb.actions.values()))
        yield name, "", first
        for action, inner in verb.actions.items():
            yield name, action, inner


def _options(verb: Verb) -> dict[str, Option]:
    """The options of a verb by name, short names first."""
    listed = {option.name: option for option in options_of(verb.config)}
    short = getattr(verb.config, "short_names", {})
    names = {**short, **{name: name for name in listed if name not in verb.positional}}
    return {name: listed[full] for name, full in names.items()}


def _values(kind: FieldType) -> tuple[str, ...]:
    return ("true", "false") if kind.inner is bool else kind.choices


def _actions(name: str) -> list[str]:
    verb = VERBS[name]
    return [] if isinstance(verb, Verb) else [*verb.actions]


def _bash() -> str:
    by_place, by_option = [], []
    for name, action, verb in _verbs():
        options = _options(verb)
        words = [*(f"--{option}" for option in options), "--help", "--config", "--print_config"]
        words += [*verb.recipes(), *([] if action else _actions(name))]
        place = f"{name}/{action}" if action else f"{name}/*"
        by_place.append((place, bool(action), words))
        by_option += [
            (f"{place}/--{option}", bool(action), values)
            for option, what in options.items()
            if (values := _values(what.kind))
        ]
    # Of bash's patterns the first that fits is taken: those of an action come first.
    lines = [
        "# Completion of bothways for bash.",
        "_bothways() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=',
        '  local place="${COMP_WORDS[1]}/${COMP_WORDS[2]}"',
        "  if [ $COMP_CWORD -eq 1 ]; then",
        f"    words={shlex.quote(' '.join([*VERBS, *_WORDS, '--help', '--version']))}",
        '  elif [ "${COMP_WORDS[1]}" = help ]; then',
        f"    words={shlex.quote(' '.join([*VERBS, 'all']))}",
        '  elif [ "${COMP_WORDS[1]}" = completion ]; then',
        f"    words={shlex.quote(' '.join(SHELLS))}",
        "  else",
        '    case "$place/$before" in',
        *_cases(by_option),
        "    esac",
        '    if [ -z "$words" ]; then',
        '      case "$place" in',
        *_cases(by_place),
        "      esac",
        "    fi",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _bothways bothways",
    ]
    return "\n".join(lines) + "\n"


def _cases(places: Sequence[tuple[str, bool, Sequence[str]]]) -> Iterator[str]:
    for place, _, words in sorted(places, key=lambda item: not item[1]):
        yield f"      {place}) words={shlex.quote(' '.join(words))} ;;"


def _zsh() -> str:
    """bash's, which zsh runs by its own emulation."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    lines = [
        "# Completion of bothways for fish.",
        "complete -c bothways -n __fish_use_subcommand -f",
    ]
    for name, verb in VERBS.items():
        lines.append(_fish_line("__fish_use_subcommand", ["-a", name, "-d", verb.summary]))
    lines += [_fish_line("__fish_use_subcommand", ["-a", word]) for word in _WORDS]
    lines.append(_fish_line("__fish_seen_subcommand_from help", ["-f", "-a", " ".join(VERBS)]))
    shells = " ".join(SHELLS)
    lines.append(_fish_line("__fish_seen_subcommand_from completion", ["-f", "-a", shells]))
    for name, action, verb in _verbs():
        seen = f"__fish_seen_subcommand_from {name}"
        others = " ".join(_actions(name))
        if action:
            seen += f"; and __fish_seen_subcommand_from {action}"
        elif others:
            lines.append(_fish_line(seen, ["-a", others]))
            seen += f"; and not __fish_seen_subcommand_from {others}"
        if recipes := " ".join(verb.recipes()):
            lines.append(_fish_line(seen, ["-a", recipes]))
        for option, what in _options(verb).items():
            words = ["-l", option, "-d", what.text.partition(". ")[0][:80]]
            values = _values(what.kind)
            words += ["-x", "-a", " ".join(values)] if values else ["-r"]
            lines.append(_fish_line(seen, words))
    return "\n".join(lines) + "\n"


def _fish_line(condition: str, words: Sequence[str]) -> str:
    return f"complete -c bothways -n {_fish_quote(condition)} {' '.join(map(_fish_quote, words))}"


def _fish_quote(word: str) -> str:
    if word.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return word
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
