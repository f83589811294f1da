"""Recipes and command lines: what is read, and that nothing is ignored or guessed."""

from __future__ import annotations

import shlex
import string
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import bothways
from bothways import cli
from bothways.config import parsing as options
from bothways.config.fields import (
    Options,
    _choices,
    alternative,
    flat,
    mapping,
    option_types,
    options_of,
    refuse_several,
    required_fields,
)
from bothways.config.parsing import CommandLine, UsageError
from bothways.config.recipes import shipped_recipes
from bothways.corpus.options import CorpusConfig
from bothways.errors import ConfigError
from bothways.experiments.options import PlanConfig
from bothways.families.config import ModelConfig
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, GlueConfig, RunSeeds
from bothways.io.options import Format
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.options import ConvertConfig, PredictConfig
from bothways.tasks.options import KindTraits, Usage
from bothways.tokenization.options import VocabularyConfig


@dataclass(frozen=True)
class Item(Options):
    """An item."""

    size: int = 1
    """Its size."""


@dataclass(frozen=True)
class Group(Options):
    """A group."""

    rate: float = 0.5
    """A rate."""
    on: bool = False
    """A switch."""


@dataclass(frozen=True)
class Clock(Options):
    """Options that exclude each other."""

    steps: int | None = alternative(None)
    """Steps."""
    minutes: float | None = alternative(None)
    """Minutes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_several(self)


@dataclass(frozen=True)
class Undecided(Options):
    """A switch that may be left open."""

    on: bool | None = True
    """A switch or nothing."""


@dataclass(frozen=True)
class Sample(Options):
    """All kinds of fields."""

    name: str = "x"
    """A text."""
    maybe: str | None = None
    """A text or nothing."""
    count: int | None = 3
    """A number or nothing."""
    kind: Literal["a", "b"] = "a"
    """A choice."""
    words: tuple[str, ...] = ()
    """Texts."""
    numbers: tuple[int, ...] = (7,)
    """Numbers."""
    group: Group = field(default_factory=lambda: Group(rate=0.25))
    """A group whose default is not its class's."""
    inner: Clock = flat(Clock)
    """A group without a name before those of its options."""
    about: Item = mapping(Item)
    """A group that is given as a whole."""
    items: tuple[Item, ...] = (Item(5),)
    """Groups in a list."""


def line(*argv: str, cls: type[Any] = Sample, positional: tuple[str, ...] = ()) -> Any:
    return CommandLine(cls, "bothways x", positional).parse(argv)


@dataclass(frozen=True)
class Names(Options):
    """Files, say."""

    names: tuple[str, ...] = ()
    """Names or globs."""


def recipe(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, cls: type[Any] = Sample) -> str:
    with pytest.raises(ConfigError) as caught:
        options.load_recipe(cls, recipe(folder, text))
    assert str(caught.value).startswith(f"{folder / 'r.yaml'}")
    return str(caught.value).removeprefix(f"{folder / 'r.yaml'}:")


# ----------------------------------------------------------------------------------------- recipes


def test_a_recipe_sets_only_what_it_names(tmp_path: Path) -> None:
    path = recipe(
        tmp_path, "group_on: true\nitems: [{size: 2}, {}]\nabout: {size: 9}\nnumbers: [1, 2]\n"
    )
    loaded = options.load_recipe(Sample, path)
    assert loaded.group == Group(rate=0.25, on=True)
    assert loaded.items == (Item(2), Item(1))
    assert loaded.about == Item(9)
    assert loaded.numbers == (1, 2)
    assert loaded.name == "x"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "1.0e-03", "+1e-3", ".001"])
def test_every_way_of_writing_a_number_is_a_number(tmp_path: Path, text: str) -> None:
    loaded = options.load_recipe(Sample, recipe(tmp_path, f"group_rate: {text}"))
    assert loaded.group.rate == 0.001
    assert line("--group-rate", text).group.rate == 0.001


def test_labels_that_look_like_other_things_stay_texts(tmp_path: Path) -> None:
    looks = ["no", "yes", "on", "0", "010", "1e3", "2020-01-01", "0x10", "1_000"]
    loaded = options.load_recipe(Sample, recipe(tmp_path, f"words: [{', '.join(looks)}]"))
    assert list(loaded.words) == looks
    assert list(line("--words", *looks).words) == looks


def test_null_is_nothing_where_nothing_is_allowed(tmp_path: Path) -> None:
    loaded = options.load_recipe(Sample, recipe(tmp_path, "count: null\nmaybe: ~\n"))
    assert (loaded.count, loaded.maybe) == (None, None)
    assert line("--count", "null").count is None
    assert "name is empty; it must be text" in refused(tmp_path, "name:\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: y\nnmae: z\n", "2: unknown key 'nmae'; did you mean 'name'?"),
        ("group_rte: 1\n", "1: unknown key 'group_rte'; did you mean 'group_rate'?"),
        ("items:\n- size: 1\n- sise: 1\n", "3: unknown key 'sise'; did you mean 'size'?"),
        ("zzzzzz: 1\n", "1: unknown key 'zzzzzz'."),
        ("name: a\n\nname: b\n", "3: name is given twice (first on line 1)."),
        ("about: {size: 1, size: 2}\n", "1: size is given twice"),
        ("\ncount: many\n", "2: count is 'many'; it must be a whole number, or null."),
        ("count: 1.0\n", "1: count is '1.0'; it must be a whole number"),
        ("count: true\n", "1: count is 'true'; it must be a whole number"),
        ("count: [1]\n", "1: count is a list; it must be a whole number"),
        ("group_rate: fast\n", "1: group_rate is 'fast'; it must be a number."),
        ("group_rate: .nan\n", "1: group_rate is '.nan'; it must be a number."),
        ("group_rate: inf\n", "1: group_rate is 'inf'; it must be a number."),
        ("group_on: 1\n", "1: group_on is '1'; it must be true or false."),
        ("about: 3\n", "1: this is '3'; it must be 'name: value' lines."),
        ("kind: c\n", "1: kind is 'c'; it must be one of a, b."),
        ("numbers: x\n", "1: numbers is 'x'; it must be a whole number."),
        ("steps: 3\nminutes: 1\n", "1: give one of steps, minutes; got steps and minutes."),
        ("numbers: [1, x]\n", "1: numbers[1] is 'x'; it must be a whole number."),
        ("name: {a: b}\n", "1: name is a mapping; it must be text."),
        ("- name\n", "1: this is a list; it must be 'name: value' lines."),
        ("just text\n", "1: this is 'just text'; it must be 'name: value' lines."),
        ("? [a]\n: 1\n", "1: a key must be a plain name."),
        ("about:\n\tsize: 1\n", "2: a tab; YAML is indented with spaces."),
        ("name: 'open\n", "2: found unexpected end of stream."),
        ("name: a\n---\nname: b\n", "2: but found another document."),
        ("name: a\0b\n", "1: not text: special characters are not allowed."),
        ("name: " + "[" * 1000, " nested too deeply to be a recipe."),
        ("", " the recipe is empty"),
        ("# nothing\n", " the recipe is empty"),
    ],
)
def test_bad_recipes_are_refused_with_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_a_deep_object_in_place_of_a_value_is_named(tmp_path: Path) -> None:
    told = refused(tmp_path, "count: " + "{a: " * 300 + "1" + "}" * 300)
    assert told.startswith("1: count is ")
    assert told.endswith("it must be a whole number, or null.")


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    with pytest.raises(ConfigError, match=r"r\.yaml: the recipe cannot be read: No such file"):
        options.load_recipe(Sample, path)
    path.write_bytes(b"name: a\nmaybe: \xff\n")
    with pytest.raises(ConfigError, match=r"r\.yaml:2: not UTF-8"):
        options.load_recipe(Sample, path)
    path.write_bytes(b"\xef\xbb\xbfname: with byte order mark\n")
    assert options.load_recipe(Sample, path).name == "with byte order mark"


def test_overrides_from_python(tmp_path: Path) -> None:
    path = recipe(tmp_path, "name: y\ncount: 1\n")
    overrides = {"group_rate": 1e-3, "group_on": True, "count": None, "numbers": (4, 5)}
    loaded = options.load_recipe(Sample, path, overrides)
    assert loaded == Sample(name="y", count=None, group=Group(1e-3, True), numbers=(4, 5))
    with pytest.raises(ConfigError, match=r"no option 'group_rte'; did you mean 'group_rate'"):
        options.load_recipe(Sample, path, {"group_rte": 1})
    with pytest.raises(ConfigError, match=r"rate is 'fast'; it must be a number\.$"):
        options.load_recipe(Sample, path, {"group_rate": "fast"})


def test_one_of_several_options_replaces_another_of_the_recipe(tmp_path: Path) -> None:
    """A length in minutes on the command line, or in Python, one in steps in the recipe."""
    path = recipe(tmp_path, "steps: 10\n")
    assert line(str(path), "--minutes", "3").inner == Clock(minutes=3.0)
    assert line("--minutes", "3", str(path), "--steps", "null").inner == Clock(minutes=3.0)
    assert line(str(path), "--steps", "null").inner == Clock()
    assert line(str(path), "--minutes", "null").inner == Clock(steps=10), "nothing in its place"
    assert options.load_recipe(Sample, path, {"minutes": 3.0}).inner == Clock(minutes=3.0)
    search = recipe(tmp_path, "search_default: true\nsearch_lr: [1e-4]\n")
    found = line(str(search), "--search-paper", cls=FinetuneConfig).search
    assert (found.paper, found.default, found.lr) == (True, False, (1e-4,))
    with pytest.raises(ConfigError, match=r"^give one of steps, minutes; got steps and minutes\.$"):
        line("--steps", "1", "--minutes", "3")


# ---------------------------------------------------------------------------- names of recipes


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(*argv: str, cls: type[Any] = PretrainConfig) -> Any:
    """As the verb parses its words."""
    known = shipped_recipes()
    return CommandLine(cls, "bothways x", recipes=known).parse(argv)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_that_comes_with_the_package_goes_by_name(name: str) -> None:
    config = options.load_recipe(PretrainConfig, shipped_recipes()[name])
    assert config != PretrainConfig()
    assert named(name) == config
    assert options.load_recipe(PretrainConfig, name) == config
    assert options.read_recipe(PlanConfig, name) == options.read_recipe(PretrainConfig, name)


def test_what_is_a_path_and_what_a_name(elsewhere: Path) -> None:
    for path in ("own.yaml", "own.yml", "tiny.yaml", "deep/tiny.yaml"):
        (elsewhere / path).parent.mkdir(exist_ok=True)
        (elsewhere / path).write_text("seed: 77\n")
        assert named(path).seed == options.load_recipe(PretrainConfig, path).seed == 77
    (elsewhere / "tiny").write_text("seed: 77\n")
    assert named("tiny").seed == 0, "a name goes before a file"
    assert named("./tiny.yaml").seed == options.load_recipe(PretrainConfig, Path("tiny")).seed == 77


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mini-kr", "there is no recipe 'mini-kr'; did you mean 'mini-ko'? The names are base,"),
        ("zzz", "there is no recipe 'zzz'. The names are base, batch-"),
        ("own.yaml", "own.yaml: the recipe cannot be read: No such file or directory."),
        ("runs/tiny", "runs/tiny: the recipe cannot be read: No such file or directory."),
    ],
)
def test_recipes_that_are_not_there(word: str, message: str) -> None:
    for refuse in (named, lambda word: options.load_recipe(PretrainConfig, word)):
        with pytest.raises(ConfigError) as caught:
            refuse(word)
        assert str(caught.value).startswith(message)


def test_the_verbs_that_take_recipes_list_them(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("pretrain", "plan"):
        assert cli.main([verb, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"usage: bothways {verb} [NAME | RECIPE.yaml]" in shown
        for name, path in shipped_recipes().items():
            summary = path.read_text().splitlines()[0].removeprefix("# ")
            assert summary[-1] not in ":,;.", f"{path.name}: the first line stands alone"
            assert len(summary) <= 90
            assert any(line.split() == [name, *summary.split()] for line in shown.splitlines())


# ------------------------------------------------------------------------------------ command line


def test_the_command_line_wins_over_the_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, "name: y\ngroup_rate: 1e-4\ngroup_on: true\n")
    loaded = line(str(path), "--group-rate", "1e-3", "--set", "count=4", "about={size: 2}")
    assert loaded == Sample(name="y", group=Group(1e-3, True), count=4, about=Item(2))


def test_switches_lists_and_spellings(tmp_path: Path) -> None:
    path = recipe(tmp_path, "name: y\n")
    assert line("--group-on", str(path)) == Sample(name="y", group=Group(0.25, True))
    assert line("--group-on", "False").group.on is False
    for words, value in ((["null"], None), (["false"], False), ([], True)):
        assert line("--on", *words, cls=Undecided).on is value
    with pytest.raises(UsageError, match="unexpected 'null'"):
        line("--group-on", "null")
    assert line("--numbers", "1", "-2", "--name=-").numbers == (1, -2)
    assert line("--numbers=1").numbers == (1,)
    assert line("--set", "numbers=[1, 2]").numbers == (1, 2)
    assert line("--words", "a,b", "c").words == ("a,b", "c"), "a text may have commas"
    assert line("--names", "[ab]*.txt", cls=Names).names == ("[ab]*.txt",)
    assert line("--items", "[{size: 3}]").items == (Item(3),)
    assert line("--set", "log_every=4", "seed=2", cls=PretrainConfig).log_every == 4
    assert line("--name", "").name == ""
    assert line("--name", "-x").name == "-x"
    assert line("--name", "-", "--count", "-3") == Sample(name="-", count=-3)
    assert line("--maybe", "#1").maybe == "#1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nmae", "y"], "unknown option '--nmae'; did you mean '--name'?"),
        (["--grop-rate=1"], "unknown option '--grop-rate'; did you mean '--group-rate'?"),
        (["--group_rate=1"], "unknown option '--group_rate'; did you mean '--group-rate'?"),
        (["-n", "1"], "unknown option '-n'; "),
        (["--zzzzzz"], "unknown option '--zzzzzz'; see 'bothways x --help'."),
        (["--name"], "--name needs a value"),
        (["--name", "--group-on"], "--name needs a value"),
        (["--set", "name"], "--set name: write it as KEY=VALUE."),
        (["--name", "a", "--set", "name=b"], "name is given twice; leave one out."),
        (["--set", "nmae=1"], "--set: there is no option 'nmae'; did you mean 'name'?"),
        (["--words", "a", "--words", "b"], "--words is given twice; write all its values"),
        (["--count", "x"], "count is 'x'; it must be a whole number, or null."),
        (["--group-rate", "nan"], "group_rate is 'nan'; it must be a number."),
        (["--items", "[{sise: 3}]"], "unknown key 'sise'; did you mean 'size'?"),
        (["--numbers", "1", "x"], "numbers[1] is 'x'; it must be a whole number."),
        (["--items", "3"], "items is '3'; it must be a list."),
        (["a.txt"], "unexpected 'a.txt': the one word without a name is the recipe"),
        (["a.yaml", "b.yaml"], "unexpected 'b.yaml': the recipe is a.yaml already."),
    ],
)
def test_bad_command_lines(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        line(*argv)
    assert str(caught.value).startswith(message)


def test_missing_values_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bothways x needs --files, --out; see"):
        line(cls=VocabularyConfig)
    path = recipe(tmp_path, "files: [a]\nout: b\n")
    assert line(str(path), cls=VocabularyConfig).files == ("a",)
    with pytest.raises(ConfigError, match="tokenizer not given"):
        options.load_recipe(CorpusConfig, path)


def test_values_by_place() -> None:
    def predict(*argv: str) -> PredictConfig:
        found: PredictConfig = line(*argv, cls=PredictConfig, positional=("model", "texts"))
        return found

    assert predict("m", "a", "--text-b", "c", "b") == PredictConfig("m", ("a", "b"), text_b="c")
    assert predict("m", "-", "--", "--a") == PredictConfig("m", ("-", "--a"))
    assert predict("m").texts == ()
    globs = line("--files", "[a-m]*.txt", "[n-z]*.txt", "--out", "o", cls=VocabularyConfig)
    assert globs.files == ("[a-m]*.txt", "[n-z]*.txt")
    with pytest.raises(UsageError, match="needs MODEL"):
        predict()
    with pytest.raises(UsageError, match="--model: it is given by its place: bothways x MODEL"):
        predict("--model", "m")
    with pytest.raises(UsageError, match="unexpected 'c'"):
        line("a", "b", "c", cls=ConvertConfig, positional=("source", "out"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(), min_size=1))
def test_texts_given_by_place_arrive_as_they_are(texts: list[str]) -> None:
    parsed = line("m", "--", *texts, cls=PredictConfig, positional=("model", "texts"))
    assert parsed.texts == tuple(texts)


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=string.printable, min_size=1).filter(lambda text: text != "null"))
def test_a_text_option_arrives_as_it_is(text: str) -> None:
    assert line(f"--name={text}").name == text
    assert line(f"--maybe={text}").maybe == text
    quoted = yaml.safe_dump({"maybe": text})
    node = yaml.compose(quoted, Loader=yaml.SafeLoader)
    assert node is not None
    assert options._Reader("r.yaml").mapping(node, Sample) == {"maybe": text}


# ------------------------------------------------------------------------------ help and round trip


def verbs() -> dict[str, cli.Verb]:
    """All verbs, those of groups with their action."""
    found: dict[str, cli.Verb] = {}
    for name, verb in cli.VERBS.items():
        if isinstance(verb, cli.Verb):
            found[name] = verb
        else:
            found |= {f"{name} {action}": inner for action, inner in verb.actions.items()}
    return found


GIVEN = {
    "corpus build": "--files a.txt --tokenizer t --out c --heldout 1e-3",
    "embed": "m --out v.npz 0 010 --layers -1 -2 --normalize false",
    "fill-mask": "'a [MASK] b' '# ~'",
    "finetune": "squad2 --data d --run r --set search_default=true --dropout 0",
    "evaluate": "d.json --predictions p.json",
    "predict": "m --context 'no: text' --choices 'choice 1' null --ensemble a b",
    "pretrain": "tiny --corpus c --minutes 2 --phases '[{length: 32}]'",
    "reproduce features": "conll2003 --data d --lr 3e-4 --layers last",
    "reproduce table": "table5 --seeds 1 2",
    "vocab extend": "--source s --out o --words w",
    "vocab learn": "--files '[a]*.txt' --out o --set score=ratio",
}
"""Words for verbs; the others are given a text for each option that they need."""


@pytest.mark.parametrize("name", verbs())
def test_what_print_config_prints_is_the_same_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = verbs()[name]
    needed: list[str] = []
    for option in required_fields(verb.config):
        needed += ["v"] if option in verb.positional else [f"--{option}", "v"]
    words = shlex.split(GIVEN[name]) if name in GIVEN else needed

    def parsed(*argv: str) -> Any:
        return verb.words("x").parse(argv)

    with pytest.raises(SystemExit) as stop:
        parsed(*words, "--print-config")
    assert stop.value.code == 0
    path = recipe(tmp_path, capsys.readouterr().out)
    config = parsed(*words)
    assert options.load_recipe(verb.config, path) == config
    if not verb.positional:
        assert parsed(str(path)) == config


def option_classes() -> list[type[Any]]:
    """The dataclasses of all modules of options."""
    root = Path(bothways.__file__).parent
    found: set[type[Any]] = set()
    for path in root.glob("**/options.py"):
        name = ".".join(["bothways", *path.relative_to(root).with_suffix("").parts])
        found |= {c for c in vars(import_module(name)).values() if is_dataclass(c)}
    return sorted(
        found - {ModelConfig, RunSeeds, Format, KindTraits, Usage}, key=lambda c: c.__name__
    )


@pytest.mark.parametrize("name", verbs())
def test_help_lists_the_options_of_a_verb_and_explains_each(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = verbs()[name]
    listed = [o.name for o in verb.words("x").listed()]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= option_types(verb.config).keys()
    assert set(required_fields(verb.config)) <= {*listed, *verb.positional}
    page = verb.words(f"bothways {name}").help()
    assert len(page.splitlines()) <= 110
    assert max(map(len, page.splitlines())) <= 100
    for option in {*listed} - {*verb.positional}:
        assert f"\n  {options.shown(option)}" in page
    for option in option_types(verb.config):
        with pytest.raises(SystemExit):
            verb.run(name, ["--help", option])
        head, text = capsys.readouterr().out.split("\n", 1)
        assert head.startswith("--")
        assert len(text) > 8, option


def test_the_command_line_has_no_more_options_than_it_may() -> None:
    named = {(name, o.name) for name, verb in verbs().items() for o in verb.words("x").listed()}
    named -= {(name, place) for name, verb in verbs().items() for place in verb.positional}
    # Those that the actions of a verb share are on its page once.
    assert len({(name.split()[0], option) for name, option in named}) <= 240
    assert len(cli.VERBS) == 20


@pytest.mark.parametrize("cls", option_classes(), ids=lambda cls: cls.__name__)
def test_an_option_has_a_name_of_its_own(cls: type[Any]) -> None:
    names = [option.name for option in options_of(cls)]
    assert len(set(names)) == len(names)


def test_every_option_has_a_type_that_can_be_read() -> None:
    for cls in option_classes():
        for name, field_type in option_types(cls).items():
            assert field_type.describe(), name
            assert field_type.is_group or field_type.metavar, name


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"phases": [{"micro_batch": 0}]}, "phases.micro_batch is 0"),
        ({"phases": [{"batch": 0}]}, "phases.batch is 0"),
        ({"phases": [{"length": 7}]}, "phases.length is 7"),
        ({"phases": [{"share": -1}, {"share": 2}]}, "phases.share is"),
        ({"pairs_short": 1.5}, "pairs_short is 1.5"),
        ({"lr": -1e-3}, "lr is -0.001"),
        ({"beta2": 1.0}, "beta2 is 1"),
        ({"clip": 0.0}, "clip is 0"),
        ({"evaluate_sequences": 0}, "evaluate_sequences is 0"),
        ({"checkpoint_keep": 0}, "checkpoint_keep is 0"),
        ({"masking_rate": 1.0}, "masking_rate is 1"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_values_out_of_range_are_named(
    tmp_path: Path, override: dict[str, object], named: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1\n")
    with pytest.raises(ConfigError, match=named):
        options.load_recipe(PretrainConfig, recipe, override)


CLASSES = option_classes()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_choices_hold_in_python_as_on_the_command_line(kind: Any) -> None:
    required = {f.name: "x" for f in fields(kind) if f.default is f.default_factory}
    limited = _choices(kind)
    assert limited.keys() == {
        n for n, hint in get_type_hints(kind).items() if "Literal" in str(hint)
    }
    for name in limited:
        with pytest.raises(ConfigError, match=f"^{name} is 'neither'; choose from "):
            kind(**{**required, name: "neither"})


def test_choices_of_several_values_and_none() -> None:
    assert FeaturesConfig(layers=("last", "sum-all")).layers == ("last", "sum-all")
    with pytest.raises(ConfigError, match=r"^layers is 'lst'; choose from embeddings, second-to"):
        FeaturesConfig(layers=("last", "lst"))  # type: ignore[arg-type]
    assert GlueConfig(data="d", run="r", precision=None).precision is None
    with pytest.raises(ConfigError, match=r"^precision is 'fp16'; choose from auto, bf16, fp32\.$"):
        GlueConfig(data="d", run="r", precision="fp16")  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [["--out", ""], ["--files", "", "--out", "v"]])
def test_empty_paths_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vocab", *words]) == 2
    said = "it names a file or folder (is a variable of the shell not set?)"
    assert said in capsys.readouterr().err
