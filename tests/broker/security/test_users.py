"""Users in a file that only its owner may read."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.security.users import ROLES, User, Users, UsersFile, alone
from narrowcast.errors import InputError, ParameterError

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
    with pytest.raises(ParameterError, match="user 'ann' is there already; remove it first"):
        users.add("ann", ["node"])
    with pytest.raises(ParameterError, match="there is no user 'eve'; see narrowcast users list"):
        users.remove("eve")


@given(st.text(min_size=1, max_size=60).filter(lambda text: "\0" not in text and len(text.encode()) <= 256))
def test_any_name_comes_back(name: str) -> None:
    users, made = Users.of([]).add(name, ROLES)
    assert users.find(made.token) == made


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (User("", ("node",), TOKEN), "user '' has a name of 0 bytes; give 1 to 256"),
        (User("a" * 257, ("node",), TOKEN), "has a name of 257 bytes"),
        (User("a\0b", ("node",), TOKEN), "none of them 0"),
        (User("\ud800", ("node",), TOKEN), "no valid text"),
        (User("$system", ("node",), TOKEN), "is the broker's own"),
        (User("ann", (), TOKEN), "user 'ann' has no role; use some of subscriber, publisher"),
        (User("ann", ("king",), TOKEN), "user 'ann' has role 'king'; use some of"),
        (User("ann", ("node",), "short"), "a token of 5 characters; give 16 to 512"),
        (User("ann", ("node",), "0123456789\xe4bcdef"), "printable ASCII"),
        (User("ann", ("node",), "$2a$10$0123456789"), "as hashes do"),
        (User("ann", ("node",), "0123456789 abcdef"), "with a space"),
    ],
)
def test_users_that_cannot_be(user: User, why: str) -> None:
    with pytest.raises(ParameterError, match=why.replace("$", r"\$")) as found:
        Users.of([user])
    assert user.token not in str(found.value)


def test_users_that_cannot_be_told_apart() -> None:
    ann = User("ann", ("node",), TOKEN)
    with pytest.raises(ParameterError, match="'ann' is there twice"):
        Users.of([ann, User("ann", ("node",), TOKEN + "2")])
    with pytest.raises(ParameterError, match="users 'ann' and 'bob' have the same token"):
        Users.of([ann, User("bob", ("node",), TOKEN)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be used: Input data was truncated"),
        ('{"format": 2, "users": []}', "its format is 2, and 1 is known here"),
        ('{"format": 1, "users": [{"name": "a"}]}', "missing required field `roles`"),
        ('{"format": 1, "users": [], "more": 1}', "unknown field `more`"),
    ],
)
def test_files_that_cannot_be_used(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        Users.read(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Users.read(tmp_path / "none.json")


def test_a_file_that_others_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.json"
    Users.of([]).write(path)
    path.chmod(0o644)
    Users.read(path)
    assert f"can be read by others (mode 0644); run: chmod 600 {path}" in caplog.text


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users.json"
    first, ann = Users.of([]).add("ann", ["subscriber"])
    first.write(path)
    file = UsersFile(path)
    assert not file.changed()
    first.write(path)
    assert not file.changed()  # it says the same
    first.remove("ann").write(path)
    assert file.changed()
    assert "ann" not in file.users
    with caplog.at_level(logging.ERROR):
        path.write_text("nonsense")
        assert not file.changed()
    assert "users stay as they were" in caplog.text
    assert not file.changed()
    assert caplog.text.count("users stay as they were") == 1
    path.unlink()
    assert not file.changed()
    first.write(path)
    assert file.changed()
    assert file.users.find(ann.token) == ann


def test_nobody_is_lost_when_many_write(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    Users.of([]).write(path)

    def add(number: int) -> None:
        with alone(path):
            Users.read(path).add(f"user {number}", ["subscriber"])[0].write(path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(json.loads(path.read_text())["users"]) == 24
    assert os.listdir(tmp_path) == ["users.json"]  # noqa: PTH208
