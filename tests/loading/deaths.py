"""How a process that reads or works dies, once."""

import os
import signal


def kill_once(path):
    def deed():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return deed
