"""Distance back to the last use of each word of a text: where a local window is not enough.

B batch   N tokens
"""

import torch
from torch import Tensor

_PRIME = 1_000_003


def distance_to_last(tokens: Tensor, length: int) -> Tensor:
    """Distance from each n-gram to its last occurrence in the same sequence.

    n-grams are compared by a hash of 64 bits.

    Args:
        tokens: (B, N), at least 0.
        length: Number of tokens of an n-gram.

    Returns:
        (B, N): for the n-gram that ends at each token, how many tokens before its last occurrence
        ended; 0 if there is none, as for the first tokens.
    """
    batch, number = tokens.shape
    found = tokens.new_zeros(batch, number)
    if number <= length:
        return found
    powers = tokens.new_ones(length)
    for index in range(1, length):
        powers[index] = powers[index - 1] * _PRIME  # modulo 2^64
    keys = (tokens.unfold(1, length, 1) * powers).sum(-1)  # (B, N - length + 1)
    ordered, order = keys.sort(dim=1, stable=True)
    gaps = torch.where(ordered.diff(dim=1) == 0, order.diff(dim=1), 0)
    found[:, length - 1 :].scatter_(1, order[:, 1:], gaps)
    return found
