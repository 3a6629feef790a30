"""What the table does not say: the redirection of former paths, layers, a few places that depend on the folder."""

import re

LEAVE_TEXT = {"CHANGELOG.md"}

RELOCATED = {("recipes.console", "Drafts"): "recipes.generation.drafts"}
"""Names that a package no longer re-exports: (package, name) -> module."""

MOVED = '''"""Former module paths of {package}: importing one gives the module at its present path, for one release."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {{
{table}
}}
"""Former path: present path."""


class Redirection(MetaPathFinder, Loader):
    """Finder of the modules in ``MOVED``: it imports the present one and warns."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        warnings.warn(
            f"{{name}} is {{MOVED[name]}} now; the former path goes with the next release", DeprecationWarning, stacklevel=2
        )
        sys.modules[name] = import_module(MOVED[name])


def install() -> None:
    """Let the former paths be imported."""
    sys.meta_path.insert(0, Redirection())
'''
FUNCTIONS = '''    # functions of ddlib have these names, which the import of a module would replace
    for name in ("objective.bound", "objective.nelbo", "samplers.likelihood"):
        sys.modules[f"ddlib.{name.partition('.')[2]}"] = import_module(f"ddlib.{name}")
'''

LAYERS = """layers = [
  "__main__",
  "integrations | testing",
  "plugins",
  "plot | verification",
  "presets",
  "kernels",
  "guidance | samplers | objective",
  "weightings",
  "parameterization | vocabulary",
  "processes",
  "schedules | hierarchies",
  "paces",
  "times",
  "utils",
  "typing",
]
exhaustive = true # a new package must say where it stands
"""
RECIPE_LAYERS = """layers = [
  "adapt | evaluate | harness | lm1b | train | quickstart | prepare | clusters | plot",
  "generate | evaluation | owt",
  "generation",
  "papers | comparison",
  "engine | visualization",
  "model_io",
  "logging",
  "metrics",
  "embeddings",
  "config",
  "data",
  "console",
]
exhaustive = true # a new experiment or package must say where it stands
"""

TEST = '''"""Former module paths: they give the module at its present path, with a warning, and hide nothing."""

import pickle
import sys
from importlib import import_module

import pytest
import torch

import ddlib as dd
from ddlib.utils import moved
from ddlib_models.io import moved as moved_models


@pytest.mark.parametrize(("old", "new"), [*moved.MOVED.items(), *moved_models.MOVED.items()])
def test_a_former_path_gives_the_module_with_a_warning(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"^{old} is {new} now"):
        assert import_module(old) is import_module(new)


def test_a_former_path_is_an_attribute_too(monkeypatch):
    monkeypatch.delitem(sys.modules, "ddlib.noise", raising=False)
    monkeypatch.delattr(dd, "noise", raising=False)
    with pytest.warns(DeprecationWarning, match="ddlib.utils.random"):
        assert dd.noise.KeyedGenerator is dd.KeyedGenerator
    monkeypatch.delattr(dd, "noise")


@pytest.mark.parametrize("name", ["bound", "nelbo", "likelihood"])
def test_functions_are_not_hidden_by_modules_of_their_name(name):
    module = import_module(f"ddlib.{name}")
    assert getattr(module, name) is getattr(dd, name) and callable(getattr(dd, name))


def test_a_pickle_of_a_class_at_a_former_path_loads():
    old = pickle.dumps(dd.Bound(*[torch.zeros(1, 1)] * 3), 0).replace(b"ddlib.objective.bound", b"ddlib.bound")
    assert isinstance(pickle.loads(old), dd.Bound)
'''


def patch(move, note):
    root = move.root

    def edit(file, old, new, count=1):
        path = root / file
        text = path.read_text() if path.exists() else ""
        if old not in text:
            note(f"patch: {file} has no {old[:60]!r}")
            return
        path.write_text(text.replace(old, new, count))

    def edit_re(file, pattern, new):
        path = root / file
        text = path.read_text()
        made, found = re.subn(pattern, new, text, count=1, flags=re.S)
        if not found:
            note(f"patch: {file} has nothing like {pattern[:60]!r}")
        path.write_text(made)

    # former paths
    quiet = {"ddlib.bound", "ddlib.nelbo", "ddlib.likelihood", "ddlib.parts.keys", "ddlib.plot.bands"}  # names of functions
    hidden = re.compile(r"ddlib\.(kernels|verification)\.(?!oracle$)|ddlib\.(samplers\.(loop|course))$")
    ours = {o: n for o, n in move.modules.items() if o.startswith("ddlib.") and o not in quiet and not hidden.match(o)}
    from table import PATHS

    for old, new in PATHS.items():  # renamed on main already: 0.1.0 had the former path all the same
        name = old.replace("/", ".")
        gone = not any((root / f"{old}{end}").exists() for end in (".py", "/__init__.py"))
        if old.startswith("ddlib/") and name not in move.modules and gone and (root / f"{new}.py").exists():
            if name not in quiet and not hidden.match(name):
                ours[name] = new.replace("/", ".")
    ours["recipes.engine.abilities"] = "recipes.engine.model_protocols"
    skip = {"ddlib_models.attention", "ddlib_models.dit"}  # packages now, with the same names
    models = {o: n for o, n in move.modules.items() if o.startswith("ddlib_models.") and o not in skip}
    for package, place, table in (("ddlib", "ddlib/utils", ours), ("ddlib_models", "ddlib_models/io", models)):
        rows = "\n".join(f'    "{old}": "{new}",' for old, new in sorted(table.items()))
        (root / place / "moved.py").write_text(
            MOVED.format(package=package, table=rows) + (FUNCTIONS if package == "ddlib" else "")
        )
    edit("ddlib/__init__.py", "import os\nfrom typing", "import os\nfrom importlib import import_module\nfrom typing")
    edit("ddlib/__init__.py", "from ddlib.utils.random import", "from ddlib.utils import moved\nfrom ddlib.utils.random import")
    edit("ddlib/__init__.py", "__version__ =", 'moved.install()\n\n__version__ =')
    edit("ddlib/__init__.py", '        from ddlib.plugins.suggestions import missing\n',
         '        if f"ddlib.{name}" in moved.MOVED:\n            return import_module(f"ddlib.{name}")\n'
         '        from ddlib.plugins.suggestions import missing\n')
    edit("ddlib_models/__init__.py", "from ddlib_models import attention, sizes\n", "from ddlib_models import attention\n")
    edit("ddlib_models/__init__.py", "from ddlib_models.dit.heads", "from ddlib_models.dit import presets as sizes\nfrom ddlib_models.dit.heads")
    edit("ddlib_models/__init__.py", "from ddlib_models.io.pretrained",
         "from ddlib_models.io import moved\nfrom ddlib_models.io.pretrained")
    edit("ddlib_models/__init__.py", "\n__all__", "\nmoved.install()\n\n__all__")
    (root / "tests/ddlib/test_moved.py").write_text(TEST)

    # places that count folders or build module names
    edit("ddlib/verification/framework/blame.py", "parents[1]", "parents[2]")
    edit("tests/faults/faults_levels.py", 'for name in ("divergence", "follows"))', 'for name in ("hierarchical_kl", "follows"))')
    edit("tests/faults/faults_objective.py", 'sys.modules[f"ddlib.{name}"] for name in ("nelbo", "denoiser", "bound"))',
         'sys.modules[f"ddlib.{name}"] for name in ("objective.nelbo", "parameterization.logits", "objective.bound"))')
    edit("tests/recipes/test_film_page.py", '"recipes" / "film"', '"recipes" / "visualization"')

    edit("tests/packaging/test_recipes_command.py", '"film/page.html"', '"visualization/page.html"')

    edit("tests/models/test_attention.py", "from ddlib_models import attention\n", "from ddlib_models.attention import backends as attention\n")
    edit("tests/models/test_pretrained.py", "from ddlib_models.dit import DiT\\n", "from ddlib_models.dit.network import DiT\\n")

    # Drafts
    for line in ("from recipes.generation.drafts import Drafts\n", '    "Drafts",\n'):
        edit("recipes/console/__init__.py", line, "")

    # import-linter
    edit_re("pyproject.toml", r'layers = \[\n  "__main__".*?exhaustive = true[^\n]*\n', LAYERS)
    edit_re("pyproject.toml", r'layers = \[\n  "adapt \|.*?exhaustive = true[^\n]*\n', RECIPE_LAYERS)
    edit("pyproject.toml", '  "ddlib_models.hub.** -> ddlib",\n',
         '  "ddlib_models.hub.** -> ddlib",\n  "ddlib_models.diagnostics.** -> ddlib.**", # nor is what tests one for its noise\n')

    # lines that the new paths make too long
    edit("ddlib/typing.py", "has a row for every state of a tree but its root, see ``ddlib.parameterization.tree_softmax``.",
         "has a row for every state of a tree but its root.\n\n    See ``ddlib.parameterization.tree_softmax``.")
    edit("ddlib_models/hf/auto.py", '"""DiT in transformers\' registry: after ``import ddlib_models.hf.auto``, ``AutoModel.from_pretrained`` loads what it saved.\n',
         '"""DiT in transformers\' registry.\n\nAfter ``import ddlib_models.hf.auto``, ``AutoModel.from_pretrained`` loads what it saved.\n')
    edit("tests/ddlib/test_diffusers.py", "``ddlib.integrations.diffusers``: a sampler", "``SamplerScheduler``: a sampler")
    edit("tests/ddlib/test_diffusers_pipeline.py", "draws with ``ddlib.integrations.diffusers`` what", "draws by ``SamplerScheduler`` what")

    # prose
    for name in ("parts", "registry.find", "registry.trusting"):
        new = {"parts": "plugins.config"}.get(name, f"plugins.{name}")
        edit("docs/reference/ddlib.md", f":: ddlib.{name}\n", f":: ddlib.{new}\n")
    edit("CONTRIBUTING.md", "`registry`, `parts`, `testing` and `diffusers` may import any room and no room imports them. ",
         "`plugins`, `testing`, `verification` and `integrations` may import any package and no package imports them. ")
    edit("CONTRIBUTING.md", "    experiments and commands > papers | comparison > engine | film > saved > watch > measure > lexicon > config > data > console",
         "    commands > evaluation > generation > papers | comparison > engine | visualization > model_io > logging > metrics\n"
         "    > embeddings > config > data > console")
    for old, new in {
        "| `film` |": "| `evaluation`, `generation` | exact likelihoods and scores of samples; sampling options, prompts, drafts |\n| `visualization` |",
        "| `saved` |": "| `model_io` |", "| `watch`, `measure` |": "| `logging`, `metrics` |", "| `lexicon` |": "| `embeddings` |",
    }.items():
        edit("CONTRIBUTING.md", old, new)
    edit("CONTRIBUTING.md", "recipes > samplers | nelbo > processes > schedules | hierarchies > typing",
         "recipes > samplers | guidance | objective > processes > schedules | hierarchies | times > utils > typing")
    edit("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n### Moved\n\n"
         "- Modules have new places: `ddlib`, `ddlib_models` and `recipes` are packages of one noun each. Names under `dd.`, entry points, YAML\n"
         "  keys and flags are as before. Former module paths, such as `ddlib.noise` and `ddlib_models.auto`, import the module at its new place\n"
         "  with a `DeprecationWarning`, for one release.\n")
