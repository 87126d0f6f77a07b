"""The one exception of the emulator."""


class PTXError(Exception):
    """PTX that is refused, or a fault that a running kernel made; the message quotes the instruction."""
