"""Users through the commands: who may come to a broker, and what they get there."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

import narrowcast as nc
from support.certificates import with_openssl, write_certificates
from support.command import outcome, refusal
from support.live import line_with, running

if TYPE_CHECKING:
    from pathlib import Path


def added(users: Path, name: str, *roles: str) -> str:
    found = outcome("users", "add", name, *(f"--role={role}" for role in roles), "--users", users)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_add_list_remove(tmp_path: Path) -> None:
    users = tmp_path / "new" / "users.json"
    token = added(users, "ann", "subscriber")
    assert re.fullmatch(r"[\w-]{43}", token)
    assert users.stat().st_mode & 0o777 == 0o600
    made = json.loads(
        outcome("users", "add", "b o b", "--role", "publisher", "--users", users, "--json").stdout
    )
    assert made | {"token": ""} == {
        "command": "users add", "name": "b o b", "roles": ["publisher"], "token": ""
    }  # fmt: skip
    listed = outcome("users", "list", "--users", users, "--json").stdout
    assert json.loads(listed)["users"] == [
        {"name": "ann", "roles": ["subscriber"]}, {"name": "b o b", "roles": ["publisher"]}
    ]  # fmt: skip
    assert token not in listed + outcome("users", "list", "--users", users).stdout
    users.chmod(0o644)
    with running("users", "list", "--users", users) as listing:
        assert line_with(listing, "chmod 600").startswith(f"warning: {users}")
    assert outcome("users", "remove", "ann", "--users", users).returncode == 0
    assert "b o b" in outcome("users", "list", "--users", users).stdout
    assert "'ann'" in refusal("users", "remove", "ann", "--users", users)
    assert "'king'" in refusal("users", "add", "c", "--role", "king", "--users", users)
    assert "No such file" in refusal("users", "list", "--users", tmp_path / "none.json")


def test_permissions(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = added(users, "ann", "subscriber")
    added(users, "boss", "operator")
    interest = nc.Interest([[1, 0], [0, 1]], subscribers=["ann", "eve"])
    nc.write_plan(nc.PerFlow().fit(interest).plan_, tmp_path / "plan", method="per-flow", flow_space="events")
    printed = outcome("permissions", "--users", users, "--prefix", "a.b").stdout
    assert printed.splitlines()[0] == "users: ["
    assert f'{{ user: "ann", password: "{token}", permissions:' in printed
    assert '"a.b.out.to.ann"' in printed
    assert '"$JS.ACK.a_b_out.ann.>"' in printed
    assert "channel" not in printed
    planned = outcome("permissions", "--users", users, "--plan", tmp_path / "plan").stdout
    assert re.findall(r'"nc\.out\.channel[^"]*"', planned) == ['"nc.out.channel.*.0"']
    assert str(tmp_path / "none") in refusal("permissions", "--users", users, "--plan", tmp_path / "none")


def test_refusals(tmp_path: Path) -> None:
    assert "--subscriber" in refusal("subscribe", "--filter", "a > 1")
    assert "--user" in refusal("publish", "-", "--token", "x")
    assert "password" in refusal("publish", "-", "--nats", "nats://ann@host:4222")
    assert "none.json" in refusal("serve", "--users", "none.json", "--port", "0")
    assert "cert" in refusal("serve", "--tls-cert", tmp_path)
    assert "No such file" in refusal("publish", "-", "--tls-ca", tmp_path / "none.pem")


@pytest.mark.nats
def test_a_broker_with_users(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    tokens = {
        name: added(users, name, *roles)
        for name, roles in {
            "ann": ["subscriber"], "bob": ["subscriber"], "desk": ["publisher"], "boss": ["operator"]
        }.items()
    }  # fmt: skip
    interest = nc.Interest([[1, 0, 1], [0, 1, 1]], subscribers=["ann", "bob"])
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events"
    )
    with ExitStack() as stack:
        serve = ["serve", "--port", "0", "--http", "127.0.0.1:0", "--users"]
        broker = stack.enter_context(running(*serve, users, "--data", tmp_path / "data"))
        said = line_with(broker, "serving at")
        url, api = re.findall(r"\w+://\S+?:\d+", said)

        def subscriber(name: str, text: str) -> subprocess.Popen[str]:
            words = ["--user", name, "--token", tokens[name], "--filter", text]
            made = stack.enter_context(running("subscribe", "--nats", url, *words))
            line_with(made, f"subscribed as '{name}'")
            return made

        ann, bob = subscriber("ann", "price > 10"), subscriber("bob", "price > 20")
        boss = ["--nats", url, "--user", "boss", "--token", tokens["boss"], "--json"]
        rolled = outcome("rollout", tmp_path / "plan", *boss)
        assert json.loads(rolled.stdout)["listening"] == 2, rolled.stderr
        events = tmp_path / "events.jsonl"
        events.write_text('{"price": 15}\n{"price": 25}\n')
        publish: list[str | Path] = ["publish", events, "--nats"]
        desk: list[str | Path] = [*publish, url, "--user", "desk", "--token"]
        done = outcome(*desk, tokens["desk"])
        assert done.returncode == 0, done.stderr
        assert ann.stdout is not None
        assert bob.stdout is not None
        assert [ann.stdout.readline() for _ in range(2)] == ['{"price": 15}\n', '{"price": 25}\n']
        assert bob.stdout.readline() == '{"price": 25}\n'

        # Others, or without a token, or with somebody else's: one line, at once.
        begun = time.monotonic()
        for words, why in (
            ([*desk, tokens["ann"]], "refuses user 'desk'"),
            ([*publish, url], "refuses an anonymous client"),
            (
                [*publish, url.replace("//", f"//ann:{tokens['ann']}@")],
                "does not let user 'ann' publish to",
            ),
            (
                ["subscribe", "--nats", url, "--user", "ann", "--token", tokens["ann"],
                 "--subscriber", "bob", "--filter", "price > 0"],
                "does not let user 'ann' listen to nc.answer.bob.",
            ),
            (["rollout", tmp_path / "plan", "--nats", url, "--user", "ann", "--token", tokens["ann"]],
             "does not let user 'ann' publish to \"nc.orders\""),
        ):  # fmt: skip
            found = outcome(*words)
            assert (found.returncode, found.stdout) == (2, "")
            assert why in found.stderr
            assert found.stderr.count("\n") == 1
            assert not any(token in found.stderr for token in tokens.values())
        assert time.monotonic() - begun < 45

        bearer = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
        assert httpx.get(f"{api}/metrics").status_code == 401
        assert httpx.get(f"{api}/metrics", headers=bearer["ann"]).status_code == 403
        assert "narrowcast_events_total 2.0" in httpx.get(f"{api}/metrics", headers=bearer["boss"]).text
        assert httpx.get(f"{api}/health").json()["subscriptions"] == 2

        # Bob goes, and ends; ann is still there.
        assert outcome("users", "remove", "bob", "--users", users).returncode == 0
        _, err = bob.communicate(timeout=30)
        assert bob.returncode == 2
        assert "refuses user 'bob'" in err
        events.write_text('{"price": 35}\n')
        assert outcome(*desk, tokens["desk"]).returncode == 0
        assert ann.stdout.readline() == '{"price": 35}\n'


def test_what_is_open_is_told(tmp_path: Path) -> None:
    with running("serve", "--memory", "--http", "0.0.0.0:0") as broker:
        assert line_with(broker, "--http 0.0.0.0").startswith("warning: ")


@with_openssl
def test_http_with_a_certificate(tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    words = ("--http-cert", files / "cert.pem", "--http-key", files / "key.pem")
    with running("serve", "--memory", "--http", "127.0.0.1:0", *words) as broker:
        api = re.findall(r"https://\S+?:\d+", line_with(broker, "serving at"))[0]
        trusting = ssl.create_default_context(cafile=files / "ca.pem")
        assert httpx.get(f"{api}/health", verify=trusting).json()["status"] == "ok"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{api}/health")  # nobody else trusts it
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{api.replace('https', 'http')}/health")
    why = refusal("serve", "--memory", "--http", "127.0.0.1:0", *words[:2], "--http-key", files / "ca.pem")
    assert f"{files}/cert.pem, {files}/ca.pem" in why
    assert "--http-key and --http" in refusal("serve", *words)


def test_tokens_over_an_open_connection_are_told(tmp_path: Path) -> None:
    outcome("users", "add", "ann", "--role", "subscriber", "--users", tmp_path / "users.json")
    words = ("--memory", "--http", "0.0.0.0:0", "--users", tmp_path / "users.json")
    with running("serve", *words) as broker:
        assert "--http-cert" in line_with(broker, "warning: --http 0.0.0.0")
