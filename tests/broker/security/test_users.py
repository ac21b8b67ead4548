"""File of users, which only its owner can read."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.security.users import ROLES, User, Users, UsersFile, locked
from narrowcast.errors import InputError, ParameterError
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"


def test_added_written_read_removed(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    users, ann = Users.of([]).add("ann", ["subscriber", "publisher", "subscriber"])
    users, bob = users.add("bob", ["operator"])
    assert ann.roles == ("subscriber", "publisher")
    assert len(ann.token) >= 43  # 256 bits
    assert ann.token != bob.token
    users.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert list(Users.read(path)) == [ann, bob]
    assert users.find(ann.token) is ann
    assert users.find(ann.token[:-1]) is None
    assert list(users.remove("ann")) == [bob]
    with refused(ParameterError, "'ann'", parameter="name", value="ann"):
        users.add("ann", ["node"])
    with refused(ParameterError, "'eve'", parameter="name", value="eve"):
        users.remove("eve")


@given(st.text(min_size=1, max_size=60).filter(lambda text: "\0" not in text and len(text.encode()) <= 256))
def test_any_name_comes_back(name: str) -> None:
    users, made = Users.of([]).add(name, ROLES)
    assert users.find(made.token) == made


@pytest.mark.parametrize(
    ("user", "parameter", "shown"),
    [
        (User("", ("node",), TOKEN), "name", "0 bytes"),
        (User("a" * 257, ("node",), TOKEN), "name", "257 bytes"),
        (User("a\0b", ("node",), TOKEN), "name", "'a\\x00b'"),
        (User("\ud800", ("node",), TOKEN), "name", "'\\ud800'"),
        (User("$system", ("node",), TOKEN), "name", "'$system'"),
        (User("ann", (), TOKEN), "roles", "subscriber, publisher"),
        (User("ann", ("king",), TOKEN), "roles", "'king'"),
        (User("ann", ("node",), "short"), "token", "5 characters"),
        (User("ann", ("node",), "0123456789\xe4bcdef"), "token", "ASCII"),
        (User("ann", ("node",), "$2a$10$0123456789"), "token", "'$2'"),
        (User("ann", ("node",), "0123456789 abcdef"), "token", "space"),
    ],
)
def test_invalid_users_are_refused(user: User, parameter: str, shown: str) -> None:
    with refused(ParameterError, shown, repr(user.name)[:80], parameter=parameter) as found:
        Users.of([user])
    assert user.token not in str(found.value)


def test_equal_names_or_tokens_are_refused() -> None:
    ann = User("ann", ("node",), TOKEN)
    with refused(ParameterError, "'ann'", parameter="name", value="ann"):
        Users.of([ann, User("ann", ("node",), TOKEN + "2")])
    with refused(ParameterError, "'ann'", "'bob'", parameter="token"):
        Users.of([ann, User("bob", ("node",), TOKEN)])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{", "truncated"),
        ('{"format": 2, "users": []}', "format=2"),
        ('{"format": 1, "users": [{"name": "a"}]}', "`roles`"),
        ('{"format": 1, "users": [], "more": 1}', "`more`"),
    ],
)
def test_invalid_files_are_refused(text: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with refused(InputError, shown, path, parameter="users", value=str(path)):
        Users.read(path)
    with refused(InputError, tmp_path / "none.json", "No such file", parameter="users"):
        Users.read(tmp_path / "none.json")


def test_a_readable_file_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.json"
    Users.of([]).write(path)
    path.chmod(0o644)
    Users.read(path)
    assert "(mode 0644)" in caplog.text
    assert f"chmod 600 {path}" in caplog.text


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.json"
    first, ann = Users.of([]).add("ann", ["subscriber"])
    first.write(path)
    file = UsersFile(path)
    assert not file.refresh()
    first.write(path)
    assert not file.refresh()  # it says the same
    first.remove("ann").write(path)
    assert file.refresh()
    assert "ann" not in file.users
    with caplog.at_level(logging.ERROR):
        path.write_text("nonsense")
        assert not file.refresh()
    assert str(path) in caplog.text
    assert not file.refresh()
    assert len(caplog.records) == 1
    path.unlink()
    assert not file.refresh()
    first.write(path)
    assert file.refresh()
    assert file.users.find(ann.token) == ann


def test_concurrent_writers_lose_no_user(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    Users.of([]).write(path)

    def add(number: int) -> None:
        with locked(path):
            Users.read(path).add(f"user {number}", ["subscriber"])[0].write(path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(json.loads(path.read_text())["users"]) == 24
    assert os.listdir(tmp_path) == ["users.json"]  # noqa: PTH208
