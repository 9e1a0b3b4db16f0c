"""Attention mechanisms under one contract.

A new file in this folder with a subclass of `AttentionCore` is a new mechanism.

Example:
    >>> from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
"""

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from clusterformer.attention.base import (
    Attended,
    AttentionCore,
    Cache,
    Grouping,
    Memory,
    MultiHeadAttention,
)
from clusterformer.attention.neural import PAPER_FORM
from clusterformer.attention.pretrained import approximate


def mechanisms() -> list[type[AttentionCore]]:
    """Every mechanism that has a file in this folder."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, AttentionCore)
        and value.__module__ == module.__name__
        and not isabstract(value)
    ]


_names = {kind.__name__: kind for kind in mechanisms()}
globals().update(_names)

__all__ = [
    "PAPER_FORM",
    "Attended",
    "AttentionCore",
    "Cache",
    "Grouping",
    "Memory",
    "MultiHeadAttention",
    "approximate",
    "mechanisms",
    *_names,
]


def __getattr__(name: str) -> type[AttentionCore]:
    """Only for names that are not here: say which mechanisms are."""
    raise AttributeError(f"no attention mechanism {name!r}; there are {', '.join(_names)}")
