"""The layers hold: imports point down only, and third-party weight stays at the edge."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from clusterformer import attention
from clusterformer.task import Task

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}

LAYERS = {
    "clusterformer.errors": 0,
    "clusterformer.whole_files": 0,
    "clusterformer.wording": 0,
    "clusterformer.devices": 0.5,
    "clusterformer.structure": 0.5,
    "clusterformer.backward_pass": 0.5,
    "clusterformer.seeded": 0.5,
    "clusterformer.kernels": 1,
    "clusterformer.clustering": 2,
    "clusterformer.masks": 2,
    "clusterformer.attention": 3,
    "clusterformer.sequence_parallel": 3.3,
    "clusterformer.losses": 3.3,
    "clusterformer.huggingface": 3.5,
    "clusterformer.models": 4,
    "clusterformer.plots": 4,
    "clusterformer.tasks": 6,
    "clusterformer.configs": 6,
    "clusterformer.input_lines": 6.5,
    "clusterformer.api": 7,
    "clusterformer.bench": 7,
    "clusterformer.compare": 7,
    "clusterformer.export": 7,
    "clusterformer.cli": 8,
    "clusterformer.__main__": 9,
}
TRAINER = 5  # data, module, task, training
ONLY_AT_THE_EDGE = {"transformers", "datasets", "sacrebleu", "sacremoses", "tokenizers", "gensim"}
# their classes are scikit-learn's, so `clusterformer.clustering` imports them late
ESTIMATOR = "clusterformer.clustering.estimator"
FITTED = "clusterformer.clustering.fitted"
ON_ARRAYS = {
    ESTIMATOR,
    FITTED,
    "clusterformer.clustering.arrays",
    "clusterformer.clustering.evaluation",
    "clusterformer.clustering.saving",
    "clusterformer.clustering.topics",
    "clusterformer.clustering.weights",
    "clusterformer.clustering.measures",
}
# they record a model of transformers, and import it in a function
PRETRAINED = {
    "clusterformer.export.conversion",
    "clusterformer.export.modeling",
    "clusterformer.export.tokenizer_files",
    "clusterformer.models.pretrained",
    "clusterformer.models.pretrained_model",
}
STANDARD = set(sys.stdlib_module_names) | {"__future__"}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(modules())


@cache
def imports(path: Path, *, late: bool = True) -> list[str]:
    """Dotted names that a file imports; without `late` only those that run when it is imported."""
    names: list[str] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.append(whole if whole in MODULES else str(node.module))
        elif not late and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return names


def room(module: str) -> str:
    """The name under which LAYERS lists a module: `clusterformer.x`."""
    return ".".join(module.split(".")[:2])


def level(module: str) -> int:
    return LAYERS.get(room(module), TRAINER)


def own_imports(module: str) -> Iterator[str]:
    return (name for name in imports(MODULES[module]) if name.split(".")[0] == "clusterformer")


def third_party(module: str, *, late: bool = True) -> set[str]:
    tops = {name.split(".")[0] for name in imports(MODULES[module], late=late)}
    return tops - STANDARD - {"clusterformer"}


def test_imports_point_down() -> None:
    upward = []
    for module in set(MODULES) - {"clusterformer"}:
        for name in own_imports(module):
            beside = room(name) == room(module) or level(name) == level(module) == TRAINER
            if name != "clusterformer" and not beside and level(name) >= level(module):
                upward.append(f"{module} imports {name}")
    assert not upward


def test_bare_names_of_our_folders_are_never_imported() -> None:
    assert not {
        module: found
        for module in MODULES
        if (found := third_party(module) & {"tasks", "kernels", "configs"})
    }


def test_third_party_weight_stays_at_the_edge() -> None:
    edge = {"clusterformer.data", "clusterformer.huggingface", "clusterformer.tasks"}
    trainer = {"lightning", "pytorch_lightning", "jsonargparse", "torchmetrics"}
    heavy = {}
    for module in MODULES:
        found = third_party(module)
        allowed = found if level(module) >= TRAINER else found - trainer
        if room(module) not in edge and module not in PRETRAINED:
            allowed = allowed - ONLY_AT_THE_EDGE
        heavy[module] = found - allowed
        if level(module) <= LAYERS["clusterformer.attention"] and module not in ON_ARRAYS:
            at_once = third_party(module, late=False) - {"torch"}
            heavy[module] |= set() if module.endswith("_triton") else at_once
    assert not {module: found for module, found in heavy.items() if found}


def test_extras_are_imported_late() -> None:
    core = {"torch", "lightning", "torchmetrics", "jsonargparse", "numpy", "yaml", "filelock"}
    early = {}
    for module in MODULES:
        early[module] = third_party(module, late=False) - core
        if module in (ESTIMATOR, FITTED):
            early[module] -= {"sklearn"}
        if module.endswith("_triton"):
            early[module] -= {"triton"}
    assert not {module: found for module, found in early.items() if found}


def test_every_import_is_a_declared_dependency() -> None:
    provides = {"pyyaml": "yaml", "scikit-learn": "sklearn", "faiss-cpu": "faiss", "pillow": "PIL"}
    provides["umap-learn"] = "umap"
    stated = list(PROJECT["project"]["dependencies"])
    for extra in PROJECT["project"]["optional-dependencies"].values():
        stated += extra
    names = {re.split(r"[\[<>=;~! ]", line)[0].lower() for line in stated}
    declared = {provides.get(name, name) for name in names}
    imported = set().union(*(third_party(module) for module in MODULES))
    assert imported <= declared


def test_every_extra_that_an_error_names_is_declared() -> None:
    named = {}
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'missing\([^)]*?"(\w+)"\)|clusterformer\[(\w+)\]\'', text)
        named[module] = {extra for pair in found for extra in pair if extra}
    assert len(set().union(*named.values())) > 5
    declared = set(PROJECT["project"]["optional-dependencies"])
    assert not {module: extras - declared for module, extras in named.items() if extras - declared}


def test_no_file_imports_a_task_of_another() -> None:
    """What tasks share stands in files of its own, with no Task in them that one could choose."""
    prefix = "clusterformer.tasks."
    folder = {name: importlib.import_module(name) for name in MODULES if name.startswith(prefix)}
    tasks = {
        name
        for name, module in folder.items()
        for found in vars(module).values()
        if inspect.isclass(found) and found.__module__ == name
        if issubclass(found, Task) and not found.__subclasses__()
    }
    assert len(tasks) > 1
    for module in folder:
        assert not set(own_imports(module)) & tasks - {module}, module


def test_one_mechanism_never_imports_another() -> None:
    mechanisms = {kind.__module__ for kind in attention.mechanisms()}
    for module in MODULES:
        if module.startswith("clusterformer.attention."):
            assert not set(own_imports(module)) & mechanisms - {module}, module


def test_packages_are_those_on_disk() -> None:
    on_disk = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(SETUPTOOLS["packages"]) == on_disk
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            inside = path.relative_to(folder).parent.parts
            assert ".".join((package, *inside)) in on_disk, f"{path} lies in no package"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_top_level_holds_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    seen = {Path(line).parts[0] for line in listed.stdout.splitlines()}
    assert {name for name in seen if not name.startswith(".")} <= {
        *("README.md", "LICENSE", "pyproject.toml", "constraints.txt"),
        *(
            "clusterformer",
            "tasks",
            "kernels",
            "configs",
            "tests",
            "docs",
            "mkdocs.yml",
            "CITATION.cff",
        ),
    }


def test_the_method_needs_torch_alone(tmp_path: Path) -> None:
    modules = "clusterformer, clusterformer.attention, clusterformer.clustering"
    heavy = "lightning triton transformers torchmetrics jsonargparse tokenizers gensim matplotlib"
    heavy += " sklearn"
    program = f"import sys, {modules}; print(*set({heavy.split()}) & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
