"""The errors and warnings of fedpd. This file imports nothing, so that the command line starts quickly."""


class TheoryWarning(UserWarning):
    """Warns that no theorem covers this run. It may still converge, or it may diverge."""


class FedpdError(ValueError):
    """A mistake in an argument or a file, told as a sentence: the value, the rule, the remedy."""


class UnexpectedError(FedpdError):
    """An error that fedpd did not foresee, as a sentence. An argument may be wrong, or fedpd itself."""


class MissingExtraError(FedpdError, ImportError):
    """An optional package is not installed. The sentence holds the line that installs it."""
