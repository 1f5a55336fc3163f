"""The one family of exceptions: each message says what is wrong, where, and how to mend it."""


class CounterpointError(Exception):
    """Base of every error that a user's input or files can cause; the command line prints it without a traceback."""


class RecipeError(CounterpointError):
    """A recipe is malformed: an unknown key, a value out of range, a name that refers to nothing."""


class LoadingError(CounterpointError):
    """A model, tokenizer or file cannot be found, read or trusted."""


class AdapterError(CounterpointError):
    """An adapter is not one, belongs to another base, or uses a feature that cannot be reproduced exactly."""


class VocabularyError(CounterpointError):
    """Two models of one recipe give the same token id different meanings."""


class ContextError(CounterpointError):
    """A context or prompt does not fit the chat template, the window, or the other rows."""


class NumericsError(CounterpointError):
    """A model returned NaN, or a rule has no defined answer for the weights given."""


class StudyError(CounterpointError):
    """A study's cell failed, its folder holds something else, or what it needs is not installed."""


def one_line(error: object) -> str:
    """The first line of an error (or message) that says something, else its type."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)
