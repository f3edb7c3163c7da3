"""How the answers of a round become one sum."""

from flower_privsyn.private_path.aggregation.aggregation import (
    BESIDE,
    Aggregation,
    Collected,
    Expected,
    words_of,
)
from flower_privsyn.private_path.aggregation.central import Central
from flower_privsyn.private_path.aggregation.secure import Secure

__all__ = ["BESIDE", "Aggregation", "Central", "Collected", "Expected", "Secure", "words_of"]
