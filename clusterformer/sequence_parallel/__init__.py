"""One long sequence over several processes: each holds a share of the tokens."""

from clusterformer.sequence_parallel.parallelize import parallelize, sum_gradients
from clusterformer.sequence_parallel.sequence_group import SequenceGroup

__all__ = ["SequenceGroup", "parallelize", "sum_gradients"]
