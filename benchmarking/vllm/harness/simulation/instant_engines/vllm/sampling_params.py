"""How answers are sent; here all at once in any case."""

from enum import Enum


class RequestOutputKind(Enum):
    FINAL_ONLY = 2
