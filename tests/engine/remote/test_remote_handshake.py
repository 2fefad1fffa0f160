"""Who does not know the secret gets nowhere, and who has other versions is told so."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import Engine, Job
from headrace.engine.remote import ConnectedWorkers, LocalLauncher, RemoteExecutor
from headrace.engine.remote.addresses import join_address, split_address
from headrace.engine.remote.handshake import (
    GREETING_BYTES,
    PROOF_BYTES,
    RESPONSE_BYTES,
    SECRET_VARIABLE,
    answer,
    check_secret,
    check_trainer,
    choose_secret,
    find_mismatch,
    introduce,
    make_greeting,
    respond,
    take_secret,
)
from headrace.engine.remote.wire import WireError
from headrace.errors import ConfigError

SECRETS = st.binary(min_size=16, max_size=40)  # of any kind here; users' are ASCII


@given(SECRETS)
def test_who_knows_the_secret_comes_through_on_both_sides(secret: bytes) -> None:
    greeting = make_greeting()
    response = respond(secret, greeting)
    proof = answer(secret, greeting, response)
    check_trainer(secret, greeting, response, proof)
    assert (len(greeting), len(response), len(proof)) == (GREETING_BYTES, RESPONSE_BYTES, PROOF_BYTES)


@given(SECRETS, SECRETS)
def test_another_secret_is_refused_by_both_sides(secret: bytes, other: bytes) -> None:
    if secret == other:
        return
    greeting = make_greeting()
    with pytest.raises(WireError, match="does not know the secret"):
        answer(secret, greeting, respond(other, greeting))
    response = respond(secret, greeting)
    with pytest.raises(WireError, match="does not know the secret"):
        check_trainer(other, greeting, response, answer(secret, greeting, response))


@given(SECRETS, st.integers(0, RESPONSE_BYTES - 1), st.integers(1, 255))
def test_a_response_of_which_one_byte_is_another_is_refused(secret: bytes, at: int, change: int) -> None:
    greeting = make_greeting()
    response = bytearray(respond(secret, greeting))
    response[at] ^= change
    with pytest.raises(WireError):
        answer(secret, greeting, bytes(response))


def test_a_response_is_of_no_use_for_another_connection_nor_as_the_proof_of_the_trainer() -> None:
    secret, greeting = b"s" * 16, make_greeting()
    response = respond(secret, greeting)
    with pytest.raises(WireError):
        answer(secret, make_greeting(), response)
    with pytest.raises(WireError):
        check_trainer(secret, greeting, response, response[GREETING_BYTES:])


def test_what_is_no_trainer_is_told_from_one_of_another_secret() -> None:
    with pytest.raises(WireError, match="does not speak the protocol of Headrace"):
        respond(b"s" * 16, b"HTTP/1.1 400 Bad Request\r\n".ljust(GREETING_BYTES))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python": "CPython 3.9, little endian"}, "Python CPython 3.9"),
        ({"headrace": "0.0.0"}, "Headrace 0.0.0"),
        ({"numpy": "1.20.3"}, "NumPy 1.20 "),
    ],
)
def test_other_versions_are_named_with_the_machine(change: dict[str, str], words: str) -> None:
    own = introduce(-1)
    assert find_mismatch(own) is None
    error = find_mismatch(msgspec.structs.replace(own, host="node7", **change))
    assert error is not None
    assert words in str(error)
    assert "node7" in str(error)


def test_a_secret_comes_from_a_file_or_the_environment_and_is_removed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "from the environment")
    assert choose_secret(None, is_shared=True) == b"from the environment"
    assert take_secret() == b"from the environment"
    assert SECRET_VARIABLE not in os.environ
    with pytest.raises(ConfigError, match="there is none"):
        take_secret()
    path = tmp_path / "secret"
    path.write_text("from the file, with a line end\n")
    path.chmod(0o600)
    assert take_secret(path) == b"from the file, with a line end"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        take_secret(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        take_secret(tmp_path / "missing")


def test_secrets_that_are_short_or_missing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="16 characters"):
        check_secret("short" + 20 * " ")
    for odd in ("with a NUL, which ends it\0", "with an \xe4 in it, and long"):
        with pytest.raises(ConfigError, match="ASCII"):
            check_secret(odd)
    with pytest.raises(ConfigError, match=SECRET_VARIABLE):
        RemoteExecutor(ConnectedWorkers())
    assert choose_secret(None, is_shared=False) != choose_secret(None, is_shared=False)


def test_a_secret_is_in_no_command_line_and_user_code_does_not_see_it() -> None:
    executor = RemoteExecutor(LocalLauncher(), secret="x" * 40, dead_seconds=30.0)
    with Engine(Job(lambda info: os.environ.get), num_workers=1, executor=executor) as engine:
        assert [done.value for done in engine.run([SECRET_VARIABLE])] == [None]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    assert b"x" * 40 not in (entry / "cmdline").read_bytes()
                except OSError:
                    continue


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node7:7070", ("node7", 7070)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fd00::7]:80", ("fd00::7", 80)),
    ],
)
def test_addresses_are_read_as_they_are_written(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected
    assert join_address(*expected) == text


@pytest.mark.parametrize("text", ["", "node7", ":70", "node7:", "node7:x", "node7:0", "node7:65536", "::1:70", "a:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        split_address(text)


@pytest.mark.parametrize("options", [{"port": 70000}, {"max_bytes": 0}, {"dead_seconds": 0}, {"threads_per_worker": 0}])
def test_wrong_options_are_refused_before_anything_starts(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RemoteExecutor(LocalLauncher(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_where_nobody_can_listen_is_said(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        RemoteExecutor(LocalLauncher(), host=host).listen()
