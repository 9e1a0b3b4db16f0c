"""What a user can get wrong."""


class InputError(ValueError):
    """Bad input or option, in one line: where, what was found, what is allowed.

    The command line prints the message alone and exits with code 2.
    """
