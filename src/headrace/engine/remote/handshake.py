"""How a trainer and an agent find out that both know the secret of the run. Pure: bytes in, bytes out.

    trainer  -> agent    MAGIC, 32 random bytes
    agent    -> trainer  MAGIC, 32 random bytes, proof of the agent
    trainer  -> agent    proof of the trainer

A proof is an HMAC with the secret over the role and both challenges, so one cannot be used for the other role, nor
again, and who listens learns nothing that helps. Invariants: each step has a fixed length, so a stranger can send no
more than that; nothing else is looked at, let alone unpickled, before the proof is; proofs are compared in constant
time. From the secret and both challenges follow the keys of this connection, see `seal.py`. What is *not* promised:
what follows is not encrypted, see docs/how-to/remote-workers.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
import socket
import stat
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.version import __version__

from .wire import Introduction, WireError

SECRET_VARIABLE = "HEADRACE_WORKER_SECRET"  # noqa: S105 - the name of the variable
"""The environment variable that has the secret."""

_MAGIC = b"headrace-worker-4\n"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_MIN_SECRET_CHARS = 16

GREETING_BYTES = len(_MAGIC) + _NONCE_BYTES
"""Bytes of the trainer's first step."""

RESPONSE_BYTES = GREETING_BYTES + _PROOF_BYTES
"""Bytes of the agent's step."""

PROOF_BYTES = _PROOF_BYTES
"""Bytes of the trainer's last step."""

ANY_SEAT = -1
"""The number that an agent says which was started for no certain worker."""

MAX_INTRODUCTION_BYTES = 16 << 10
"""Bytes of the introduction that follows."""


def make_greeting() -> bytes:
    """Return the trainer's first step."""
    return _MAGIC + secrets.token_bytes(_NONCE_BYTES)


def respond(secret: bytes, greeting: bytes) -> bytes:
    """Return the agent's step.

    Raises:
        WireError: It was no trainer of this version that greeted.
    """
    _check_magic(greeting, "what listens there")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _MAGIC + nonce + _proof(secret, b"agent", _nonce(greeting), nonce)


def answer(secret: bytes, greeting: bytes, response: bytes) -> bytes:
    """Check the agent's step, and return the trainer's last one.

    Raises:
        WireError: It does not know the secret.
    """
    _check_magic(response, "what has connected")
    nonces = _nonce(greeting), _nonce(response)
    if not hmac.compare_digest(response[GREETING_BYTES:], _proof(secret, b"agent", *nonces)):
        raise WireError("what has connected does not know the secret of this run")
    return _proof(secret, b"trainer", *nonces)


def check_trainer(secret: bytes, greeting: bytes, response: bytes, proof: bytes) -> None:
    """Check the trainer's last step.

    Raises:
        WireError: It does not know the secret.
    """
    if not hmac.compare_digest(proof, _proof(secret, b"trainer", _nonce(greeting), _nonce(response))):
        raise WireError("what listens there does not know the secret of this run")


class Keys(NamedTuple):
    """What the two directions of a connection are sealed with.

    Attributes:
        of_agent: For what the agent says.
        of_trainer: For what the trainer says.
    """

    of_agent: bytes
    of_trainer: bytes


def derive_keys(secret: bytes, greeting: bytes, response: bytes) -> Keys:
    """Return the keys of a connection: others for each, since both sides have drawn a challenge."""
    nonces = _nonce(greeting), _nonce(response)
    return Keys(_proof(secret, b"key of the agent", *nonces), _proof(secret, b"key of the trainer", *nonces))


def _proof(secret: bytes, role: bytes, nonce_of_trainer: bytes, nonce_of_agent: bytes) -> bytes:
    return hmac.new(secret, _MAGIC + role + b"\0" + nonce_of_trainer + nonce_of_agent, hashlib.sha256).digest()


def _nonce(step: bytes) -> bytes:
    return step[len(_MAGIC) : GREETING_BYTES]


def _check_magic(step: bytes, who: str) -> None:
    if step[: len(_MAGIC)] != _MAGIC:
        raise WireError(f"{who} does not speak the protocol of Headrace {__version__}: it began with {step[:24]!r}")


# --- the secret ---


def choose_secret(secret: str | bytes | None, *, is_shared: bool) -> bytes:
    """Return the secret of a trainer: what was given, else that of the environment if it is shared, else a new one.

    Args:
        secret: What the user gave.
        is_shared: Whether somebody else starts workers that have to know it.

    Raises:
        ConfigError: There is none, or it is short.
    """
    if secret is not None:
        return check_secret(secret)
    if not is_shared:
        return secrets.token_hex(32).encode()
    found = os.environ.get(SECRET_VARIABLE, "")
    if not found.strip():
        raise ConfigError(
            "workers that somebody else starts have to know a secret, and there is none",
            fix=f"set the environment variable {SECRET_VARIABLE} for the trainer and for the workers, or give secret=",
        )
    return check_secret(found)


def take_secret(path: Path | None = None) -> bytes:
    """Return the secret of a worker: of a file, else of the environment, from which it is removed.

    What the worker starts, user code among it, does not see it there.

    Raises:
        ConfigError: There is none, others may read the file, it cannot be read, or the secret is short.
    """
    text = os.environ.pop(SECRET_VARIABLE, "")
    if path is not None:
        text = _read_secret(path)
    if not text.strip():
        raise ConfigError(
            "a worker has to know the secret of its trainer, and there is none",
            fix=f"set the environment variable {SECRET_VARIABLE}, or give --secret-file",
        )
    return check_secret(text)


def check_secret(secret: str | bytes) -> bytes:
    """Return a secret as bytes, without white space around it.

    Raises:
        ConfigError: It is short, so that it could be guessed, or no text that an environment variable can have.
    """
    data = (secret.encode() if isinstance(secret, str) else secret).strip()
    fix = 'make one: python -c "import secrets; print(secrets.token_hex(32))"'
    if len(data) < _MIN_SECRET_CHARS:
        raise ConfigError(
            f"a secret needs {_MIN_SECRET_CHARS} characters or more, and this one has {len(data)}", fix=fix
        )
    if not data.isascii() or b"\0" in data:
        raise ConfigError("a secret is ASCII text without NUL, and this one is not", fix=fix)
    return data


def _read_secret(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise ConfigError(
                    "other users may read this file, which holds the secret", where=str(path), fix="chmod 600 it"
                )
            return file.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret cannot be read: {error}", where=str(path)) from error


# --- versions ---


def introduce(seat: int, dialogue: bytes = b"") -> Introduction:
    """Return who this process is."""
    return Introduction(seat, dialogue, socket.gethostname(), os.getpid(), _python(), __version__, np.__version__)


def _python() -> str:
    # The codec describes values by `marshal`, whose form may change with a minor version.
    return (
        f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}, {sys.byteorder} endian"
    )


def find_mismatch(other: Introduction) -> ConfigError | None:
    """Return what is wrong if an agent has other versions than this trainer, in what values depend on."""
    own = introduce(0)
    wanted = {"Python": own.python, "Headrace": own.headrace, "NumPy": _minor(own.numpy)}
    found = {"Python": other.python, "Headrace": other.headrace, "NumPy": _minor(other.numpy)}
    wrong = [f"{name} {found[name]} (here {wanted[name]})" for name in wanted if found[name] != wanted[name]]
    if not wrong:
        return None
    return ConfigError(
        f"a worker has other versions than the trainer: {', '.join(wrong)}",
        where=f"{other.host}, process {other.pid}",
        fix="use the same environment on both machines",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
