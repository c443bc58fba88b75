"""The base of those who listen."""


class StatLoggerBase: ...
