"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Let SIGINT interrupt, for this process and those it starts.

    A shell that runs a job in the background lets it ignore SIGINT, and what tests a Ctrl-C would then wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
