"""Stage 2 of issue 43: the move of modules into packages, prepared and not made yet.

    cp -r .ci/move /elsewhere && git rm -rq .ci/move    # and extend-exclude in pyproject.toml; commit
    python /elsewhere/move.py CHECKOUT [--ruff PATH] && python /elsewhere/land.py CHECKOUT

Tried on 5076a04 but for slow tests and the wheel: lint, types, imports, pages and fast tests pass after ``make`` has
installed the new entry points. No commit is made. It stops where the checkout is not clean, and prints each place that it leaves to a reader.
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from patches import LEAVE_TEXT, RELOCATED, patch
from table import EXPORTS, NEW_PACKAGES, PATHS

NOTES = []


def note(text):
    NOTES.append(text)


def dotted(path):
    return path.replace("/", ".")


class Move:
    def __init__(self, root):
        self.root = root
        self.tracked = self.git("ls-files").split("\n")
        self.old_modules = {
            dotted(f[:-3]).removesuffix(".__init__") for f in self.tracked if f.endswith(".py")
        }
        self.files = self.file_moves()
        self.modules = {}
        for old, new in self.files.items():
            if old.endswith(".py"):
                a, b = (dotted(p[:-3]).removesuffix(".__init__") for p in (old, new))
                if a != b:
                    self.modules[a] = b

        self.bound = {}
        for file in self.tracked:
            if file.endswith("/__init__.py"):
                self.bound[dotted(file).removesuffix(".__init__.py")] = {
                    alias.asname or alias.name
                    for node in ast.parse((self.root / file).read_text()).body
                    if isinstance(node, ast.ImportFrom) and node.module
                    for alias in node.names
                    if f"{node.module}.{alias.name}" not in self.old_modules
                }

    def git(self, *args):
        done = subprocess.run(["git", *args], cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"git {' '.join(args)}: {done.stderr}")
        return done.stdout.rstrip("\n")

    def file_moves(self):
        """Every tracked file that moves: modules of the table, and what is in packages of the table."""
        moves = {}
        for file in self.tracked:
            for old, new in sorted(PATHS.items(), key=lambda pair: -len(pair[0])):
                if file == f"{old}.py":
                    moves[file] = f"{new}.py"
                elif file.startswith(f"{old}/"):
                    moves[file] = new + file[len(old):]
                else:
                    continue
                break
        for old in PATHS:
            if not any(f == f"{old}.py" or f.startswith(f"{old}/") for f in self.tracked):
                note(f"table: {old} is not in the checkout")
        return moves

    def run(self):
        if self.git("status", "--porcelain"):
            raise SystemExit("the checkout is not clean")
        for old, new in self.files.items():
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        # a module and a package of one name (attention.py -> attention/backends.py): moved before anything else asks
        for old, new in self.files.items():
            self.git("mv", old, new)
        for package, title in NEW_PACKAGES.items():
            init = self.root / package / "__init__.py"
            if init.exists():
                note(f"{init} exists already")
                continue
            text = f'"""{title}"""\n'
            if package in EXPORTS:
                module, names = EXPORTS[package]
                there = (self.root / package / f"{module}.py").read_text()
                names = [n for n in names if re.search(rf"^(class|def) {n}\b|^{n}\b.*=", there, re.M)]
                where = dotted(f"{package}/{module}")
                text += f"\nfrom {where} import {', '.join(names)}\n\n__all__ = {names!r}\n"
            init.write_text(text)
        self.git("add", "-A")
        files = self.git("ls-files").split("\n")
        for file in files:
            if file.endswith(".py"):
                self.imports(file)
        for file in files:
            if file.endswith((".md", ".py")):
                self.shown_imports(file)
        for file in files:
            if Path(file).suffix in (".py", ".md", ".toml", ".txt", ".yaml", ".cff") or Path(file).name in ("Makefile", "run"):
                self.text(file)
        patch(self, note)
        loose = {"ddlib": "__init__ __main__ presets typing vocabulary", "ddlib_models": "__init__ kv_cache",
                 "recipes": "__init__ quickstart owt lm1b train adapt prepare clusters generate evaluate harness plot"}
        for package, names in loose.items():
            for found in sorted((self.root / package).glob("*.py")):
                if found.stem not in names.split():
                    note(f"loose: {package}/{found.name} has no place in the table")
        before = set(PATHS) | {new for new in PATHS.values()}
        known = Path(__file__).with_name("known.txt")
        listed = set(known.read_text().split()) if known.exists() else set()
        for file in sorted(f for f in self.tracked if f.startswith(("ddlib", "recipes")) and f.endswith(".py")):
            if listed and file not in listed:
                note(f"new since the table was made: {file} -> {self.files.get(file, 'stays')}")
        # empty folders of old packages
        for folder in sorted({(self.root / old).parent for old in self.files}, key=lambda p: -len(p.parts)):
            caches = folder / "__pycache__"
            if folder.is_dir() and all(p == caches for p in folder.iterdir()):
                subprocess.run(["rm", "-rf", str(folder)], check=True)

    def place(self, module, name, inside):
        """Where ``from module import name`` is now: (module, name), or None if it stays.

        ``inside``: the importing file is a module of ddlib itself, which does not import from the top.
        """
        full = f"{module}.{name}"
        if (module, name) in RELOCATED:
            return RELOCATED[module, name], name
        public = {"ddlib": {"parts", "registry"}, "ddlib_models": {"attention", "sizes"}}
        if module in public and name in public[module] and not inside:
            return None
        if full == "ddlib_models.dit.DiT":
            return None  # the package has it
        if full in self.modules and name not in self.bound.get(module, ()):  # the module, not a function of its name
            parent, _, own = self.modules[full].rpartition(".")
            return parent, own
        if module in self.modules:
            return self.modules[module], name
        return None

    def imports(self, file):
        path = self.root / file
        source = path.read_text()
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return
        lines = source.splitlines(keepends=True)
        edits = []
        top = file.split("/")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.modules:
                        edits.append((node, alias.name, self.modules[alias.name]))
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            targets = []
            for alias in node.names:
                inside = top == "ddlib" if node.module == "ddlib" else top == "ddlib_models"
                found = self.place(node.module, alias.name, inside and file != "ddlib_models/__init__.py")
                targets.append((found or (node.module, alias.name), alias))
            if all(t == (node.module, a.name) for t, a in targets):
                continue
            same = {t[0] for t, _ in targets}
            if len(same) == 1 and all(t[1] == a.name for t, a in targets):
                edits.append((node, node.module, same.pop()))
            else:
                edits.append((node, None, targets))
        for node, old, new in sorted(edits, key=lambda e: -e[0].lineno):
            first, last = node.lineno - 1, node.end_lineno
            block = "".join(lines[first:last])
            if old is not None:
                block = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", new, block, count=1)
            else:
                indent = re.match(r"\s*", block)[0]
                comment = re.search(r"(  #.*)$", block.rstrip("\n"))
                groups = {}
                for (module, name), alias in new:
                    local = alias.asname or alias.name
                    groups.setdefault(module, []).append(name if name == local else f"{name} as {local}")
                made = [f"{indent}from {m} import {', '.join(sorted(names))}" for m, names in groups.items()]
                made[0] += comment[1] if comment else ""
                block = "\n".join(made) + "\n"
            lines[first:last] = block.splitlines(keepends=True)
        if edits:
            path.write_text("".join(lines))

    def shown_imports(self, file):
        """Submodules that blocks of code in prose import: ``from package import module``."""
        path = self.root / file
        source = path.read_text()

        def moved(match):
            before, module, names = match.groups()
            found = [(self.place(module, n, False) or (module, n), n) for n in re.split(r",\s*", names.strip())]
            if all(place == (module, n) or f"{module}.{n}" not in self.modules for place, n in found):
                return match[0]
            groups = {}
            for (parent, own), n in found:
                groups.setdefault(parent, []).append(own if own == n else f"{own} as {n}")
            return "\n".join(f"{before}from {m} import {', '.join(n)}" for m, n in groups.items())

        prefix = r"^( *(?:>>> |\.\.\. ))" if file.endswith(".py") else r"^((?: *>>> | *\.\.\. )?)"
        made = re.sub(prefix + r"from ((?:ddlib|recipes)[\w.]*) import ([\w, ]+)$", moved, source, flags=re.M)
        if made != source:
            path.write_text(made)

    def text(self, file):
        """Dotted names and paths in strings, comments and prose."""
        if file in LEAVE_TEXT:
            return
        path = self.root / file
        source = path.read_text()
        made = source
        for old, new in sorted(self.modules.items(), key=lambda pair: -len(pair[0])):
            if old in ("ddlib.parts", "ddlib.registry", "ddlib_models.attention", "ddlib_models.dit", "ddlib_models.sizes"):
                after = None  # a public name as before
            elif old in ("ddlib.bound", "ddlib.nelbo", "ddlib.likelihood"):
                after = r"(?=\.[\w*]|\"\])"  # the function has no attributes
            else:
                after = r"(?![\w])"
            if after:
                made = re.sub(rf"(?<![\w./-]){re.escape(old)}{after}(?!\.(?:md|png|json)\b)", f"\0{new}", made)
                escaped, made_of = old.replace(".", r"\."), new.replace(".", r"\.")  # in regular expressions of tests
                made = re.sub(rf"(?<![\w./-]){re.escape(escaped)}{after}", lambda _, e=made_of: f"\0{e}", made)
                if old.count(".") == 2 and old.startswith("ddlib.") and old not in ("ddlib.parts.keys", "ddlib.verification.verify"):
                    made = re.sub(rf"(?<![\w.])dd{re.escape(old[5:])}(?=\.\w)", f"\0dd{new[5:]}", made)
        for old, new in sorted(PATHS.items(), key=lambda pair: -len(pair[0])):
            module = (self.root / f"{new}.py").exists()
            after = r"(?=\.py\b)|(?![\w./])" if module else r"(?![\w.-])"
            made = re.sub(rf"(?<![\w./-]){re.escape(old)}(?:{after})", f"\0{new}", made)
        made = made.replace("\0", "")
        if made != source:
            path.write_text(made)


def wrap(root, width=120):
    """Lines of docstrings that the new paths made too long: words go to the next line of the paragraph."""
    for path in sorted(p for top in ("ddlib", "ddlib_models", "recipes", "tests", "benchmarks") for p in (root / top).rglob("*.py")):
        lines = path.read_text().split("\n")
        if all(len(line) <= width for line in lines):
            continue
        inside = set()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                inside |= set(range(node.lineno, node.end_lineno))  # 0-based: not the first line, not the one that closes
        n, changed = 0, False
        while n < len(lines):
            if len(lines[n]) > width and n in inside:
                cut = lines[n].rfind(" ", 0, width + 1)
                rest, lines[n] = lines[n][cut + 1 :], lines[n][:cut]
                indent = re.match(r" *", lines[n])[0]
                following = lines[n + 1]
                entry = re.match(r" *[*\w]+: ", lines[n])
                goes_on = following.strip() and not re.match(r' *(""")|.*: |.*::$| *(>>>|[-*] )', following)
                if goes_on and len(re.match(r" *", following)[0]) == len(indent) + 4 * bool(entry):
                    lines[n + 1] = re.match(r" *", following)[0] + rest + " " + following.strip()
                else:
                    lines.insert(n + 1, indent + " " * 4 * bool(entry) + rest)
                    inside = {i + (i > n) for i in inside} | {n + 1}
                changed = True
            n += 1
        if changed:
            path.write_text("\n".join(lines))
            note(f"wrapped: {path.relative_to(root)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ruff", default=".venv/bin/ruff")
    options = parser.parse_args()
    root = options.checkout.resolve()
    move = Move(root)
    move.run()
    for args in (["check", "--fix", "-q", "--select", "I", "."], ["format", "-q", "."]):
        subprocess.run([options.ruff, *args], cwd=root, check=False)
    wrap(root)
    move.git("add", "-A")
    print("\n".join(NOTES))
    print(f"moved {len(move.files)} files; {move.git('diff', '--cached', '--shortstat', '-M').strip()}")
