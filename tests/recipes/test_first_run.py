"""The first run on one's own text: a prepared folder is enough, and the commands are those of
README.
"""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddlib.hierarchies import load_clusters
from recipes import clusters, generate, lm1b, owt, prepare, train
from recipes.config import differences, read_recipe
from recipes.config.command import choose
from recipes.data import corpus_of, open_prepared, speeches
from recipes.data.text import load_speeches
from recipes.model_io import open_saved
from recipes.papers import run, smoke

ROOT = Path(__file__).parent.parent.parent
COMMANDS = {
    "prepare": prepare,
    "clusters": clusters,
    "owt": owt,
    "lm1b": lm1b,
    "generate": generate,
    "train": train,
}
FAST = [
    "--steps",
    "2",
    "--output.no-tensorboard",
    "--output.sample-steps",
    "2",
    "--output.validate-sequences",
    "8",
]
LOCAL = ["local", "--files", "mytext.txt", "--tokenizer", "train:280", "--out", "data/mine"]


def lines(name):
    """A user's text, one document a line."""
    return [f"{name} time {number} and again the {number % 7} of us" for number in range(60)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text that was prepared by the issue's command, and all that it printed."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mytext.txt").write_text("\n".join(lines("first")) + "\n", encoding="utf-8")
        prepare.main(LOCAL)
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def printed(capsys, first="train on it: "):
    """The command that a command ended with, as its module and words."""
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(first))
    return words_of(line.removeprefix(first))


def words_of(line):
    python, flag, module, *words = shlex.split(line)
    assert (python, flag) == ("python", "-m")
    return module.removeprefix("recipes."), words


def test_the_folder_alone_adopts_its_corpus_and_trains(here, capsys):
    prepare.main(LOCAL)
    module, words = printed(capsys)
    assert words[2:4] == ["--data.folder", "data/mine"]
    (here / "mytext.txt").rename(here / "moved.txt")  # it is needed no more
    try:
        COMMANDS[module].main([*words, *FAST])
    finally:
        (here / "moved.txt").rename(here / "mytext.txt")
    recipe = read_recipe(Path("runs/mine/recipe.yaml"))
    assert (
        recipe.data.corpus == corpus_of(Path("data/mine"))
        and recipe.data.corpus.tokenizer == "train:280"
    )
    saved = open_saved("runs/mine")
    assert saved.recipe.data == recipe.data and saved.process.vocab_size == 282
    with pytest.raises(
        SystemExit, match=r"is of another run: steps is 3, was 2\. Choose"
    ):  # the corpus is the same
        COMMANDS[module].main([*words, *FAST, "--steps", "3"])


def test_a_file_needs_no_more_than_the_folder(here):
    values = {
        "data": {"folder": "data/mine", "length": 16},
        "process": {"kind": "mdlm"},
        "model": {"kind": "neighbours", "width": 8},
        "optimizer": {"lr": 1e-3},
        "output": {"folder": "runs/file", "tensorboard": False, "sample_steps": 2, "samples": 1},
        "batch": 4,
        "steps": 1,
    }
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    assert read_recipe(Path("mine.yaml")).data.corpus is None
    train.main(["mine.yaml"])
    whole = read_recipe(Path("runs/file/recipe.yaml"))
    assert whole.data.corpus == corpus_of(Path("data/mine"))
    # what the run wrote trains too, and so does a file from before the corpus could be left out
    recipe, _ = choose({}, smoke, "train", ["--recipe", "runs/file/recipe.yaml"])
    assert differences(whole, recipe) == []
    Path("mine.yaml").write_text(yaml.safe_dump(values | {"data": {"folder": "data/none"}}))
    with pytest.raises(
        SystemExit, match=r"data/none does not exist: run python -m recipes.prepare"
    ):
        train.main(["mine.yaml"])


CONTRADICTIONS = {
    "a flag": (
        ["--data.folder", "data/mine", "--data.corpus.tokenizer", "gpt2"],
        "tokenizer='gpt2'",
        "'train:280'",
    ),
    "a part of a source": (
        ["--data.folder=data/mine", "--data.corpus.train.column", "body"],
        "train.column='body'",
        "'text'",
    ),
}


@pytest.mark.parametrize(("flags", "given", "there"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_names_the_flag_and_both_values(here, flags, given, there):
    with pytest.raises(SystemExit) as caught:
        owt.main(["hdlm", "--smoke", *flags])
    message = str(caught.value)
    assert f"data.corpus.{given}: data/mine holds another corpus, prepared with {there}." in message
    assert "--data.folder data/mine" in message and "remove" not in message and len(message) < 250


def test_the_error_of_a_folder_with_other_text_names_the_flag_to_use_it(here):
    _, recipe = owt.recipes()["mdlm"]
    recipe = replace(recipe, data=replace(recipe.data, corpus=speeches(), folder=Path("data/mine")))
    with pytest.raises(
        SystemExit, match=r"data\.corpus\.tokenizer='train:1024': .*; 4 more values differ"
    ) as caught:
        run({"mdlm": ("", recipe)}, "owt", ["mdlm"])
    assert "--data.folder data/mine" in str(caught.value) and len(str(caught.value)) < 300


def test_a_folder_that_is_not_there_is_not_filled_with_other_text(here):
    with pytest.raises(SystemExit, match="data/mien does not exist"):
        owt.main(["hdlm", "--smoke", "--data.folder", "data/mien"])
    assert not Path("data/mien").exists()


def test_preparing_over_other_text_is_refused_without_advice_to_delete(here, capsys):
    with pytest.raises(SystemExit) as caught:
        prepare.main([*LOCAL[:3], "--tokenizer", "train:290", *LOCAL[5:], "--held-out", "7"])
    message = str(caught.value)
    assert message == (
        "error: data/mine contains other data, choose another folder: tokenizer was 'train:280', "
        "is 'train:290'; "
        "train.split was 'train[:-3]', is 'train[:-7]'; validation.split was 'train[-3:]', is "
        "'train[-7:]'"
    )
    with pytest.raises(SystemExit) as caught:
        prepare.main(["speeches", "--out", "data/mine"])
    assert "remove" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("corpus", "folder", "command"),
    [
        ("owt", "data/owt", "recipes.owt hdlm --data.folder data/owt"),
        ("lm1b", "data/lm1b", "recipes.lm1b hdlm --data.folder data/lm1b"),
        (
            "speeches",
            "a b/c d",
            "recipes.owt hdlm --smoke --data.folder 'a b/c d' --output.folder 'runs/c d'",
        ),
    ],
)
def test_the_printed_command_by_corpus(corpus, folder, command):
    assert f"python -m {command}\n" in prepare.advice(corpus, Path(folder)) + "\n"


def test_clusters_of_the_folder_end_with_the_command_that_trains_on_them(here, capsys):
    clusters.main(
        [
            "--data",
            "data/mine",
            "--clusters",
            "12",
            "3",
            "--out",
            "runs/clusters",
            "--restarts",
            "1",
        ]
    )
    module, words = printed(capsys, "train with them: ")
    assert words[0] == "hdlm-levels"
    assert module == "owt"
    recipe, _ = choose(owt.recipes(), smoke, "owt", words)
    assert recipe.data.corpus == corpus_of(Path("data/mine"))
    made = load_clusters(
        Path(recipe.process["clusters"]), open_prepared(recipe.data.folder).fingerprint
    )
    assert made.tree().levels == (282, 12, 3, 1)


def readme():
    """The commands of README's path, lines that go on as one."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"of clusters of your own tokens:\n\n```sh\n(.*?)```", text, re.S)[1]
    return [line.partition("  #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]


def test_the_readmes_path_is_short_and_its_flags_exist(here):
    first, *commands = readme()
    assert len(commands) + 1 <= 6 and first == "make install && source .venv/bin/activate"
    assert re.search(r"^install: ", (ROOT / "Makefile").read_text(), re.M)
    assert [words_of(line)[0] for line in commands] == ["prepare", "clusters", "owt", "generate"]
    recipe, _ = choose(owt.recipes(), smoke, "owt", words_of(commands[2])[1])  # data/mine is here
    assert recipe.data.folder == Path("data/mine") and recipe.data.corpus.tokenizer == "train:280"
    assert recipe.process["clusters"] == "runs/clusters/clusters" and recipe.output.folder == Path(
        "runs/mine"
    )


def test_the_readmes_path_ends_in_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(speech.text for speech in load_speeches(2015))
    Path("mytext.txt").write_text(text + "\n", encoding="utf-8")
    for line in readme()[1:]:
        module, words = words_of(line)
        COMMANDS[module].main([*words, *(["--steps", "20"] if module == "owt" else [])])
    output = capsys.readouterr().out
    assert "train on it: " in output and "train with them: " in output and "sample 1\n" in output
    assert open_saved("runs/mine").process.levels == (514, 64, 8, 1)
