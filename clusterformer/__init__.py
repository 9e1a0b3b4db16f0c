"""Transformers whose attention learns to cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterformer.api import TrainedModel, load
    from clusterformer.module import ClusterFormer

__version__ = "0.1.0"
__all__ = ["ClusterFormer", "TrainedModel", "__version__", "load"]

_LATE = {"ClusterFormer": "module", "TrainedModel": "api", "load": "api"}


def __getattr__(name: str) -> Any:
    # late, so that `import clusterformer.attention` needs torch alone
    if name in _LATE:
        return getattr(import_module(f"clusterformer.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_LATE]
