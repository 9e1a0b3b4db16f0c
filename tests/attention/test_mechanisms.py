"""The list that type checkers and editors read is that of the files in the folder."""

import ast
import inspect

from clusterformer import attention
from clusterformer.attention import mechanisms


def test_the_static_list_is_that_of_the_folder() -> None:
    tree = ast.parse(inspect.getsource(attention))
    static = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    on_disk = {(cls.__module__, cls.__name__) for cls in mechanisms()}
    assert static == on_disk, "list it in clusterformer/attention/__init__.py, in both places"
    assert {name for _, name in on_disk} <= set(attention.__all__)


def test_every_name_of_all_is_there() -> None:
    for name in attention.__all__:
        assert getattr(attention, name) is not None
