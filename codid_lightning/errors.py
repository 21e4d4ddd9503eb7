"""Errors that a user can act on. Commands print their message without a traceback."""


class RunError(RuntimeError):
    """A run cannot start or continue as configured."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or continued. The message names the reason."""


class DivergenceError(RuntimeError):
    """A training loss is no longer finite."""
