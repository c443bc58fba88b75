"""Never raised here."""


class EngineDeadError(Exception): ...
