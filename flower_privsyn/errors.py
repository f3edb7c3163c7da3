"""The errors a user can meet. Every message is one sentence that names what is wrong."""

from __future__ import annotations


class PrivsynError(Exception):
    """Base class: the message is a sentence for the person who typed the command."""


class ConfigError(PrivsynError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(PrivsynError, ValueError):
    """A data file or a record in it cannot be used; the message never quotes private text."""


class ModelError(PrivsynError):
    """A model name or path cannot be resolved or loaded."""


class MissingExtraError(PrivsynError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class BudgetExceededError(PrivsynError):
    """A release would cost more than the privacy budget has left."""


class NotAllowedError(PrivsynError):
    """The owner of a node does not allow what a server asks of it."""


class LedgerError(PrivsynError):
    """The privacy ledger is damaged, locked by another process, or used out of order."""


class RunDirectoryError(PrivsynError):
    """The run directory cannot be created, opened or locked."""


class FederationError(PrivsynError):
    """The federation does not hold the nodes or users that were planned."""


class GenerationError(PrivsynError):
    """A text generator failed or its server refused the request."""


class TrainingError(PrivsynError):
    """Training a model failed or gave numbers that are no use."""


class StoppedError(PrivsynError):
    """The owner of a run asked that it end between two rounds, where nothing of it is lost."""


class ProtocolError(PrivsynError):
    """A message of secure aggregation is not what an honest party sends, or too few came."""
