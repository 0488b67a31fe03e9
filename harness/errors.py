"""The error of everything a user can get wrong."""


class BadInput(ValueError):
    """Names the value that cannot be used and says what there is; becomes exit code 2."""
