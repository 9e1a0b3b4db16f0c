"""Errors that a user can make, and the check of options that most often finds them."""


class InputError(ValueError):
    """Bad input or option, in one line: where, what was found, what is allowed.

    The command line prints the message alone and exits with code 2.
    """


def require_at_least(minimum: float, **options: float | None) -> None:
    """Refuse options below a minimum; None, an option left out, passes.

    Example:
        >>> require_at_least(1, num_clusters=num_clusters, chunk_size=chunk_size)

    Raises:
        InputError: for the first option that is below the minimum, or NaN.
    """
    for name, value in options.items():
        if value is not None and not value >= minimum:
            raise InputError(f"{name} must be at least {minimum}, got {value}")
