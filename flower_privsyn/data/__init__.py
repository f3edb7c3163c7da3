"""From a node's files to its users, and from their documents to samples.

May import `models` and `privacy`.
"""

from flower_privsyn.data.chunking import Chunking, Samples
from flower_privsyn.data.load import load_configured, load_users
from flower_privsyn.data.public_corpus import public_texts
from flower_privsyn.data.users import Users, parse_min_date

__all__ = [
    "Chunking",
    "Samples",
    "Users",
    "load_configured",
    "load_users",
    "parse_min_date",
    "public_texts",
]
