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
from bothways.config.fields import _choices, option_types, required_fields
from bothways.config.parsing import UsageError
from bothways.config.recipes import shipped_recipes
from bothways.corpus.options import CorpusConfig
from bothways.errors import ConfigError
from bothways.experiments.options import PlanConfig
from bothways.families.config import ModelConfig
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, GlueConfig, RunSeeds
from bothways.io.options import Format
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.options import ConvertConfig, FillMaskConfig, PredictConfig
from bothways.tasks.options import KindTraits, Usage
from bothways.tokenization.options import VocabularyConfig
from bothways.training.options import ClockOptions


@dataclass(frozen=True)
class Item:
    """An item."""

    size: int = 1
    """Its size."""


@dataclass(frozen=True)
class Group:
    """A group."""

    rate: float = 0.5
    """A rate."""
    on: bool = False
    """A switch."""


@dataclass(frozen=True)
class Undecided:
    """A switch that may be left open."""

    on: bool | None = True
    """A switch or nothing."""


@dataclass(frozen=True)
class Sample:
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
    items: tuple[Item, ...] = (Item(5),)
    """Groups in a list."""


@dataclass(frozen=True)
class Rates:
    """A list of numbers that need not be whole."""

    rates: tuple[float, ...] = ()
    """Numbers."""


def line(*argv: str, cls: type[Any] = Sample, positional: tuple[str, ...] = ()) -> Any:
    return options.parse(cls, argv, prog="bothways x", description="", positional=positional)


@dataclass(frozen=True)
class Names:
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
    path = recipe(tmp_path, "group: {on: true}\nitems: [{size: 2}, {}]\nnumbers: [1, 2]\n")
    loaded = options.load_recipe(Sample, path)
    assert loaded.group == Group(rate=0.25, on=True)
    assert loaded.items == (Item(2), Item(1))
    assert loaded.numbers == (1, 2)
    assert loaded.name == "x"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", "1.0e-03", "+1e-3", ".001"])
def test_every_way_of_writing_a_number_is_a_number(tmp_path: Path, text: str) -> None:
    loaded = options.load_recipe(Sample, recipe(tmp_path, f"group: {{rate: {text}}}"))
    assert loaded.group.rate == 0.001
    assert line("--group.rate", text).group.rate == 0.001


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
        ("group:\n  rte: 1\n", "2: unknown key 'group.rte'; did you mean 'group.rate'?"),
        ("grop: {rate: 1}\n", "1: unknown key 'grop'; did you mean 'group'?"),
        ("rate: 1\n", "1: unknown key 'rate'; did you mean 'group.rate'?"),
        ("items:\n- size: 1\n- sise: 1\n", "3: unknown key 'items[1].sise'; did you mean"),
        ("zzzzzz: 1\n", "1: unknown key 'zzzzzz'; known here: name, maybe"),
        ("group.rate: 1\n", "1: write 'group.rate' nested: 'group: {rate: ...}'."),
        ("name: a\n\nname: b\n", "3: name is given twice (first on line 1)."),
        ("group: {rate: 1, rate: 2}\n", "1: group.rate is given twice"),
        ("\ncount: many\n", "2: count is 'many'; it must be a whole number, or null."),
        ("count: 1.0\n", "1: count is '1.0'; it must be a whole number"),
        ("count: true\n", "1: count is 'true'; it must be a whole number"),
        ("count: [1]\n", "1: count is a list; it must be a whole number"),
        ("group: {rate: fast}\n", "1: group.rate is 'fast'; it must be a number."),
        ("group: {rate: .nan}\n", "1: group.rate is '.nan'; it must be a number."),
        ("group: {rate: inf}\n", "1: group.rate is 'inf'; it must be a number."),
        ("group: {on: 1}\n", "1: group.on is '1'; it must be true or false."),
        ("group: 3\n", "1: group is '3'; it must be 'name: value' lines."),
        ("kind: c\n", "1: kind is 'c'; it must be one of a, b."),
        ("numbers: 3\n", "1: numbers is '3'; it must be a list."),
        ("numbers: [1, x]\n", "1: numbers[1] is 'x'; it must be a whole number."),
        ("name: {a: b}\n", "1: name is a mapping; it must be text."),
        ("- name\n", "1: this is a list; it must be 'name: value' lines."),
        ("just text\n", "1: this is 'just text'; it must be 'name: value' lines."),
        ("? [a]\n: 1\n", "1: a key must be a plain name."),
        ("group:\n\trate: 1\n", "2: a tab; YAML is indented with spaces."),
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
    overrides = {"group.rate": 1e-3, "group": {"on": True}, "count": None, "numbers": (4, 5)}
    loaded = options.load_recipe(Sample, path, overrides)
    assert loaded == Sample(name="y", count=None, group=Group(1e-3, True), numbers=(4, 5))
    with pytest.raises(ConfigError, match=r"unknown option 'group\.rte'; did you mean 'group\."):
        options.load_recipe(Sample, path, {"group.rte": 1})
    with pytest.raises(ConfigError, match=r"^group\.rate is 'fast'; it must be a number\.$"):
        options.load_recipe(Sample, path, {"group.rate": "fast"})


def test_one_of_several_options_replaces_another_of_the_recipe(tmp_path: Path) -> None:
    """A clock in minutes on the command line, or in Python, one in steps in the recipe."""
    path = recipe(tmp_path, "clock: {steps: 10}\n")
    minutes = ClockOptions(minutes=3.0)
    for cls in (PretrainConfig, PlanConfig):
        assert line(str(path), "--clock.minutes", "3", cls=cls).clock == minutes
        assert line("--clock.minutes", "3", str(path), cls=cls).clock == minutes
        words = ["--clock.minutes", "3", "--clock.steps", "null"]
        assert line(str(path), *words, cls=cls).clock == minutes
        assert line(str(path), "--clock.steps", "7", cls=cls).clock.steps == 7
        assert line(str(path), "--clock.steps", "null", cls=cls).clock == ClockOptions()
        null = line(str(path), "--clock.minutes", "null", cls=cls)
        assert null.clock.steps == 10, "nothing was given in its place"
    for overrides in ({"clock.minutes": 3}, {"clock": {"minutes": 3.0}}):
        assert options.load_recipe(PretrainConfig, path, overrides).clock == minutes
    search = recipe(tmp_path, "search: {default: true, lr: [1e-4]}\n")
    found = line(str(search), "--search.paper", cls=FinetuneConfig).search
    assert (found.paper, found.default, found.lr) == (True, False, (1e-4,))


def test_several_of_which_one_is_needed_are_refused(tmp_path: Path) -> None:
    path = recipe(tmp_path, "clock: {tokens: 10}\n")
    problem = r"^clock: give one of steps, tokens, minutes; got steps and minutes\.$"
    both = {"clock.steps": 1, "clock.minutes": 3}
    for place in ([], [str(path)]):
        with pytest.raises(ConfigError, match=problem):
            line(*place, "--clock.steps", "1", "--clock.minutes", "3", cls=PretrainConfig)
    with pytest.raises(ConfigError, match=problem):
        options.load_recipe(PretrainConfig, path, both)
    with pytest.raises(ConfigError, match=problem):
        ClockOptions(steps=1, minutes=3)
    text = "seed: 1\nclock:\n  steps: 1\n  minutes: 3\n"
    assert refused(tmp_path, text, PretrainConfig) == (
        "4: clock: give one of steps, tokens, minutes; got steps and minutes."
    )
    for words in ([], ["--clock.tokens", "5"]):
        with pytest.raises(ConfigError, match=r"r\.yaml:4: clock: give one of"):
            line(str(tmp_path / "r.yaml"), *words, cls=PretrainConfig)


# ---------------------------------------------------------------------------- names of recipes


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(*argv: str, cls: type[Any] = PretrainConfig) -> Any:
    """As the verb parses its words."""
    known = shipped_recipes()
    return options.parse(cls, argv, prog="bothways x", description="", recipes=known)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_that_comes_with_the_package_goes_by_name(name: str) -> None:
    config = options.load_recipe(PretrainConfig, shipped_recipes()[name])
    assert config != PretrainConfig()
    assert named(name) == named("--config", name) == config
    assert options.load_recipe(PretrainConfig, name) == config
    assert options.read_recipe(PlanConfig, name) == options.read_recipe(PretrainConfig, name)


def test_what_is_a_path_and_what_a_name(elsewhere: Path) -> None:
    own = "seed: 77\n"
    (elsewhere / "mini-ko").mkdir()
    assert named("mini-ko").seed == 0, "a folder is no recipe"
    for path in ("own", "own.yaml", "own.yml", "tiny.yaml", "tiny.txt", "deep/tiny"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(own)
        assert named(path).seed == options.load_recipe(PretrainConfig, path).seed == 77
    (elsewhere / "tiny").write_text(own)
    for refuse in (named, lambda word: options.load_recipe(PretrainConfig, word)):
        with pytest.raises(ConfigError, match=r"^'tiny' is the name .* write \./tiny for the file"):
            refuse("tiny")
    assert named("./tiny").seed == options.load_recipe(PretrainConfig, Path("tiny")).seed == 77


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "mini-kr",
            "'mini-kr' is neither the name of a recipe nor a file; did you mean 'mini-ko'?",
        ),
        ("zzz", "'zzz' is neither the name of a recipe nor a file. The names are base, batch-"),
        ("", "'' is neither the name of a recipe nor a file. The names are"),
        ("recipes/mini-en.yaml", "recipes/mini-en.yaml: no such file; the recipe mini-en comes"),
        ("mini-en.yml", "mini-en.yml: no such file; the recipe mini-en comes with bothways and"),
        ("own.yaml", "own.yaml: the recipe cannot be read: No such file or directory."),
        ("runs/tiny", "runs/tiny: the recipe cannot be read: No such file or directory."),
    ],
)
def test_recipes_that_are_not_there(word: str, message: str) -> None:
    for refuse in (named, lambda word: options.load_recipe(PretrainConfig, word)):
        with pytest.raises(ConfigError) as caught:
            refuse(word)
        assert str(caught.value).startswith(message)
        if "The names are" in str(caught.value):
            assert str(caught.value).endswith(
                f"are {', '.join(shipped_recipes())}; the path of a YAML file works, too."
            )


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
    path = recipe(tmp_path, "name: y\ngroup: {rate: 1e-4, on: true}\n")
    for place in ([str(path)], ["--config", str(path)], [f"--config={path}"]):
        loaded = line(*place, "--group.rate", "1e-3")
        assert loaded == Sample(name="y", group=Group(1e-3, True))


def test_switches_lists_and_spellings(tmp_path: Path) -> None:
    path = recipe(tmp_path, "name: y\n")
    assert line("--group.on", str(path)) == Sample(name="y", group=Group(0.25, True))
    assert line("--group.on", "False").group.on is False
    for words, value in ((["null"], None), (["false"], False), ([], True)):
        assert line("--on", *words, cls=Undecided).on is value
    with pytest.raises(UsageError, match="unexpected 'null'"):
        line("--group.on", "null")
    assert line("--numbers", "1", "-2", "--name=-").numbers == (1, -2)
    assert line("--numbers=1").numbers == (1,)
    assert line("--numbers", "[1, 2]").numbers == (1, 2)
    for words in (["1,2"], ["1,", "2"], ["1", ",2"], ["1", "2,"]):
        assert line("--numbers", *words).numbers == (1, 2)
    assert line("--words", "a,b", "c").words == ("a,b", "c"), "a text may have commas"
    with pytest.raises(
        UsageError, match=r"^rates\[1\] is '2,5'; it must be a number, and between "
    ):
        line("--rates", "1", "2,5", cls=Rates)  # 2.5, as some write it
    assert line("--names", "[ab]*.txt", cls=Names).names == ("[ab]*.txt",)
    assert line("--names", "[ab]", cls=Names).names == ("ab",)
    assert line("--items", "[{size: 3}]").items == (Item(3),)
    assert line("--log-every", "4", cls=PretrainConfig).log_every == 4
    assert line("--name", "").name == ""
    assert line("--name", "-x").name == "-x"
    assert line("--name", "-", "--count", "-3") == Sample(name="-", count=-3)
    assert line("--maybe", "#1").maybe == "#1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nmae", "y"], "unknown option '--nmae'; did you mean '--name'?"),
        (["--grop.rate=1"], "unknown option '--grop.rate'; did you mean '--group.rate'?"),
        (["--rate", "1"], "unknown option '--rate'; did you mean '--group.rate'?"),
        (["--group", "{}"], "unknown option '--group'; did you mean '--group."),
        (["-n", "1"], "unknown option '-n'; "),
        (["--zzzzzz"], "unknown option '--zzzzzz'; see 'bothways x --help'."),
        (["--name"], "--name needs a value"),
        (["--name", "--group.on"], "--name needs a value"),
        (["--count", "x"], "count is 'x'; it must be a whole number, or null."),
        (["--group.rate", "nan"], "group.rate is 'nan'; it must be a number."),
        (["--items", "[{sise: 3}]"], "unknown key 'items[0].sise'; did you mean 'items[0].size'?"),
        (["--numbers", ","], "numbers[0] is ','; it must be a whole number."),
        (["--numbers", "1,x"], "numbers[1] is 'x'; it must be a whole number."),
        (["--items", "3"], "items[0] is '3'; it must be 'name: value' lines."),
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

    assert predict("m", "a", "--text_b", "c", "b") == PredictConfig("m", ("a", "b"), text_b="c")
    assert predict("m", "-", "--", "--a") == PredictConfig("m", ("-", "--a"))
    assert predict("m").texts == ()
    globs = line("--files", "[a-m]*.txt", "[n-z]*.txt", "--out", "o", cls=VocabularyConfig)
    assert globs.files == ("[a-m]*.txt", "[n-z]*.txt")
    assert line("--files", "[a, b]", "--out", "o", cls=VocabularyConfig).files == ("a", "b")
    with pytest.raises(UsageError, match="needs MODEL"):
        predict()
    with pytest.raises(UsageError, match="'--model'; it is given by its place: bothways x MODEL"):
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
    "answer": "m --question q --context 'no: text'",
    "choose": "m context 'choice 1' null",
    "corpus build": "--files a.txt --tokenizer t --out c --heldout 1e-3",
    "embed": "m --out v.npz 0 010 --layers -1 -2 --normalize false",
    "features": "conll2003 --data d --optimizer.lr 3e-4 --layers last",
    "fill-mask": "'a [MASK] b' '# ~'",
    "finetune": "squad2 --data d --run r --search.default --dropout 0",
    "predict": "m --file x.tsv --ensemble a b",
    "pretrain": "tiny --corpus c --clock.minutes 2 --phases '[{length: 32}]'",
    "reproduce": "table5 --seeds 1 2 --text 'a b' 1e3",
    "vocab extend": "--source s --out o --words w",
    "vocab learn": "--files '[a]*.txt' --out o --score ratio",
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
        return options.parse(
            verb.config,
            argv,
            prog="bothways x",
            description="",
            positional=verb.positional,
            recipes=verb.recipes(),
            recipe_part=verb.recipe_part,
        )

    with pytest.raises(SystemExit) as stop:
        parsed(*words, "--print_config")
    assert stop.value.code == 0
    path = recipe(tmp_path, capsys.readouterr().out)
    config = parsed(*words)
    assert parsed("--config", str(path)) == config
    assert options.load_recipe(verb.config, path) == config
    if not verb.positional:
        assert parsed(str(path)) == config


def test_what_is_given_by_place_wins_over_the_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, "model: m\ntexts: [a]\ntop: 2\n")
    places = ("model", "texts")
    loaded = line("--config", str(path), cls=FillMaskConfig, positional=places)
    assert loaded == FillMaskConfig("m", ("a",), top=2)
    other = line("n", "b", "c", "--config", str(path), cls=FillMaskConfig, positional=places)
    assert other == FillMaskConfig("n", ("b", "c"), top=2)


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


@pytest.mark.parametrize("cls", option_classes(), ids=lambda cls: cls.__name__)
def test_help_explains_every_option(cls: type[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        line("--help", "all", cls=cls)
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in option_types(cls):
        if options._is_unlisted(cls, name):
            assert f" --{name} " not in shown
            continue
        text = shown.partition(f" --{name} ")[2].lstrip()
        # NAME or {a,b} or [ITEM,...], then at least a sentence, then type and default.
        described = text.partition("(")[0].split(" ", 1)
        assert len(described) == 2, name
        assert len(described[1]) > 5, name


def test_help_for_lists_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        line("--help")
    assert "\n    size " in (shown := capsys.readouterr().out)
    assert "Its size. (default: 1)" in shown


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
        ({"pairs.short": 1.5}, "pairs.short is 1.5"),
        ({"optimizer.lr": -1e-3}, "optimizer.lr is -0.001"),
        ({"optimizer.beta2": 1.0}, "optimizer.beta2 is 1"),
        ({"optimizer.clip": 0.0}, "optimizer.clip is 0"),
        ({"evaluate.sequences": 0}, "evaluate.sequences is 0"),
        ({"checkpoint.keep": 0}, "checkpoint.keep is 0"),
        ({"masking.rate": 1.0}, "masking.rate is 1"),
        ({"clock.steps": 0}, "clock.steps is 0"),
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
