"""Attention mechanisms under one contract. A new file here with an `AttentionCore` is a new one.

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
"""

from importlib import import_module
from pkgutil import iter_modules

from clusterformer.attention.base import (
    Attended,
    AttentionCore,
    Grouping,
    MultiHeadAttention,
)
from clusterformer.attention.neural import PAPER_FORM

__all__ = ["PAPER_FORM", "Attended", "AttentionCore", "Grouping", "MultiHeadAttention"]


def _import_mechanisms() -> None:
    for found in iter_modules(__path__):
        module = import_module(f"{__name__}.{found.name}")
        for name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, AttentionCore)
                and value.__module__ == module.__name__
            ):
                globals()[name] = value
                if name not in __all__:
                    __all__.append(name)


_import_mechanisms()


def __getattr__(name: str) -> type[AttentionCore]:
    """Only for names that are not here: say which mechanisms are."""
    raise AttributeError(f"no attention mechanism {name!r}; there are {', '.join(__all__)}")
