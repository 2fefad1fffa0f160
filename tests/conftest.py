"""What holds for every test."""

import signal

import hypothesis

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")


def pytest_configure() -> None:
    """Let SIGINT and SIGHUP interrupt, for this process and those it starts.

    A shell that runs a job in the background lets it ignore SIGINT, `nohup` lets it ignore SIGHUP, and what tests a
    Ctrl-C or the end of a terminal would then wait for ever.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
